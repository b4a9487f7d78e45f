// 128 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<vec4<f32>, 65857>;
@group(0) @binding(1) var<storage, read_write> parts_0: array<f32, 128>;

var<workgroup> folded_sum_0: array<f32, 128>;

@compute @workgroup_size(128)
fn divide_1_parts(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let row = group;
    let stop_2 = min(row * 2112 + 2112, 263425);
    var sum_0 = 0.0f;
    {
        let strips = (stop_2 - (row * 2112)) / 4;
        var sum_0_strip_0 = vec4<f32>(0.0f);
        var sum_0_strip_1 = vec4<f32>(0.0f);
        var sum_0_strip_2 = vec4<f32>(0.0f);
        var sum_0_strip_3 = vec4<f32>(0.0f);
        var strip_2 = lane;
        for (; strip_2 + 384 < strips; strip_2 += 512) {
            {
                let input_a_value = input_a[row * 528 + strip_2];
                sum_0_strip_0 = sum_0_strip_0 + input_a_value;
            }
            {
                let input_a_value = input_a[row * 528 + strip_2 + 128];
                sum_0_strip_1 = sum_0_strip_1 + input_a_value;
            }
            {
                let input_a_value = input_a[row * 528 + strip_2 + 256];
                sum_0_strip_2 = sum_0_strip_2 + input_a_value;
            }
            {
                let input_a_value = input_a[row * 528 + strip_2 + 384];
                sum_0_strip_3 = sum_0_strip_3 + input_a_value;
            }
        }
        for (; strip_2 < strips; strip_2 += 128) {
            let input_a_value = input_a[row * 528 + strip_2];
            sum_0_strip_0 = sum_0_strip_0 + input_a_value;
        }
        var sum_0_all = sum_0_strip_0;
        sum_0_all = sum_0_all + sum_0_strip_1;
        sum_0_all = sum_0_all + sum_0_strip_2;
        sum_0_all = sum_0_all + sum_0_strip_3;
        sum_0 = sum_0 + ((sum_0_all.x + sum_0_all.z) + (sum_0_all.y + sum_0_all.w));
        for (var column_2 = row * 2112 + strips * 4 + lane; column_2 < stop_2; column_2 += 128) {
            let input_a_value = input_a[column_2 / 4][column_2 % 4];
            sum_0 = sum_0 + input_a_value;
        }
    }
    folded_sum_0[lane] = sum_0;
    workgroupBarrier();
    for (var reach = 64; reach > 0; reach /= 2) {
        if (lane < reach) {
            let other_sum_0 = folded_sum_0[lane + reach];
            sum_0 = sum_0 + other_sum_0;
            folded_sum_0[lane] = sum_0;
        }
        workgroupBarrier();
    }
    sum_0 = folded_sum_0[0];
    workgroupBarrier();
    if (lane == 0) {
        parts_0[row] = sum_0;
    }
}

// 1 groups of 32
@group(0) @binding(0) var<storage, read_write> t0: array<f32, 1>;
@group(0) @binding(1) var<storage, read> parts_1: array<vec4<f32>, 32>;

var<private> zero: u32;

var<workgroup> folded_sum_1: array<f32, 32>;

@compute @workgroup_size(32)
fn divide_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let row = 0;
    var sum_1 = 0.0f;
    {
        var sum_1_strip = vec4<f32>(0.0f);
        for (var strip_2 = lane; strip_2 < 32; strip_2 += 32) {
            let parts_1_value = parts_1[strip_2];
            sum_1_strip = sum_1_strip + parts_1_value;
        }
        sum_1 = sum_1 + ((sum_1_strip.x + sum_1_strip.z) + (sum_1_strip.y + sum_1_strip.w));
    }
    folded_sum_1[lane] = sum_1;
    workgroupBarrier();
    for (var reach = 16; reach > 0; reach /= 2) {
        if (lane < reach) {
            let other_sum_1 = folded_sum_1[lane + reach];
            sum_1 = sum_1 + other_sum_1;
            folded_sum_1[lane] = sum_1;
        }
        workgroupBarrier();
    }
    sum_1 = folded_sum_1[0];
    workgroupBarrier();
    let result_1 = sum_1 + bitcast<f32>(0x0u ^ zero);
    let divide_0 = result_1 / 263425.0f;
    if (lane == 0) {
        t0[0] = divide_0;
    }
}
