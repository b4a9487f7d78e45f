// 65 groups of 1
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void add_0(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int row = group;
    float sum_1 = 0.0f;
    {
        float8 sum_1_strips[4] = {(float8)(0.0f), (float8)(0.0f), (float8)(0.0f), (float8)(0.0f)};
        int strip_2 = 0;
        for (; strip_2 + 3 < 127; strip_2 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 input_a_value = *(__global const loose_float8 *)(input_a + (row * 1023 + strip_2 * 8) + chain * 8);
                sum_1_strips[chain] = sum_1_strips[chain] + input_a_value;
            }
        }
        for (; strip_2 < 127; strip_2 += 1) {
            const float8 input_a_value = *(__global const loose_float8 *)(input_a + (row * 1023 + strip_2 * 8));
            sum_1_strips[0] = sum_1_strips[0] + input_a_value;
        }
        float8 sum_1_all = sum_1_strips[0];
        sum_1_all = sum_1_all + sum_1_strips[1];
        sum_1_all = sum_1_all + sum_1_strips[2];
        sum_1_all = sum_1_all + sum_1_strips[3];
        const float4 sum_1_4 = sum_1_all.lo + sum_1_all.hi;
        const float2 sum_1_2 = sum_1_4.lo + sum_1_4.hi;
        sum_1 = sum_1 + (sum_1_2.s0 + sum_1_2.s1);
        for (int column_2 = 1016; column_2 < 1023; column_2 += 1) {
            const float input_a_value = input_a[row * 1023 + column_2];
            sum_1 = sum_1 + input_a_value;
        }
    }
    const float result_1 = sum_1 + 0.0f;
    float sum_3 = 0.0f;
    const float divide_4 = result_1 / 1023.0f;
    {
        float8 sum_3_strips[4] = {(float8)(0.0f), (float8)(0.0f), (float8)(0.0f), (float8)(0.0f)};
        int strip_1 = 0;
        for (; strip_1 + 3 < 127; strip_1 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 input_a_value_2 = *(__global const loose_float8 *)(input_a + (row * 1023 + strip_1 * 8) + chain * 8);
                const float8 subtract_5 = input_a_value_2 - divide_4;
                const float8 multiply_6 = subtract_5 * subtract_5;
                sum_3_strips[chain] = sum_3_strips[chain] + multiply_6;
            }
        }
        for (; strip_1 < 127; strip_1 += 1) {
            const float8 input_a_value_2 = *(__global const loose_float8 *)(input_a + (row * 1023 + strip_1 * 8));
            const float8 subtract_5 = input_a_value_2 - divide_4;
            const float8 multiply_6 = subtract_5 * subtract_5;
            sum_3_strips[0] = sum_3_strips[0] + multiply_6;
        }
        float8 sum_3_all = sum_3_strips[0];
        sum_3_all = sum_3_all + sum_3_strips[1];
        sum_3_all = sum_3_all + sum_3_strips[2];
        sum_3_all = sum_3_all + sum_3_strips[3];
        const float4 sum_3_4 = sum_3_all.lo + sum_3_all.hi;
        const float2 sum_3_2 = sum_3_4.lo + sum_3_4.hi;
        sum_3 = sum_3 + (sum_3_2.s0 + sum_3_2.s1);
        for (int column_1 = 1016; column_1 < 1023; column_1 += 1) {
            const float input_a_value_2 = input_a[row * 1023 + column_1];
            const float subtract_5 = input_a_value_2 - divide_4;
            const float multiply_6 = subtract_5 * subtract_5;
            sum_3 = sum_3 + multiply_6;
        }
    }
    const float result_3 = sum_3 + 0.0f;
    const float divide_7 = result_3 / 1023.0f;
    const float add_8 = divide_7 + 1e-05f;
    const float sqrt_9 = sqrt(add_8);
    for (int strip_10 = 0; strip_10 < 127; strip_10 += 1) {
        const float8 input_a_value_3 = *(__global const loose_float8 *)(input_a + (row * 1023 + strip_10 * 8));
        const float8 subtract_5_2 = input_a_value_3 - divide_4;
        const float8 divide_11 = subtract_5_2 / sqrt_9;
        const float8 input_b_value = *(__global const loose_float8 *)(input_b + strip_10 * 8);
        const float8 multiply_12 = divide_11 * input_b_value;
        const float8 input_c_value = *(__global const loose_float8 *)(input_c + strip_10 * 8);
        const float8 add_0 = multiply_12 + input_c_value;
        *(__global loose_float8 *)(t0 + (row * 1023 + strip_10 * 8)) = add_0;
    }
    for (int column_10 = 1016; column_10 < 1023; column_10 += 1) {
        const float input_a_value_3 = input_a[row * 1023 + column_10];
        const float subtract_5_2 = input_a_value_3 - divide_4;
        const float divide_11 = subtract_5_2 / sqrt_9;
        const float input_b_value = input_b[column_10];
        const float multiply_12 = divide_11 * input_b_value;
        const float input_c_value = input_c[column_10];
        const float add_0 = multiply_12 + input_c_value;
        t0[row * 1023 + column_10] = add_0;
    }
}
