// 16 groups of 64
@group(0) @binding(0) var<storage, read> input_a: array<f32, 64575>;
@group(0) @binding(1) var<storage, read_write> parts_1: array<f32, 1008>;

@compute @workgroup_size(64)
fn sum_1_parts(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let row = group * 64 + lane;
    if (row >= 1008) {
        return;
    }
    let stop_2 = min((row / 63) * 65 + 65, 1025);
    var sum_1 = 0.0f;
    for (var column_2 = (row / 63) * 65; column_2 < stop_2; column_2 += 1) {
        let a = input_a[column_2 * 63 + (row % 63)];
        sum_1 = sum_1 + a;
    }
    parts_1[row] = sum_1;
}

// 1 groups of 64
@group(0) @binding(0) var<storage, read_write> t1: array<f32, 63>;
@group(0) @binding(1) var<storage, read> parts_1: array<f32, 1008>;

@compute @workgroup_size(64)
fn sum_1(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let row = lane;
    if (row >= 63) {
        return;
    }
    var sum_1 = 0.0f;
    for (var column_2 = 0; column_2 < 16; column_2 += 1) {
        let parts_1_value = parts_1[column_2 * 63 + row];
        sum_1 = sum_1 + parts_1_value;
    }
    t1[row] = sum_1;
}
