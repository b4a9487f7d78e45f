// One subgroup for ROWS_EACH rows, one after the other. A row stays in registers: its mean, the variance around that
// mean, then the result; and so do scale and shift, for all the rows.

const ROW = COLUMNS / 4u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>, ROWS * ROW>;
@group(0) @binding(1) var<storage, read> scale: array<vec4<f32>, ROW>;
@group(0) @binding(2) var<storage, read> shift: array<vec4<f32>, ROW>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>, ROWS * ROW>;

@compute @workgroup_size(LANES)
fn layer_norm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    $for i in VECTORS
    let scale_$i = scale[$iu * LANES + lane];
    let shift_$i = shift[$iu * LANES + lane];
    $end
    for (var row = group.x * ROWS_EACH; row < (group.x + 1u) * ROWS_EACH; row += 1u) {
        let first = row * ROW + lane;
        var sum = vec4<f32>(0.0);
        $for i in VECTORS
        var value_$i = x[first + $iu * LANES];
        sum += value_$i;
        $end
        let mean = subgroupAdd((sum.x + sum.y) + (sum.z + sum.w)) / f32(COLUMNS);
        var squares = vec4<f32>(0.0);
        $for i in VECTORS
        value_$i -= mean;
        squares += value_$i * value_$i;
        $end
        let variance = subgroupAdd((squares.x + squares.y) + (squares.z + squares.w)) / f32(COLUMNS);
        let factor = 1.0 / sqrt(variance + 1e-5);
        $for i in VECTORS
        result[first + $iu * LANES] = value_$i * factor * scale_$i + shift_$i;
        $end
    }
}
