// 1 groups of 128
@group(0) @binding(0) var<storage, read> input_b: array<vec4<i32>, 65>;
@group(0) @binding(1) var<storage, read_write> t10: array<vec2<i64>, 129>;

// The dialect widens before it changes the sign, as NumPy does; the compilers in use do it the other way round.
fn cast_i32_u64(x: i32) -> u64 {
    return u64(bitcast<u32>(x)) | (u64(bitcast<u32>(x >> 31u)) << 32u);
}

// Not `i64(x)`: lavapipe of Mesa 22.3 compares that with constants wrongly (every i64(x) > 0 was true).
fn cast_i32_i64(x: i32) -> i64 {
    return bitcast<i64>(cast_i32_u64(x));
}

@compute @workgroup_size(128)
fn select_10(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 65) {
        return;
    }
    if (block < 64) {
        let b = input_b[block];
        let cast_3 = vec4<i64>(cast_i32_i64(b.x), cast_i32_i64(b.y), cast_i32_i64(b.z), cast_i32_i64(b.w));
        let less_6 = cast_3 < vec4<i64>(0li);
        let add_9 = cast_3 + 65li;
        let select_10 = select(cast_3, add_9, less_6);
        t10[block * 2] = select_10.xy;
        t10[block * 2 + 1] = select_10.zw;
    }
    if (block == 64) {
        for (var i = 256; i < 257; i += 1) {
            let b = input_b[i / 4][i % 4];
            let cast_3 = cast_i32_i64(b);
            let less_6 = cast_3 < 0li;
            let add_9 = cast_3 + 65li;
            let select_10 = select(cast_3, add_9, less_6);
            t10[i / 2][i % 2] = select_10;
        }
    }
}

// 2 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<f32, 195>;
@group(0) @binding(1) var<storage, read> t10: array<i64, 257>;
@group(0) @binding(2) var<storage, read_write> t11: array<vec4<f32>, 193>;
@group(0) @binding(3) var<storage, read_write> status: array<u32, 1>;

@compute @workgroup_size(128)
fn gather_11(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = group * 128 + lane;
    if (block >= 193) {
        return;
    }
    if (block < 192) {
        let t10_value = vec4<i64>(t10[(block * 4) / 3], t10[(block * 4 + 1) / 3], t10[(block * 4 + 2) / 3], t10[(block * 4) / 3 + 1]);
        let part_value_1 = ((t10_value < vec4<i64>(0li)) | (t10_value >= vec4<i64>(65li)));
        let part_value_2 = vec4<i32>(t10_value);
        if (any(part_value_1)) {
            if (part_value_1.x) { status[0] = max(u32(part_value_2.x) + 1u, 1u); }
            if (part_value_1.y) { status[0] = max(u32(part_value_2.y) + 1u, 1u); }
            if (part_value_1.z) { status[0] = max(u32(part_value_2.z) + 1u, 1u); }
            if (part_value_1.w) { status[0] = max(u32(part_value_2.w) + 1u, 1u); }
        }
        let at_11 = min(max(vec4<i32>(t10_value), vec4<i32>(0)), vec4<i32>(64));
        let a = vec4<f32>(input_a[at_11.x * 3 + ((block * 4) % 3)], input_a[at_11.y * 3 + ((block * 4 + 1) % 3)], input_a[at_11.z * 3 + ((block * 4 + 2) % 3)], input_a[at_11.w * 3 + ((block * 4) % 3)]);
        t11[block] = a;
    }
    if (block == 192) {
        for (var i = 768; i < 771; i += 1) {
            let t10_value = t10[i / 3];
            if ((t10_value < 0li) || (t10_value >= 65li)) {
                status[0] = max(u32(i32(t10_value)) + 1u, 1u);
            }
            let at_11 = min(max(i32(t10_value), 0), 64);
            let a = input_a[at_11 * 3 + (i % 3)];
            t11[i / 4][i % 4] = a;
        }
    }
}
