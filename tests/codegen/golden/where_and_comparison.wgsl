// 1 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<vec4<f32>, 17>;
@group(0) @binding(1) var<storage, read> input_b: array<vec4<f32>, 17>;
@group(0) @binding(2) var<storage, read_write> t6: array<u32, 17>;

@compute @workgroup_size(32)
fn not_equal_6(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 17) {
        return;
    }
    if (block < 16) {
        var word_t6 = 0u;
        let a = input_a[block];
        let b = input_b[block];
        let greater_2 = a > b;
        let select_3 = select(b, a, greater_2);
        let not_equal_6 = !(select_3 == vec4<f32>(0.0f));
        word_t6 = dot(vec4<u32>(not_equal_6), vec4<u32>(1u, 256u, 65536u, 16777216u));
        t6[block] = word_t6;
    }
    if (block == 16) {
        var word_t6 = 0u;
        for (var part = 0; part < 4; part += 1) {
            let a = input_a[(clamp(block * 4 + part, 0, 64)) / 4][(clamp(block * 4 + part, 0, 64)) % 4];
            let b = input_b[(clamp(block * 4 + part, 0, 64)) / 4][(clamp(block * 4 + part, 0, 64)) % 4];
            let greater_2 = a > b;
            let select_3 = select(b, a, greater_2);
            let not_equal_6 = !(select_3 == 0.0f);
            word_t6 |= select(0u, 1u, not_equal_6) << (u32(part) * 8u);
        }
        t6[block] = word_t6;
    }
}
