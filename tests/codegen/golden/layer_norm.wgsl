// 65 groups of 64
@group(0) @binding(0) var<storage, read> input_a: array<f32, 66495>;
@group(0) @binding(1) var<storage, read> input_b: array<f32, 1023>;
@group(0) @binding(2) var<storage, read> input_c: array<f32, 1023>;
@group(0) @binding(3) var<storage, read_write> t0: array<f32, 66495>;

var<private> zero: u32;

fn nan_f32() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

// The dialect's root, for what it promises something; zeros, infinity and NaN are their own.
fn sqrt_f32(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & ~0x80000000u) == 0 || (bits & ~0x80000000u) > 0x7f800000u || bits == 0x7f800000u) {
        return x;
    }
    return select(sqrt(x), nan_f32(), bits >= 0x80000000u);
}

var<workgroup> folded_sum_1: array<f32, 64>;
var<workgroup> folded_sum_2: array<f32, 64>;

@compute @workgroup_size(64)
fn add_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let row = group;
    var sum_1 = 0.0f;
    for (var column_3 = lane; column_3 < 1023; column_3 += 64) {
        let input_a_value = input_a[row * 1023 + column_3];
        sum_1 = sum_1 + input_a_value;
    }
    folded_sum_1[lane] = sum_1;
    workgroupBarrier();
    for (var reach = 32; reach > 0; reach /= 2) {
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
    var sum_2 = 0.0f;
    let divide_4 = result_1 / 1023.0f;
    for (var column_1 = lane; column_1 < 1023; column_1 += 64) {
        let input_a_value_2 = input_a[row * 1023 + column_1];
        let subtract_5 = input_a_value_2 - divide_4;
        let multiply_6 = subtract_5 * subtract_5;
        sum_2 = sum_2 + multiply_6;
    }
    folded_sum_2[lane] = sum_2;
    workgroupBarrier();
    for (var reach = 32; reach > 0; reach /= 2) {
        if (lane < reach) {
            let other_sum_2 = folded_sum_2[lane + reach];
            sum_2 = sum_2 + other_sum_2;
            folded_sum_2[lane] = sum_2;
        }
        workgroupBarrier();
    }
    sum_2 = folded_sum_2[0];
    workgroupBarrier();
    let result_2 = sum_2 + bitcast<f32>(0x0u ^ zero);
    let divide_7 = result_2 / 1023.0f;
    let add_8 = divide_7 + 1e-05f;
    let sqrt_9 = sqrt_f32(bitcast<f32>(bitcast<u32>(add_8) ^ zero));
    for (var column_10 = lane; column_10 < 1023; column_10 += 64) {
        let input_a_value_3 = input_a[row * 1023 + column_10];
        let subtract_5_2 = input_a_value_3 - divide_4;
        let divide_11 = subtract_5_2 / bitcast<f32>(bitcast<u32>(sqrt_9) ^ zero);
        let input_b_value = input_b[column_10];
        let multiply_12 = bitcast<f32>(bitcast<u32>(divide_11) ^ zero) * input_b_value;
        let input_c_value = input_c[column_10];
        let add_0 = multiply_12 + input_c_value;
        t0[row * 1023 + column_10] = add_0;
    }
}
