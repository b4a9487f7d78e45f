// 1 groups of 16
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void multiply_2(__global const float *restrict input_a, __global const float *restrict input_b, __global float *restrict t2) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 9) {
        return;
    }
    if (block < 8) {
        for (int part = 0; part < 8; part += 1) {
            const float a_re = input_a[block * 16 + part * 2];
            const float a_im = input_a[block * 16 + part * 2 + 1];
            const float b_re = input_b[block * 16 + part * 2];
            const float b_im = input_b[block * 16 + part * 2 + 1];
            const float multiply_2 = (a_re * b_re) - (a_im * b_im);
            const float multiply_2_2 = (a_re * b_im) + (a_im * b_re);
            t2[block * 16 + part * 2] = multiply_2;
            t2[block * 16 + part * 2 + 1] = multiply_2_2;
        }
    }
    if (block == 8) {
        for (int i = 64; i < 65; i += 1) {
            const float a_re = input_a[i * 2];
            const float a_im = input_a[i * 2 + 1];
            const float b_re = input_b[i * 2];
            const float b_im = input_b[i * 2 + 1];
            const float multiply_2 = (a_re * b_re) - (a_im * b_im);
            const float multiply_2_2 = (a_re * b_im) + (a_im * b_re);
            t2[i * 2] = multiply_2;
            t2[i * 2 + 1] = multiply_2_2;
        }
    }
}
