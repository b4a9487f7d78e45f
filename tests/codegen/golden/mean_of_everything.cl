// 16 groups of 1
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void divide_0_parts(__global const float *restrict input_a, __global float *restrict parts_1) {
    const int group = (int)get_group_id(0);
    const int row = group;
    const int stop_2 = min(row * 16512 + 16512, 263425);
    float sum_1 = 0.0f;
    {
        const int strips = (stop_2 - (row * 16512)) / 8;
        float8 sum_1_strips[4] = {(float8)(0.0f), (float8)(0.0f), (float8)(0.0f), (float8)(0.0f)};
        int strip_2 = 0;
        for (; strip_2 + 3 < strips; strip_2 += 4) {
            #pragma unroll
            for (int chain = 0; chain < 4; chain++) {
                const float8 input_a_value = *(__global const loose_float8 *)(input_a + (row * 16512 + strip_2 * 8) + chain * 8);
                sum_1_strips[chain] = sum_1_strips[chain] + input_a_value;
            }
        }
        for (; strip_2 < strips; strip_2 += 1) {
            const float8 input_a_value = *(__global const loose_float8 *)(input_a + (row * 16512 + strip_2 * 8));
            sum_1_strips[0] = sum_1_strips[0] + input_a_value;
        }
        float8 sum_1_all = sum_1_strips[0];
        sum_1_all = sum_1_all + sum_1_strips[1];
        sum_1_all = sum_1_all + sum_1_strips[2];
        sum_1_all = sum_1_all + sum_1_strips[3];
        const float4 sum_1_4 = sum_1_all.lo + sum_1_all.hi;
        const float2 sum_1_2 = sum_1_4.lo + sum_1_4.hi;
        sum_1 = sum_1 + (sum_1_2.s0 + sum_1_2.s1);
        for (int column_2 = row * 16512 + strips * 8; column_2 < stop_2; column_2 += 1) {
            const float input_a_value = input_a[column_2];
            sum_1 = sum_1 + input_a_value;
        }
    }
    parts_1[row] = sum_1;
}

// 1 groups of 1
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void divide_0(__global float *restrict t0, __global const float *restrict parts_1) {
    const int group = (int)get_group_id(0);
    const int row = 0;
    float sum_1 = 0.0f;
    {
        float8 sum_1_strip = (float8)(0.0f);
        for (int strip_2 = 0; strip_2 < 2; strip_2 += 1) {
            const float8 parts_1_value = *(__global const loose_float8 *)(parts_1 + strip_2 * 8);
            sum_1_strip = sum_1_strip + parts_1_value;
        }
        const float4 sum_1_4 = sum_1_strip.lo + sum_1_strip.hi;
        const float2 sum_1_2 = sum_1_4.lo + sum_1_4.hi;
        sum_1 = sum_1 + (sum_1_2.s0 + sum_1_2.s1);
    }
    const float result_1 = sum_1 + 0.0f;
    const float divide_0 = result_1 / 263425.0f;
    t0[0] = divide_0;
}
