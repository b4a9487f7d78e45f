// 1 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<vec4<f32>, 17>;
@group(0) @binding(1) var<storage, read> input_b: array<vec4<f32>, 17>;
@group(0) @binding(2) var<storage, read_write> t0: array<u32, 17>;

var<private> zero: u32;

@compute @workgroup_size(32)
fn not_equal_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 17) {
        return;
    }
    if (block < 16) {
        var word_t0 = 0u;
        let input_a_value = input_a[block];
        let input_b_value = input_b[block];
        let greater_1 = input_a_value > input_b_value;
        let select_2 = select(input_b_value, input_a_value, greater_1);
        let not_equal_0 = !(select_2 == vec4<f32>(bitcast<f32>(0x0u ^ zero)));
        word_t0 = dot(vec4<u32>(not_equal_0), vec4<u32>(1u, 256u, 65536u, 16777216u));
        t0[block] = word_t0;
    }
    if (block == 16) {
        var word_t0 = 0u;
        for (var part = 0; part < 4; part += 1) {
            let input_a_value = input_a[(clamp(block * 4 + part, 0, 64)) / 4][(clamp(block * 4 + part, 0, 64)) % 4];
            let input_b_value = input_b[(clamp(block * 4 + part, 0, 64)) / 4][(clamp(block * 4 + part, 0, 64)) % 4];
            let greater_1 = input_a_value > input_b_value;
            let select_2 = select(input_b_value, input_a_value, greater_1);
            let not_equal_0 = !(select_2 == bitcast<f32>(0x0u ^ zero));
            word_t0 |= select(0u, 1u, not_equal_0) << (u32(part) * 8u);
        }
        t0[block] = word_t0;
    }
}
