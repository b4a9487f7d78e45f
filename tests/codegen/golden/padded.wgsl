// 1 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<f32, 63>;
@group(0) @binding(1) var<storage, read_write> t0: array<vec4<f32>, 30>;

var<private> zero: u32;

@compute @workgroup_size(32)
fn pad_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 30) {
        return;
    }
    let inside = vec4<bool>((((block / 3 - 1) >= 0) && ((block / 3 - 1) < 7))) & (((block % 3) * 4 + vec4<i32>(0, 1, 2, 3)) < vec4<i32>(9));
    let input_a_value = vec4<f32>(input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4, 0, 8)], input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4 + 1, 0, 8)], input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4 + 2, 0, 8)], input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4 + 3, 0, 8)]);
    let padded = select(vec4<f32>(bitcast<f32>(0x0u ^ zero)), input_a_value, inside);
    t0[block] = padded;
}
