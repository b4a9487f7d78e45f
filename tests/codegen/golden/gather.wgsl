// 1 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<vec4<i32>, 65>;
@group(0) @binding(1) var<storage, read_write> t0: array<vec2<i64>, 129>;

// The dialect widens before it changes the sign, as NumPy does; the compilers in use do it the other way round.
fn cast_i32_u64(x: i32) -> u64 {
    return u64(bitcast<u32>(x)) | (u64(bitcast<u32>(x >> 31u)) << 32u);
}

// Not `i64(x)`: lavapipe of Mesa 22.3 compares that with constants wrongly (every i64(x) > 0 was true).
fn cast_i32_i64(x: i32) -> i64 {
    return bitcast<i64>(cast_i32_u64(x));
}

@compute @workgroup_size(128)
fn select_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 65) {
        return;
    }
    if (block < 64) {
        let input_a_value = input_a[block];
        let cast_1 = vec4<i64>(cast_i32_i64(input_a_value.x), cast_i32_i64(input_a_value.y), cast_i32_i64(input_a_value.z), cast_i32_i64(input_a_value.w));
        let less_2 = cast_1 < vec4<i64>(0li);
        let add_3 = cast_1 + 65li;
        let select_0 = select(cast_1, add_3, less_2);
        t0[block * 2] = select_0.xy;
        t0[block * 2 + 1] = select_0.zw;
    }
    if (block == 64) {
        for (var i = 256; i < 257; i += 1) {
            let input_a_value = input_a[i / 4][i % 4];
            let cast_1 = cast_i32_i64(input_a_value);
            let less_2 = cast_1 < 0li;
            let add_3 = cast_1 + 65li;
            let select_0 = select(cast_1, add_3, less_2);
            t0[i / 2][i % 2] = select_0;
        }
    }
}

// 2 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<f32, 195>;
@group(0) @binding(1) var<storage, read> t0: array<i64, 257>;
@group(0) @binding(2) var<storage, read_write> t1: array<vec4<f32>, 193>;
@group(0) @binding(3) var<storage, read_write> status: array<u32, 1>;

@compute @workgroup_size(128)
fn gather_1(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = group * 128 + lane;
    if (block >= 193) {
        return;
    }
    if (block < 192) {
        let t0_value = vec4<i64>(t0[(block * 4) / 3], t0[(block * 4 + 1) / 3], t0[(block * 4 + 2) / 3], t0[(block * 4) / 3 + 1]);
        let part_value_2 = ((t0_value < vec4<i64>(0li)) | (t0_value >= vec4<i64>(65li)));
        let part_value_3 = vec4<i32>(t0_value);
        if (any(part_value_2)) {
            if (part_value_2.x) { status[0] = select(u32(part_value_3.x) + 1u, 2147483648u, part_value_3.x == -1); }
            if (part_value_2.y) { status[0] = select(u32(part_value_3.y) + 1u, 2147483648u, part_value_3.y == -1); }
            if (part_value_2.z) { status[0] = select(u32(part_value_3.z) + 1u, 2147483648u, part_value_3.z == -1); }
            if (part_value_2.w) { status[0] = select(u32(part_value_3.w) + 1u, 2147483648u, part_value_3.w == -1); }
        }
        let at_1 = min(max(vec4<i32>(t0_value), vec4<i32>(0)), vec4<i32>(64));
        let input_a_value = vec4<f32>(input_a[at_1.x * 3 + ((block * 4) % 3)], input_a[at_1.y * 3 + ((block * 4 + 1) % 3)], input_a[at_1.z * 3 + ((block * 4 + 2) % 3)], input_a[at_1.w * 3 + ((block * 4) % 3)]);
        t1[block] = input_a_value;
    }
    if (block == 192) {
        for (var i = 768; i < 771; i += 1) {
            let t0_value = t0[i / 3];
            if ((t0_value < 0li) || (t0_value >= 65li)) {
                status[0] = select(u32(i32(t0_value)) + 1u, 2147483648u, i32(t0_value) == -1);
            }
            let at_1 = min(max(i32(t0_value), 0), 64);
            let input_a_value = input_a[at_1 * 3 + (i % 3)];
            t1[i / 4][i % 4] = input_a_value;
        }
    }
}
