// COUNT numbers. Four vectors for each invocation, one group apart, so that neighbours read neighbours.

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>, COUNT / 4>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4<f32>, COUNT / 4>;

@compute @workgroup_size(GROUP)
fn chain(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * GROUP * 4u + lane;
    $for step in 4
    {
        let v = x[first + $stepu * GROUP];
        result[first + $stepu * GROUP] = 1.0 / (1.0 + exp(-(v * v * 0.5 + tanh(v) * 0.25 - 1.0)));
    }
    $end
}
