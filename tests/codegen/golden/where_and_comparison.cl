// 1 groups of 16
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void not_equal_6(__global const float *restrict input_a, __global const float *restrict input_b, __global uchar *restrict t6) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 9) {
        return;
    }
    if (block < 8) {
        const float8 a = vload8(block, input_a);
        const float8 b = vload8(block, input_b);
        const int8 greater_2 = a > b;
        const float8 select_3 = select(b, a, greater_2);
        const int8 not_equal_6 = select_3 != (float8)(0.0f);
        vstore8(convert_uchar8(not_equal_6 & 1), block, t6);
    }
    if (block == 8) {
        for (int i = 64; i < 65; i += 1) {
            const float a = input_a[i];
            const float b = input_b[i];
            const bool greater_2 = a > b;
            const float select_3 = greater_2 ? a : b;
            const bool not_equal_6 = select_3 != 0.0f;
            t6[i] = not_equal_6;
        }
    }
}
