// 3 groups of 64
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static float nearest_f32(float x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// 2^n, for exponents of normal numbers only.
static float power_of_two_f32(int n) {
    return as_float((n + 127) << 23);
}

// value * 2^n in two steps, for neither 2^n nor the result has to be a normal number.
static float scale_f32(float value, int n) {
    const int first = n >> 1;
    return value * power_of_two_f32(first) * power_of_two_f32(n - first);
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float expm1_tail_f32(float r) {
    float p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// e^x * 2^shift. Beyond the limits all is infinity or 0 anyway; NaN is for the caller to replace.
static float scaled_exp_f32(float x, int shift) {
    const float t = clamp(x, -104.0f, 91.0f);
    const float n = nearest_f32(t * 1.44269504f);
    const float r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    return scale_f32(1.0f + (r + r * r * expm1_tail_f32(r)), convert_int(n) + shift);
}

static float exp_f32(float x) {
    return isnan(x) ? x : scaled_exp_f32(x, 0);
}

// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static float8 nearest_f32x8(float8 x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// 2^n, for exponents of normal numbers only.
static float8 power_of_two_f32x8(int8 n) {
    return as_float8((n + 127) << 23);
}

// value * 2^n in two steps, for neither 2^n nor the result has to be a normal number.
static float8 scale_f32x8(float8 value, int8 n) {
    const int8 first = n >> 1;
    return value * power_of_two_f32x8(first) * power_of_two_f32x8(n - first);
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float8 expm1_tail_f32x8(float8 r) {
    float8 p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// e^x * 2^shift. Beyond the limits all is infinity or 0 anyway; NaN is for the caller to replace.
static float8 scaled_exp_f32x8(float8 x, int shift) {
    const float8 t = clamp(x, -104.0f, 91.0f);
    const float8 n = nearest_f32x8(t * 1.44269504f);
    const float8 r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    return scale_f32x8(1.0f + (r + r * r * expm1_tail_f32x8(r)), convert_int8(n) + shift);
}

static float8 exp_f32x8(float8 x) {
    return isnan(x) ? x : scaled_exp_f32x8(x, 0);
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float bounded_expm1_f32(float x) {
    const float n = nearest_f32(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p = r + r * r * expm1_tail_f32(r);
    const float halved = power_of_two_f32(convert_int(n) - 1);
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond, it is 1.
static float tanh_f32(float x) {
    const float t = bounded_expm1_f32(2.0f * fmin(fabs(x), 10.0f));
    return isnan(x) ? x : copysign(t / (t + 2.0f), x);
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float8 bounded_expm1_f32x8(float8 x) {
    const float8 n = nearest_f32x8(x * 1.44269504f);
    const float8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float8 p = r + r * r * expm1_tail_f32x8(r);
    const float8 halved = power_of_two_f32x8(convert_int8(n) - 1);
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond, it is 1.
static float8 tanh_f32x8(float8 x) {
    const float8 t = bounded_expm1_f32x8(2.0f * fmin(fabs(x), 10.0f));
    return isnan(x) ? x : copysign(t / (t + 2.0f), x);
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
        const float8 input_a_value = vload8(block, input_a);
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
