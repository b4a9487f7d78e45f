// 8 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void flip_0(__global const uchar *restrict input_a, __global uchar *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 64 + lane;
    if (block >= 504) {
        return;
    }
    if (block < 503) {
        for (int part = 0; part < 8; part += 1) {
            const uint input_a_value = input_a[((block * 8 + part) % 65) * 63 - ((block * 8 + part) / 65) + 62];
            t0[block * 8 + part] = input_a_value;
        }
    }
    if (block == 503) {
        for (int i = 4024; i < 4030; i += 1) {
            const uint input_a_value = input_a[(i % 65) * 63 - (i / 65) + 62];
            t0[i] = input_a_value;
        }
    }
}
