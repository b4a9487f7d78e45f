// 1 groups of 16
#pragma OPENCL FP_CONTRACT OFF
typedef float8 loose_float8 __attribute__((aligned(4)));

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void not_equal_0(__global const float *restrict input_a, __global const float *restrict input_b, __global uchar *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 9) {
        return;
    }
    if (block < 8) {
        const float8 input_a_value = *(__global const loose_float8 *)(input_a + block * 8);
        const float8 input_b_value = *(__global const loose_float8 *)(input_b + block * 8);
        const int8 greater_1 = input_a_value > input_b_value;
        const float8 select_2 = select(input_b_value, input_a_value, greater_1);
        const int8 not_equal_0 = select_2 != (float8)(0.0f);
        vstore8(convert_uchar8(not_equal_0 & 1), block, t0);
    }
    if (block == 8) {
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
