// 1 groups of 32
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void not_equal_0(__global const float *restrict input_a, __global const float *restrict input_b, __global uchar *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 17) {
        return;
    }
    if (block < 16) {
        const float4 input_a_value = vload4(block, input_a);
        const float4 input_b_value = vload4(block, input_b);
        const int4 greater_1 = input_a_value > input_b_value;
        const float4 select_2 = select(input_b_value, input_a_value, greater_1);
        const int4 not_equal_0 = select_2 != (float4)(0.0f);
        vstore4(convert_uchar4(not_equal_0 & 1), block, t0);
    }
    if (block == 16) {
        for (int i = 64; i < 65; i += 1) {
            const float input_a_value = input_a[i];
            const float input_b_value = input_b[i];
            const bool greater_1 = input_a_value > input_b_value;
            const float select_2 = greater_1 ? input_a_value : input_b_value;
            const bool not_equal_0 = select_2 != 0.0f;
            t0[i] = not_equal_0;
        }
    }
}
