// 3 groups of 64
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float expm1_tail_f32(float r) {
    #pragma OPENCL FP_CONTRACT ON
    float p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// e^x * 2^shift. Farther from 0 than some limits all is infinity or 0 anyway.
// Limits are taken so that NaN stays what it is. The sum with 12582912.0f rounds to a whole number n, as nearest_f32 does, and has
// n in its lowest bits: shifted up, all that is above is gone, without a sign that could overflow. 2^n comes in two
// factors, for neither 2^n nor the result has to be a normal number.
static float scaled_exp_f32(float x, int shift) {
    #pragma OPENCL FP_CONTRACT ON
    const float bounded = (float)-104.0f > x ? (float)-104.0f : x;
    const float t = (float)91.0f < bounded ? (float)91.0f : bounded;
    const float sum = t * 1.44269504f + 12582912.0f;
    const float n = sum - 12582912.0f;
    const float r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    const float tail = r * r * expm1_tail_f32(r) + r;
    const uint exponent = as_uint(sum) + (uint)shift;
    const uint half_of_it = exponent >> 1;
    const float first = as_float((half_of_it << 23) + ((uint)127 << 23));
    const float second = as_float(((exponent - half_of_it) << 23) + ((uint)127 << 23));
    return (first * tail + first) * second;
}

static float exp_f32(float x) {
    return scaled_exp_f32(x, 0);
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float8 expm1_tail_f32x8(float8 r) {
    #pragma OPENCL FP_CONTRACT ON
    float8 p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// e^x * 2^shift. Farther from 0 than some limits all is infinity or 0 anyway.
// Limits are taken so that NaN stays what it is. The sum with 12582912.0f rounds to a whole number n, as nearest_f32x8 does, and has
// n in its lowest bits: shifted up, all that is above is gone, without a sign that could overflow. 2^n comes in two
// factors, for neither 2^n nor the result has to be a normal number.
static float8 scaled_exp_f32x8(float8 x, int shift) {
    #pragma OPENCL FP_CONTRACT ON
    const float8 bounded = (float8)-104.0f > x ? (float8)-104.0f : x;
    const float8 t = (float8)91.0f < bounded ? (float8)91.0f : bounded;
    const float8 sum = t * 1.44269504f + 12582912.0f;
    const float8 n = sum - 12582912.0f;
    const float8 r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    const float8 tail = r * r * expm1_tail_f32x8(r) + r;
    const uint8 exponent = as_uint8(sum) + (uint8)shift;
    const uint8 half_of_it = exponent >> 1;
    const float8 first = as_float8((half_of_it << 23) + ((uint8)127 << 23));
    const float8 second = as_float8(((exponent - half_of_it) << 23) + ((uint8)127 << 23));
    return (first * tail + first) * second;
}

static float8 exp_f32x8(float8 x) {
    return scaled_exp_f32x8(x, 0);
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float bounded_expm1_f32(float x) {
    #pragma OPENCL FP_CONTRACT ON
    const float sum = x * 1.44269504f + 12582912.0f;
    const float n = sum - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p = r * r * expm1_tail_f32(r) + r;
    const float halved = as_float((as_uint(sum) << 23) + ((uint)(127 - 1) << 23));
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond 10.0f, or the bits of it, it is 1; NaN stays what it is.
static float tanh_f32(float x) {
    const float a = fabs(x);
    const float t = bounded_expm1_f32(2.0f * ((float)10.0f < a ? (float)10.0f : a));
    return copysign(t / (t + 2.0f), x);
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float8 bounded_expm1_f32x8(float8 x) {
    #pragma OPENCL FP_CONTRACT ON
    const float8 sum = x * 1.44269504f + 12582912.0f;
    const float8 n = sum - 12582912.0f;
    const float8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float8 p = r * r * expm1_tail_f32x8(r) + r;
    const float8 halved = as_float8((as_uint8(sum) << 23) + ((uint8)(127 - 1) << 23));
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond 10.0f, or the bits of it, it is 1; NaN stays what it is.
static float8 tanh_f32x8(float8 x) {
    const float8 a = fabs(x);
    const float8 t = bounded_expm1_f32x8(2.0f * ((float8)10.0f < a ? (float8)10.0f : a));
    return copysign(t / (t + 2.0f), x);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void divide_0(__global const float *restrict input_a, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 64 + lane;
    if (block >= 129) {
        return;
    }
    if (block < 128) {
        const float8 input_a_value = *(__global const loose_float8 *)(input_a + block * 8);
        const float8 multiply_1 = input_a_value * input_a_value;
        const float8 divide_2 = multiply_1 / 2.0f;
        const float8 tanh_3 = tanh_f32x8(input_a_value);
        const float8 divide_4 = tanh_3 / 4.0f;
        const float8 add_5 = divide_2 + divide_4;
        const float8 subtract_6 = add_5 - 1.0f;
        const float8 negative_7 = -subtract_6;
        const float8 exp_8 = exp_f32x8(negative_7);
        const float8 add_9 = 1.0f + exp_8;
        const float8 divide_0 = 1.0f / add_9;
        *(__global loose_float8 *)(t0 + block * 8) = divide_0;
    }
    if (block == 128) {
        for (int i = 1024; i < 1025; i += 1) {
            const float input_a_value = input_a[i];
            const float multiply_1 = input_a_value * input_a_value;
            const float divide_2 = multiply_1 / 2.0f;
            const float tanh_3 = tanh_f32(input_a_value);
            const float divide_4 = tanh_3 / 4.0f;
            const float add_5 = divide_2 + divide_4;
            const float subtract_6 = add_5 - 1.0f;
            const float negative_7 = -subtract_6;
            const float exp_8 = exp_f32(negative_7);
            const float add_9 = 1.0f + exp_8;
            const float divide_0 = 1.0f / add_9;
            t0[i] = divide_0;
        }
    }
}
