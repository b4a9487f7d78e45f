// 63 groups of 1
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

static float infinity_f32(void) {
    return as_float((uint)0x7f800000u);
}

static float maximum_f32(float x, float y) {
    return x > y || isnan(x) ? x : y;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void divide_0(__global const float *restrict input_a, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int row = group;
    float max_1 = -infinity_f32();
    {
        float8 max_1_strips[4] = {(float8)(max_1), (float8)(max_1), (float8)(max_1), (float8)(max_1)};
        for (int strip_2 = 0; strip_2 < 32; strip_2 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 input_a_value = vload8(0, input_a + row * 257 + strip_2 * 8 + chain * 8);
                max_1_strips[chain] = select(input_a_value, max_1_strips[chain], (max_1_strips[chain] > input_a_value) | (max_1_strips[chain] != max_1_strips[chain]));
            }
        }
        float8 max_1_all = max_1_strips[0];
        max_1_all = select(max_1_strips[1], max_1_all, (max_1_all > max_1_strips[1]) | (max_1_all != max_1_all));
        max_1_all = select(max_1_strips[2], max_1_all, (max_1_all > max_1_strips[2]) | (max_1_all != max_1_all));
        max_1_all = select(max_1_strips[3], max_1_all, (max_1_all > max_1_strips[3]) | (max_1_all != max_1_all));
        const float4 max_1_4 = select(max_1_all.hi, max_1_all.lo, (max_1_all.lo > max_1_all.hi) | (max_1_all.lo != max_1_all.lo));
        const float2 max_1_2 = select(max_1_4.hi, max_1_4.lo, (max_1_4.lo > max_1_4.hi) | (max_1_4.lo != max_1_4.lo));
        max_1 = maximum_f32(max_1, maximum_f32(max_1_2.s0, max_1_2.s1));
        for (int column_2 = 256; column_2 < 257; column_2 += 1) {
            const float input_a_value = input_a[row * 257 + column_2];
            max_1 = maximum_f32(max_1, input_a_value);
        }
    }
    float sum_3 = 0.0f;
    {
        float8 sum_3_strips[4] = {(float8)(0.0f), (float8)(0.0f), (float8)(0.0f), (float8)(0.0f)};
        for (int strip_4 = 0; strip_4 < 32; strip_4 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 input_a_value_2 = vload8(0, input_a + row * 257 + strip_4 * 8 + chain * 8);
                const float8 subtract_5 = input_a_value_2 - max_1;
                const float8 exp_6 = exp_f32x8(subtract_5);
                *(__global loose_float8 *)(t0 + row * 257 + strip_4 * 8 + chain * 8) = exp_6;
                sum_3_strips[chain] = sum_3_strips[chain] + exp_6;
            }
        }
        float8 sum_3_all = sum_3_strips[0];
        sum_3_all = sum_3_all + sum_3_strips[1];
        sum_3_all = sum_3_all + sum_3_strips[2];
        sum_3_all = sum_3_all + sum_3_strips[3];
        const float4 sum_3_4 = sum_3_all.lo + sum_3_all.hi;
        const float2 sum_3_2 = sum_3_4.lo + sum_3_4.hi;
        sum_3 = sum_3 + (sum_3_2.s0 + sum_3_2.s1);
        for (int column_4 = 256; column_4 < 257; column_4 += 1) {
            const float input_a_value_2 = input_a[row * 257 + column_4];
            const float subtract_5 = input_a_value_2 - max_1;
            const float exp_6 = exp_f32(subtract_5);
            t0[row * 257 + column_4] = exp_6;
            sum_3 = sum_3 + exp_6;
        }
    }
    const float result_3 = sum_3 + 0.0f;
    for (int strip_5 = 0; strip_5 < 32; strip_5 += 1) {
        const float8 kept_6 = vload8(0, t0 + row * 257 + strip_5 * 8);
        const float8 divide_0 = kept_6 / result_3;
        *(__global loose_float8 *)(t0 + row * 257 + strip_5 * 8) = divide_0;
    }
    for (int column_5 = 256; column_5 < 257; column_5 += 1) {
        const float kept_6 = t0[row * 257 + column_5];
        const float divide_0 = kept_6 / result_3;
        t0[row * 257 + column_5] = divide_0;
    }
}
