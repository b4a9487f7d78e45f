// The last step of a sum over everything: one subgroup adds COUNT partial sums.

@group(0) @binding(0) var<storage, read> partials: array<vec4<f32>, COUNT / 4>;
@group(0) @binding(1) var<storage, read_write> total: array<f32, 1>;

@compute @workgroup_size(LANES)
fn sum_partials(@builtin(local_invocation_index) lane: u32) {
    var sum = vec4<f32>(0.0);
    for (var i = lane; i < COUNT / 4u; i += LANES) {
        sum += partials[i];
    }
    let all = subgroupAdd((sum.x + sum.y) + (sum.z + sum.w));
    if (lane == 0u) {
        total[0] = all;
    }
}
