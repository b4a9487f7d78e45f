// An invocation turns BLOCKS blocks of 4 by 4 in registers. Neighbours are below each other, so that what they write is
// next to each other.

const STRIPS = ROWS / 4u / GROUP;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>, ROWS * COLUMNS / 4>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4<f32>, ROWS * COLUMNS / 4>;

@compute @workgroup_size(GROUP)
fn transpose(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x % STRIPS * GROUP + lane;
    let first_column = group.x / STRIPS * BLOCKS;
    $for block in BLOCKS
    {
        let column = first_column + $blocku;
        $for i in 4
        let line_$i = x[(row * 4u + $iu) * (COLUMNS / 4u) + column];
        $end
        $for i in 4
        result[(column * 4u + $iu) * (ROWS / 4u) + row] = vec4<f32>(line_0[$i], line_1[$i], line_2[$i], line_3[$i]);
        $end
    }
    $end
}
