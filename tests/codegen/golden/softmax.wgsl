// 63 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<f32, 16191>;
@group(0) @binding(1) var<storage, read_write> t0: array<f32, 16191>;

var<private> zero: u32;

// value * 2^n in two steps, for neither 2^n nor the result has to be a normal number.
// The last bits of so large a number are a whole number: that of n, which is one, and two biases.
fn scale_f32(value: f32, n: f32) -> f32 {
    let exponents = bitcast<u32>(n + 12583166.0);
    let half = exponents >> 1u;
    return value * bitcast<f32>(half << 23) * bitcast<f32>((exponents - half) << 23);
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
fn expm1_tail_f32(r: f32) -> f32 {
    let square = r * r;
    var p = f32(0.001392639242);
    p = p * square + (0.008363345638 * r + 0.04166655242);
    p = p * square + (0.1666657627 * r + 0.5);
    return p;
}

// e^x * 2^shift. Farther from 0 than some limits all is infinity or 0 anyway.
fn scaled_exp_f32(x: f32, shift: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & ~0x80000000u;
    let t = bitcast<f32>(min(magnitude, 0x42d00000u) | (bits & 0x80000000u));
    let n = round(t * 1.44269504);
    let r = (t - n * 0.693359375) - n * -2.12194440e-4;
    let value = scale_f32(1.0 + (r + r * r * expm1_tail_f32(r)), n + shift);
    return select(value, x, magnitude > 0x7f800000u);
}

fn exp_f32(x: f32) -> f32 {
    return scaled_exp_f32(x, 0);
}

// The dialect has no constants that are not finite; these bits are a variable, so that they do not count as constants.
fn infinity_f32() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

fn isnan_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & ~0x80000000u) > 0x7f800000u;
}

fn maximum_f32(x: f32, y: f32) -> f32 {
    return select(y, x, x > y || isnan_f32(x));
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
    for (var reach = 16; reach > 0; reach /= 2) {
        if (lane < reach) {
            let other_max_1 = folded_max_1[lane + reach];
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
    for (var reach = 16; reach > 0; reach /= 2) {
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
    for (var column_5 = lane; column_5 < 257; column_5 += 32) {
        let kept_6 = t0[row * 257 + column_5];
        let divide_0 = kept_6 / result_2;
        t0[row * 257 + column_5] = divide_0;
    }
}
