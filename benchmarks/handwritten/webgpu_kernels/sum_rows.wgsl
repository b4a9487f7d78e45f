// One invocation for each row of COLUMNS numbers, with four sums side by side.

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>, ROWS * COLUMNS / 4>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32, ROWS>;

@compute @workgroup_size(GROUP)
fn sum_rows(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let row = invocation.x;
    $for part in 4
    var sum_$part = vec4<f32>(0.0);
    $end
    let end = (row + 1u) * (COLUMNS / 4u);
    for (var i = row * (COLUMNS / 4u); i < end; i += 4u) {
        $for part in 4
        sum_$part += x[i + $partu];
        $end
    }
    let four = (sum_0 + sum_1) + (sum_2 + sum_3);
    sums[row] = (four.x + four.y) + (four.z + four.w);
}
