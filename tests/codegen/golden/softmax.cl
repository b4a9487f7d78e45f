// 63 groups of 1
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
                const float8 input_a_value = *(__global const loose_float8 *)(input_a + (row * 257 + strip_2 * 8) + chain * 8);
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
                const float8 input_a_value_2 = *(__global const loose_float8 *)(input_a + (row * 257 + strip_4 * 8) + chain * 8);
                const float8 subtract_5 = input_a_value_2 - max_1;
                const float8 exp_6 = exp_f32x8(subtract_5);
                *(__global loose_float8 *)(t0 + (row * 257 + strip_4 * 8) + chain * 8) = exp_6;
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
        const float8 kept_6 = *(__global loose_float8 *)(t0 + (row * 257 + strip_5 * 8));
        const float8 divide_0 = kept_6 / result_3;
        *(__global loose_float8 *)(t0 + (row * 257 + strip_5 * 8)) = divide_0;
    }
    for (int column_5 = 256; column_5 < 257; column_5 += 1) {
        const float kept_6 = t0[row * 257 + column_5];
        const float divide_0 = kept_6 / result_3;
        t0[row * 257 + column_5] = divide_0;
    }
}
