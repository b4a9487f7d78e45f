// 65 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void add_0(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0) {
    __local float folded_sum_1[64];
    __local float folded_sum_2[64];
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = group;
    float sum_1 = 0.0f;
    {
        float4 sum_1_strip = (float4)(0.0f);
        for (int strip_3 = lane; strip_3 < 255; strip_3 += 64) {
            const float4 input_a_value = vload4(0, input_a + row * 1023 + strip_3 * 4);
            sum_1_strip = sum_1_strip + input_a_value;
        }
        const float2 sum_1_2 = sum_1_strip.lo + sum_1_strip.hi;
        sum_1 = sum_1 + (sum_1_2.s0 + sum_1_2.s1);
        for (int column_3 = 1020 + lane; column_3 < 1023; column_3 += 64) {
            const float input_a_value = input_a[row * 1023 + column_3];
            sum_1 = sum_1 + input_a_value;
        }
    }
    folded_sum_1[lane] = sum_1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int reach = 32; reach > 0; reach /= 2) {
        if (lane < reach) {
            const float other_sum_1 = folded_sum_1[lane + reach];
            sum_1 = sum_1 + other_sum_1;
            folded_sum_1[lane] = sum_1;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    sum_1 = folded_sum_1[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    const float result_1 = sum_1 + 0.0f;
    float sum_2 = 0.0f;
    const float divide_4 = result_1 / 1023.0f;
    {
        float4 sum_2_strip = (float4)(0.0f);
        for (int strip_1 = lane; strip_1 < 255; strip_1 += 64) {
            const float4 input_a_value_2 = vload4(0, input_a + row * 1023 + strip_1 * 4);
            const float4 subtract_5 = input_a_value_2 - divide_4;
            const float4 multiply_6 = subtract_5 * subtract_5;
            sum_2_strip = sum_2_strip + multiply_6;
        }
        const float2 sum_2_2 = sum_2_strip.lo + sum_2_strip.hi;
        sum_2 = sum_2 + (sum_2_2.s0 + sum_2_2.s1);
        for (int column_1 = 1020 + lane; column_1 < 1023; column_1 += 64) {
            const float input_a_value_2 = input_a[row * 1023 + column_1];
            const float subtract_5 = input_a_value_2 - divide_4;
            const float multiply_6 = subtract_5 * subtract_5;
            sum_2 = sum_2 + multiply_6;
        }
    }
    folded_sum_2[lane] = sum_2;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int reach = 32; reach > 0; reach /= 2) {
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
    const float divide_7 = result_2 / 1023.0f;
    const float add_8 = divide_7 + 1e-05f;
    const float sqrt_9 = sqrt(add_8);
    for (int strip_10 = lane; strip_10 < 255; strip_10 += 64) {
        const float4 input_a_value_3 = vload4(0, input_a + row * 1023 + strip_10 * 4);
        const float4 subtract_5_2 = input_a_value_3 - divide_4;
        const float4 divide_11 = subtract_5_2 / sqrt_9;
        const float4 input_b_value = vload4(strip_10, input_b);
        const float4 multiply_12 = divide_11 * input_b_value;
        const float4 input_c_value = vload4(strip_10, input_c);
        const float4 add_0 = multiply_12 + input_c_value;
        vstore4(add_0, 0, t0 + row * 1023 + strip_10 * 4);
    }
    for (int column_10 = 1020 + lane; column_10 < 1023; column_10 += 64) {
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
