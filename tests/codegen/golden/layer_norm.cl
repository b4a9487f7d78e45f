// 65 groups of 1
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void add_23(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t23) {
    const int group = (int)get_group_id(0);
    const int row = group;
    float sum_3 = 0.0f;
    {
        float8 sum_3_strips[4] = {(float8)(0.0f), (float8)(0.0f), (float8)(0.0f), (float8)(0.0f)};
        int strip_2 = 0;
        for (; strip_2 + 3 < 127; strip_2 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 a = vload8(0, input_a + row * 1023 + strip_2 * 8 + chain * 8);
                sum_3_strips[chain] = sum_3_strips[chain] + a;
            }
        }
        for (; strip_2 < 127; strip_2 += 1) {
            const float8 a = vload8(0, input_a + row * 1023 + strip_2 * 8);
            sum_3_strips[0] = sum_3_strips[0] + a;
        }
        float8 sum_3_all = sum_3_strips[0];
        sum_3_all = sum_3_all + sum_3_strips[1];
        sum_3_all = sum_3_all + sum_3_strips[2];
        sum_3_all = sum_3_all + sum_3_strips[3];
        const float4 sum_3_4 = sum_3_all.lo + sum_3_all.hi;
        const float2 sum_3_2 = sum_3_4.lo + sum_3_4.hi;
        sum_3 = sum_3 + (sum_3_2.s0 + sum_3_2.s1);
        for (int column_2 = 1016; column_2 < 1023; column_2 += 1) {
            const float a = input_a[row * 1023 + column_2];
            sum_3 = sum_3 + a;
        }
    }
    float sum_11 = 0.0f;
    const float divide_7 = sum_3 / 1023.0f;
    {
        float8 sum_11_strips[4] = {(float8)(0.0f), (float8)(0.0f), (float8)(0.0f), (float8)(0.0f)};
        int strip_3 = 0;
        for (; strip_3 + 3 < 127; strip_3 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 a_2 = vload8(0, input_a + row * 1023 + strip_3 * 8 + chain * 8);
                const float8 subtract_9 = a_2 - divide_7;
                const float8 multiply_10 = subtract_9 * subtract_9;
                sum_11_strips[chain] = sum_11_strips[chain] + multiply_10;
            }
        }
        for (; strip_3 < 127; strip_3 += 1) {
            const float8 a_2 = vload8(0, input_a + row * 1023 + strip_3 * 8);
            const float8 subtract_9 = a_2 - divide_7;
            const float8 multiply_10 = subtract_9 * subtract_9;
            sum_11_strips[0] = sum_11_strips[0] + multiply_10;
        }
        float8 sum_11_all = sum_11_strips[0];
        sum_11_all = sum_11_all + sum_11_strips[1];
        sum_11_all = sum_11_all + sum_11_strips[2];
        sum_11_all = sum_11_all + sum_11_strips[3];
        const float4 sum_11_4 = sum_11_all.lo + sum_11_all.hi;
        const float2 sum_11_2 = sum_11_4.lo + sum_11_4.hi;
        sum_11 = sum_11 + (sum_11_2.s0 + sum_11_2.s1);
        for (int column_3 = 1016; column_3 < 1023; column_3 += 1) {
            const float a_2 = input_a[row * 1023 + column_3];
            const float subtract_9 = a_2 - divide_7;
            const float multiply_10 = subtract_9 * subtract_9;
            sum_11 = sum_11 + multiply_10;
        }
    }
    const float divide_13 = sum_11 / 1023.0f;
    const float add_16 = divide_13 + 1e-05f;
    const float sqrt_17 = sqrt(add_16);
    for (int strip_4 = 0; strip_4 < 127; strip_4 += 1) {
        const float8 a_3 = vload8(0, input_a + row * 1023 + strip_4 * 8);
        const float8 subtract_9_2 = a_3 - divide_7;
        const float8 divide_19 = subtract_9_2 / sqrt_17;
        const float8 b = vload8(strip_4, input_b);
        const float8 multiply_21 = divide_19 * b;
        const float8 c = vload8(strip_4, input_c);
        const float8 add_23 = multiply_21 + c;
        *(__global loose_float8 *)(t23 + row * 1023 + strip_4 * 8) = add_23;
    }
    for (int column_4 = 1016; column_4 < 1023; column_4 += 1) {
        const float a_3 = input_a[row * 1023 + column_4];
        const float subtract_9_2 = a_3 - divide_7;
        const float divide_19 = subtract_9_2 / sqrt_17;
        const float b = input_b[column_4];
        const float multiply_21 = divide_19 * b;
        const float c = input_c[column_4];
        const float add_23 = multiply_21 + c;
        t23[row * 1023 + column_4] = add_23;
    }
}
