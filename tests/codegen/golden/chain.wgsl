// 3 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<vec4<f32>, 257>;
@group(0) @binding(1) var<storage, read_write> t0: array<vec4<f32>, 257>;

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

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
fn half_expm1_f32(x: f32) -> f32 {
    let n = round(x * 1.44269504);
    let r = (x - n * 0.693359375) - n * -2.12194440e-4;
    let p = r + r * r * expm1_tail_f32(r);
    // As in scale_f32, with the bias of one less than n.
    let half = bitcast<f32>(bitcast<u32>(n + 12583038.0) << 23);
    return half * p + (half - 0.5);
}

fn copysign_f32(x: f32, y: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & ~0x80000000u) | (bitcast<u32>(y) & 0x80000000u));
}

// Beyond 10.0, or the bits of it, it is 1; NaN stays what it is.
// Half of e^2x - 1 is h, and h / (h + 1) the result.
fn tanh_f32(x: f32) -> f32 {
    let magnitude = bitcast<u32>(x) & ~0x80000000u;
    let h = half_expm1_f32(2.0 * bitcast<f32>(min(magnitude, 0x41200000u)));
    return select(copysign_f32(h / (h + 1.0), x), x, magnitude > 0x7f800000u);
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
