// An invocation adds CHUNK rows of four columns into a row of partial sums; the same kernel then adds those.

const STRIPS = COLUMNS / 4u / GROUP;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>, ROWS * COLUMNS / 4>;
@group(0) @binding(1) var<storage, read_write> sums: array<vec4<f32>, ROWS / CHUNK * COLUMNS / 4>;

@compute @workgroup_size(GROUP)
fn sum_columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group.x % STRIPS * GROUP + lane;
    let chunk = group.x / STRIPS;
    var sum = vec4<f32>(0.0);
    for (var row = chunk * CHUNK; row < (chunk + 1u) * CHUNK; row += 1u) {
        sum += x[row * (COLUMNS / 4u) + column];
    }
    sums[chunk * (COLUMNS / 4u) + column] = sum;
}
