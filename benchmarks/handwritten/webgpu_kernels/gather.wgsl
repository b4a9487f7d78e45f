// An invocation copies a whole row, so that its index is loaded once. The caller promises indices that exist.

const ROW = COLUMNS / 4u;

@group(0) @binding(0) var<storage, read> table: array<vec4<f32>, TABLE * ROW>;
@group(0) @binding(1) var<storage, read> indices: array<i32, COUNT>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<f32>, COUNT * ROW>;

@compute @workgroup_size(GROUP)
fn gather(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let row = invocation.x;
    let source = u32(indices[row]) * ROW;
    $for i in VECTORS
    result[row * ROW + $iu] = table[source + $iu];
    $end
}
