// 63 groups of 32
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

static float infinity_f32(void) {
    return as_float((uint)0x7f800000u);
}

static float maximum_f32(float x, float y) {
    return x > y || isnan(x) ? x : y;
}

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void divide_0(__global const float *restrict input_a, __global float *restrict t0) {
    __local float folded_max_1[32];
    __local float folded_sum_2[32];
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = group;
    float max_1 = -infinity_f32();
    {
        float4 max_1_strip = (float4)(max_1);
        for (int strip_3 = lane; strip_3 < 64; strip_3 += 32) {
            const float4 input_a_value = vload4(0, input_a + row * 257 + strip_3 * 4);
            max_1_strip = select(input_a_value, max_1_strip, (max_1_strip > input_a_value) | (max_1_strip != max_1_strip));
        }
        const float2 max_1_2 = select(max_1_strip.hi, max_1_strip.lo, (max_1_strip.lo > max_1_strip.hi) | (max_1_strip.lo != max_1_strip.lo));
        max_1 = maximum_f32(max_1, maximum_f32(max_1_2.s0, max_1_2.s1));
        for (int column_3 = 256 + lane; column_3 < 257; column_3 += 32) {
            const float input_a_value = input_a[row * 257 + column_3];
            max_1 = maximum_f32(max_1, input_a_value);
        }
    }
    folded_max_1[lane] = max_1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int reach = 16; reach > 0; reach /= 2) {
        if (lane < reach) {
            const float other_max_1 = folded_max_1[lane + reach];
            max_1 = maximum_f32(max_1, other_max_1);
            folded_max_1[lane] = max_1;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    max_1 = folded_max_1[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum_2 = 0.0f;
    {
        float4 sum_2_strip = (float4)(0.0f);
        for (int strip_4 = lane; strip_4 < 64; strip_4 += 32) {
            const float4 input_a_value_2 = vload4(0, input_a + row * 257 + strip_4 * 4);
            const float4 subtract_5 = input_a_value_2 - max_1;
            const float4 exp_6 = exp_f32x4(subtract_5);
            vstore4(exp_6, 0, t0 + row * 257 + strip_4 * 4);
            sum_2_strip = sum_2_strip + exp_6;
        }
        const float2 sum_2_2 = sum_2_strip.lo + sum_2_strip.hi;
        sum_2 = sum_2 + (sum_2_2.s0 + sum_2_2.s1);
        for (int column_4 = 256 + lane; column_4 < 257; column_4 += 32) {
            const float input_a_value_2 = input_a[row * 257 + column_4];
            const float subtract_5 = input_a_value_2 - max_1;
            const float exp_6 = exp_f32(subtract_5);
            t0[row * 257 + column_4] = exp_6;
            sum_2 = sum_2 + exp_6;
        }
    }
    folded_sum_2[lane] = sum_2;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int reach = 16; reach > 0; reach /= 2) {
        if (lane < reach) {
            const float other_sum_2 = folded_sum_2[lane + reach];
            sum_2 = sum_2 + other_sum_2;
            folded_sum_2[lane] = sum_2;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    sum_2 = folded_sum_2[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    const float result_2 = sum_2 + 0.0f;
    for (int strip_5 = lane; strip_5 < 64; strip_5 += 32) {
        const float4 kept_6 = vload4(0, t0 + row * 257 + strip_5 * 4);
        const float4 divide_0 = kept_6 / result_2;
        vstore4(divide_0, 0, t0 + row * 257 + strip_5 * 4);
    }
    for (int column_5 = 256 + lane; column_5 < 257; column_5 += 32) {
        const float kept_6 = t0[row * 257 + column_5];
        const float divide_0 = kept_6 / result_2;
        t0[row * 257 + column_5] = divide_0;
    }
}
