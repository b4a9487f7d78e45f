// As matmul.wgsl, with a b of bytes, four columns in a word, and a scale for each column, which is for the finished sums.
// A quarter of the bytes stays in the caches without being copied; wide groups find rows of a in the nearest of them.

const TILE_ROWS = ROW_BLOCKS * LANES;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<i32>;
@group(0) @binding(2) var<storage, read> scale: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> product: array<vec4<f32>>;

fn numbers(word: i32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

@compute @workgroup_size(GROUP)
fn matmul_int8(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) place: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let row = group.x % (ROWS / TILE_ROWS) * TILE_ROWS;
    let column = group.x / (ROWS / TILE_ROWS) * GROUP + place;
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
            let right = numbers(b[(k * 4u + $stepu) * (COLUMNS / 4u) + column]);
            $for block in ROW_BLOCKS
            $for owner in LANES
            sum_$block_$owner = fma(vec4<f32>(subgroupBroadcast(left_$block[$step], $owneru)), right, sum_$block_$owner);
            $end
            $end
        }
        $end
    }
    let factor = scale[column];
    $for block in ROW_BLOCKS
    $for owner in LANES
    product[(row + $blocku * LANES + $owneru) * (COLUMNS / 4u) + column] = sum_$block_$owner * factor;
    $end
    $end
}
