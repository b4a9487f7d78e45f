// 1 groups of 32
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void multiply_0(__global const float *restrict input_a, __global const float *restrict input_b, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 17) {
        return;
    }
    if (block < 16) {
        for (int part = 0; part < 4; part += 1) {
            const float input_a_value_re = input_a[block * 8 + part * 2];
            const float input_a_value_im = input_a[block * 8 + part * 2 + 1];
            const float input_b_value_re = input_b[block * 8 + part * 2];
            const float input_b_value_im = input_b[block * 8 + part * 2 + 1];
            const float multiply_0 = (input_a_value_re * input_b_value_re) - (input_a_value_im * input_b_value_im);
            const float multiply_0_2 = (input_a_value_re * input_b_value_im) + (input_a_value_im * input_b_value_re);
            t0[block * 8 + part * 2] = multiply_0;
            t0[block * 8 + part * 2 + 1] = multiply_0_2;
        }
    }
    if (block == 16) {
        for (int i = 64; i < 65; i += 1) {
            const float input_a_value_re = input_a[i * 2];
            const float input_a_value_im = input_a[i * 2 + 1];
            const float input_b_value_re = input_b[i * 2];
            const float input_b_value_im = input_b[i * 2 + 1];
            const float multiply_0 = (input_a_value_re * input_b_value_re) - (input_a_value_im * input_b_value_im);
            const float multiply_0_2 = (input_a_value_re * input_b_value_im) + (input_a_value_im * input_b_value_re);
            t0[i * 2] = multiply_0;
            t0[i * 2 + 1] = multiply_0_2;
        }
    }
}
