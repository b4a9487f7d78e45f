// 3 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<vec4<f32>, 257>;
@group(0) @binding(1) var<storage, read_write> t0: array<vec4<f32>, 257>;

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

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
fn bounded_expm1_f32(x: f32) -> f32 {
    let n = round(x * 1.44269504);
    let r = (x - n * 0.693359375) - n * -2.12194440e-4;
    let p = r + r * r * expm1_tail_f32(r);
    let half = power_of_two_f32(i32(n) - 1);
    return (half * p + (half - 0.5)) * 2.0;
}

fn copysign_f32(x: f32, y: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & ~0x80000000u) | (bitcast<u32>(y) & 0x80000000u));
}

// Beyond, it is 1.
fn tanh_f32(x: f32) -> f32 {
    let t = bounded_expm1_f32(2.0 * min(abs(x), 10.0));
    return select(copysign_f32(t / (t + 2.0), x), x, isnan_f32(x));
}

@compute @workgroup_size(128)
fn divide_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let block = group * 128 + lane;
    if (block >= 257) {
        return;
    }
    if (block < 256) {
        let input_a_value = input_a[block];
        let multiply_1 = input_a_value * input_a_value;
        let divide_2 = multiply_1 / 2.0f;
        let tanh_3 = vec4<f32>(tanh_f32(input_a_value.x), tanh_f32(input_a_value.y), tanh_f32(input_a_value.z), tanh_f32(input_a_value.w));
        let divide_4 = tanh_3 / 4.0f;
        let add_5 = divide_2 + divide_4;
        let subtract_6 = bitcast<vec4<f32>>(bitcast<vec4<u32>>(add_5) ^ vec4<u32>(zero)) - 1.0f;
        let negative_7 = -subtract_6;
        let exp_8 = vec4<f32>(exp_f32(negative_7.x), exp_f32(negative_7.y), exp_f32(negative_7.z), exp_f32(negative_7.w));
        let add_9 = 1.0f + exp_8;
        let divide_0 = 1.0f / add_9;
        t0[block] = divide_0;
    }
    if (block == 256) {
        for (var i = 1024; i < 1025; i += 1) {
            let input_a_value = input_a[i / 4][i % 4];
            let multiply_1 = input_a_value * input_a_value;
            let divide_2 = multiply_1 / 2.0f;
            let tanh_3 = tanh_f32(input_a_value);
            let divide_4 = tanh_3 / 4.0f;
            let add_5 = divide_2 + divide_4;
            let subtract_6 = bitcast<f32>(bitcast<u32>(add_5) ^ zero) - 1.0f;
            let negative_7 = -subtract_6;
            let exp_8 = exp_f32(negative_7);
            let add_9 = 1.0f + exp_8;
            let divide_0 = 1.0f / add_9;
            t0[i / 4][i % 4] = divide_0;
        }
    }
}
