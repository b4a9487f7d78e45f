// A subgroup computes 4 * LANES pixels of a row in all OUT_BLOCKS * LANES channels. Images come as (image, channel, row,
// column) with a margin of one pixel on each side, so that their rows are whole pairs. Weights are loaded four channels
// deep, each lane for an output channel of its own, and go round the subgroup by broadcasts.

const IN_ROW = (WIDTH + 2u) / 2u;
const STRIPS = WIDTH / 4u / LANES;

@group(0) @binding(0) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> weights: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn convolution(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group.x % STRIPS * LANES + lane;
    let row = group.x / STRIPS % HEIGHT;
    let image = group.x / (STRIPS * HEIGHT);
    $for block in OUT_BLOCKS
    $for owner in LANES
    var sum_$block_$owner = vec4<f32>(0.0);
    $end
    $end
    for (var channel = 0u; channel < IN_CHANNELS; channel += 4u) {
        $for block in OUT_BLOCKS
        let first_$block = (($blocku * LANES + lane) * IN_CHANNELS + channel) * 9u / 4u;
        let taps_$block = array<vec4<f32>, 9>(
            $for i in 9
            weights[first_$block + $iu],
            $end
        );
        $end
        $for c in 4
        $for dy in 3
        {
            let at = ((image * IN_CHANNELS + channel + $cu) * (HEIGHT + 2u) + row + $dyu) * IN_ROW + column * 2u;
            let left = x[at];
            let middle = x[at + 1u];
            let right = x[at + 2u];
            let pixels_0 = vec4<f32>(left, middle);
            let pixels_1 = vec4<f32>(left.y, middle, right.x);
            let pixels_2 = vec4<f32>(middle, right);
            $for dx in 3
            $for block in OUT_BLOCKS
            let tap_$block_$dx = taps_$block[($c * 9 + $dy * 3 + $dx) / 4][($c * 9 + $dy * 3 + $dx) % 4];
            $for owner in LANES
            sum_$block_$owner += subgroupBroadcast(tap_$block_$dx, $owneru) * pixels_$dx;
            $end
            $end
            $end
        }
        $end
        $end
    }
    $for block in OUT_BLOCKS
    $for owner in LANES
    result[((image * OUT_CHANNELS + $blocku * LANES + $owneru) * HEIGHT + row) * (WIDTH / 4u) + column] = sum_$block_$owner;
    $end
    $end
}
