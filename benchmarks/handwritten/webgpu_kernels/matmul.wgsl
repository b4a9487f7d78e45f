// A subgroup computes ROW_BLOCKS * LANES rows of 4 * LANES columns of a (ROWS, INNER) by (INNER, COLUMNS) product.
// Loads are what costs: so one load of each lane brings LANES rows of a, four numbers deep, and the numbers go round the
// subgroup by broadcasts. A lane owns four columns and keeps all its sums in registers.

const TILE_ROWS = ROW_BLOCKS * LANES;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> product: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x % (ROWS / TILE_ROWS) * TILE_ROWS;
    let column = group.x / (ROWS / TILE_ROWS) * LANES + lane;
    $for block in ROW_BLOCKS
    $for owner in LANES
    var sum_$block_$owner = vec4<f32>(0.0);
    $end
    $end
    for (var k = 0u; k < INNER / 4u; k += 1u) {
        $for block in ROW_BLOCKS
        let left_$block = a[(row + $blocku * LANES + lane) * (INNER / 4u) + k];
        $end
        $for step in 4
        {
            let right = b[(k * 4u + $stepu) * (COLUMNS / 4u) + column];
            $for block in ROW_BLOCKS
            $for owner in LANES
            sum_$block_$owner += subgroupBroadcast(left_$block[$step], $owneru) * right;
            $end
            $end
        }
        $end
    }
    $for block in ROW_BLOCKS
    $for owner in LANES
    product[(row + $blocku * LANES + $owneru) * (COLUMNS / 4u) + column] = sum_$block_$owner;
    $end
    $end
}
