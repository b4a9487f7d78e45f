// As matmul.wgsl, for a b that is too large for the caches: a group takes PANEL_ROWS rows, and copies PANEL_DEPTH rows of
// its own columns of b to where they lie close together. Rows of b that are a power of two apart would all compete
// for the same few lines of the cache. Sums wait in the product between two panels.
//
// With BIAS_GELU the bias is added and the gelu taken before the last store.

const TILE_ROWS = ROW_BLOCKS * LANES;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> product: array<vec4<f32>>;
$if BIAS_GELU
@group(0) @binding(3) var<storage, read> bias: array<vec4<f32>>;
$end

var<workgroup> panel: array<vec4<f32>, PANEL_DEPTH * LANES>;

fn gelu(v: vec4<f32>) -> vec4<f32> {
    return 0.5 * v * (1.0 + tanh(0.7978845608 * (v + 0.044715 * v * v * v)));
}

@compute @workgroup_size(LANES)
fn matmul_panel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = group.x % (ROWS / PANEL_ROWS) * PANEL_ROWS;
    let column = group.x / (ROWS / PANEL_ROWS) * LANES + lane;
    for (var depth = 0u; depth < INNER; depth += PANEL_DEPTH) {
        // A lane reads back only what it wrote itself, so that nobody has to wait.
        for (var k = 0u; k < PANEL_DEPTH; k += 1u) {
            panel[k * LANES + lane] = b[(depth + k) * (COLUMNS / 4u) + column];
        }
        for (var row = first_row; row < first_row + PANEL_ROWS; row += TILE_ROWS) {
            $for block in ROW_BLOCKS
            $for owner in LANES
            var sum_$block_$owner = vec4<f32>(0.0);
            $end
            $end
            if (depth > 0u) {
                $for block in ROW_BLOCKS
                $for owner in LANES
                sum_$block_$owner = product[(row + $blocku * LANES + $owneru) * (COLUMNS / 4u) + column];
                $end
                $end
            }
            for (var k = 0u; k < PANEL_DEPTH / 4u; k += 1u) {
                $for block in ROW_BLOCKS
                let left_$block = a[(row + $blocku * LANES + lane) * (INNER / 4u) + depth / 4u + k];
                $end
                $for step in 4
                {
                    let right = panel[(k * 4u + $stepu) * LANES + lane];
                    $for block in ROW_BLOCKS
                    $for owner in LANES
                    sum_$block_$owner += subgroupBroadcast(left_$block[$step], $owneru) * right;
                    $end
                    $end
                }
                $end
            }
            $if BIAS_GELU
            if (depth == INNER - PANEL_DEPTH) {
                let shift = bias[column];
                $for block in ROW_BLOCKS
                $for owner in LANES
                sum_$block_$owner = gelu(sum_$block_$owner + shift);
                $end
                $end
            }
            $end
            $for block in ROW_BLOCKS
            $for owner in LANES
            product[(row + $blocku * LANES + $owneru) * (COLUMNS / 4u) + column] = sum_$block_$owner;
            $end
            $end
        }
    }
}
