// 16 groups of 64
@group(0) @binding(0) var<storage, read> input_a: array<f32, 64575>;
@group(0) @binding(1) var<storage, read_write> parts_0: array<f32, 1008>;

@compute @workgroup_size(64)
fn sum_0_parts(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let row = group * 64 + lane;
    if (row >= 1008) {
        return;
    }
    let stop_1 = min((row / 63) * 65 + 65, 1025);
    var sum_0 = 0.0f;
    for (var column_1 = (row / 63) * 65; column_1 < stop_1; column_1 += 1) {
        let input_a_value = input_a[column_1 * 63 + (row % 63)];
        sum_0 = sum_0 + input_a_value;
    }
    parts_0[row] = sum_0;
}

// 1 groups of 64
@group(0) @binding(0) var<storage, read_write> t0: array<f32, 63>;
@group(0) @binding(1) var<storage, read> parts_0: array<f32, 1008>;

var<private> zero: u32;

@compute @workgroup_size(64)
fn sum_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let row = lane;
    if (row >= 63) {
        return;
    }
    var sum_0 = 0.0f;
    for (var column_1 = 0; column_1 < 16; column_1 += 1) {
        let parts_0_value = parts_0[column_1 * 63 + row];
        sum_0 = sum_0 + parts_0_value;
    }
    let result_0 = sum_0 + bitcast<f32>(0x0u ^ zero);
    t0[row] = result_0;
}
