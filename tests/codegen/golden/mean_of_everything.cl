// 128 groups of 128
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void divide_0_parts(__global const float *restrict input_a, __global float *restrict parts_1) {
    __local float folded_sum_1[128];
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = group;
    const int stop_2 = min(row * 2112 + 2112, 263425);
    float sum_1 = 0.0f;
    {
        const int strips = (stop_2 - (row * 2112)) / 4;
        float4 sum_1_strip = (float4)(0.0f);
        for (int strip_2 = lane; strip_2 < strips; strip_2 += 128) {
            const float4 input_a_value = vload4(row * 528 + strip_2, input_a);
            sum_1_strip = sum_1_strip + input_a_value;
        }
        const float2 sum_1_2 = sum_1_strip.lo + sum_1_strip.hi;
        sum_1 = sum_1 + (sum_1_2.s0 + sum_1_2.s1);
        for (int column_2 = row * 2112 + strips * 4 + lane; column_2 < stop_2; column_2 += 128) {
            const float input_a_value = input_a[column_2];
            sum_1 = sum_1 + input_a_value;
        }
    }
    folded_sum_1[lane] = sum_1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int reach = 64; reach > 0; reach /= 2) {
        if (lane < reach) {
            const float other_sum_1 = folded_sum_1[lane + reach];
            sum_1 = sum_1 + other_sum_1;
            folded_sum_1[lane] = sum_1;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    sum_1 = folded_sum_1[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {
        parts_1[row] = sum_1;
    }
}

// 1 groups of 32
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void divide_0(__global float *restrict t0, __global const float *restrict parts_1) {
    __local float folded_sum_1[32];
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = 0;
    float sum_1 = 0.0f;
    {
        float4 sum_1_strip = (float4)(0.0f);
        for (int strip_2 = lane; strip_2 < 32; strip_2 += 32) {
            const float4 parts_1_value = vload4(strip_2, parts_1);
            sum_1_strip = sum_1_strip + parts_1_value;
        }
        const float2 sum_1_2 = sum_1_strip.lo + sum_1_strip.hi;
        sum_1 = sum_1 + (sum_1_2.s0 + sum_1_2.s1);
    }
    folded_sum_1[lane] = sum_1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int reach = 16; reach > 0; reach /= 2) {
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
    const float divide_0 = result_1 / 263425.0f;
    if (lane == 0) {
        t0[0] = divide_0;
    }
}
