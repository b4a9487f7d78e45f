// 63 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<f32, 16191>;
@group(0) @binding(1) var<storage, read_write> t0: array<f32, 16191>;

var<private> zero: u32;

// 2^n, for exponents of normal numbers only.
fn power_of_two_f32(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23);
}

// value * 2^n in two steps, for neither 2^n nor the result has to be a normal number.
fn scale_f32(value: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return value * power_of_two_f32(half) * power_of_two_f32(n - half);
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
fn expm1_tail_f32(r: f32) -> f32 {
    var p = f32(0.001392639242);
    p = p * r + 0.008363345638;
    p = p * r + 0.04166655242;
    p = p * r + 0.1666657627;
    p = p * r + 0.5;
    return p;
}

// e^x * 2^shift. Beyond the limits all is infinity or 0 anyway; NaN is for the caller to replace.
fn scaled_exp_f32(x: f32, shift: i32) -> f32 {
    let t = clamp(x, -104.0, 91.0);
    let n = round(t * 1.44269504);
    let r = (t - n * 0.693359375) - n * -2.12194440e-4;
    return scale_f32(1.0 + (r + r * r * expm1_tail_f32(r)), i32(n) + shift);
}

fn isnan_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & ~0x80000000u) > 0x7f800000u;
}

fn exp_f32(x: f32) -> f32 {
    return select(scaled_exp_f32(x, 0), x, isnan_f32(x));
}

// The dialect has no constants that are not finite; these bits are a variable, so that they do not count as constants.
fn infinity_f32() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

fn maximum_f32(x: f32, y: f32) -> f32 {
    return select(y, x, x > y || (bitcast<u32>(x) & ~0x80000000u) > 0x7f800000u);
}

var<workgroup> folded_max_1: array<f32, 32>;
var<workgroup> folded_sum_2: array<f32, 32>;

@compute @workgroup_size(32)
fn divide_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let row = group;
    var max_1 = -infinity_f32();
    for (var column_3 = lane; column_3 < 257; column_3 += 32) {
        let input_a_value = input_a[row * 257 + column_3];
        max_1 = maximum_f32(max_1, input_a_value);
    }
    folded_max_1[lane] = max_1;
    workgroupBarrier();
    for (var half = 16; half > 0; half /= 2) {
        if (lane < half) {
            let other_max_1 = folded_max_1[lane + half];
            max_1 = maximum_f32(max_1, other_max_1);
            folded_max_1[lane] = max_1;
        }
        workgroupBarrier();
    }
    max_1 = folded_max_1[0];
    workgroupBarrier();
    var sum_2 = 0.0f;
    for (var column_4 = lane; column_4 < 257; column_4 += 32) {
        let input_a_value_2 = input_a[row * 257 + column_4];
        let subtract_5 = input_a_value_2 - max_1;
        let exp_6 = exp_f32(bitcast<f32>(bitcast<u32>(subtract_5) ^ zero));
        t0[row * 257 + column_4] = exp_6;
        sum_2 = sum_2 + exp_6;
    }
    folded_sum_2[lane] = sum_2;
    workgroupBarrier();
    for (var half = 16; half > 0; half /= 2) {
        if (lane < half) {
            let other_sum_2 = folded_sum_2[lane + half];
            sum_2 = sum_2 + other_sum_2;
            folded_sum_2[lane] = sum_2;
        }
        workgroupBarrier();
    }
    sum_2 = folded_sum_2[0];
    workgroupBarrier();
    let result_2 = sum_2 + bitcast<f32>(0x0u ^ zero);
    for (var column_5 = lane; column_5 < 257; column_5 += 32) {
        let kept_6 = t0[row * 257 + column_5];
        let divide_0 = kept_6 / result_2;
        t0[row * 257 + column_5] = divide_0;
    }
}
