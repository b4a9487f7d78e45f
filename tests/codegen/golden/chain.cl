// 3 groups of 128
#pragma OPENCL FP_CONTRACT OFF

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
static float4 expm1_tail_f32x4(float4 r) {
    #pragma OPENCL FP_CONTRACT ON
    float4 p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// e^x * 2^shift. Farther from 0 than some limits all is infinity or 0 anyway.
// Limits are taken so that NaN stays what it is. The sum with 12582912.0f rounds to a whole number n, as nearest_f32x4 does, and has
// n in its lowest bits: shifted up, all that is above is gone, without a sign that could overflow. 2^n comes in two
// factors, for neither 2^n nor the result has to be a normal number.
static float4 scaled_exp_f32x4(float4 x, int shift) {
    #pragma OPENCL FP_CONTRACT ON
    const float4 bounded = (float4)-104.0f > x ? (float4)-104.0f : x;
    const float4 t = (float4)91.0f < bounded ? (float4)91.0f : bounded;
    const float4 sum = t * 1.44269504f + 12582912.0f;
    const float4 n = sum - 12582912.0f;
    const float4 r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    const float4 tail = r * r * expm1_tail_f32x4(r) + r;
    const uint4 exponent = as_uint4(sum) + (uint4)shift;
    const uint4 half_of_it = exponent >> 1;
    const float4 first = as_float4((half_of_it << 23) + ((uint4)127 << 23));
    const float4 second = as_float4(((exponent - half_of_it) << 23) + ((uint4)127 << 23));
    return (first * tail + first) * second;
}

static float4 exp_f32x4(float4 x) {
    return scaled_exp_f32x4(x, 0);
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
static float4 bounded_expm1_f32x4(float4 x) {
    #pragma OPENCL FP_CONTRACT ON
    const float4 sum = x * 1.44269504f + 12582912.0f;
    const float4 n = sum - 12582912.0f;
    const float4 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float4 p = r * r * expm1_tail_f32x4(r) + r;
    const float4 halved = as_float4((as_uint4(sum) << 23) + ((uint4)(127 - 1) << 23));
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond 10.0f, or the bits of it, it is 1; NaN stays what it is.
static float4 tanh_f32x4(float4 x) {
    const float4 a = fabs(x);
    const float4 t = bounded_expm1_f32x4(2.0f * ((float4)10.0f < a ? (float4)10.0f : a));
    return copysign(t / (t + 2.0f), x);
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void divide_0(__global const float *restrict input_a, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 128 + lane;
    if (block >= 257) {
        return;
    }
    if (block < 256) {
        const float4 input_a_value = vload4(block, input_a);
        const float4 multiply_1 = input_a_value * input_a_value;
        const float4 divide_2 = multiply_1 / 2.0f;
        const float4 tanh_3 = tanh_f32x4(input_a_value);
        const float4 divide_4 = tanh_3 / 4.0f;
        const float4 add_5 = divide_2 + divide_4;
        const float4 subtract_6 = add_5 - 1.0f;
        const float4 negative_7 = -subtract_6;
        const float4 exp_8 = exp_f32x4(negative_7);
        const float4 add_9 = 1.0f + exp_8;
        const float4 divide_0 = 1.0f / add_9;
        vstore4(divide_0, block, t0);
    }
    if (block == 256) {
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
