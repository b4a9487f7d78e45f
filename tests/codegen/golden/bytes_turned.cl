// 8 groups of 128
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void flip_0(__global const uchar *restrict input_a, __global uchar *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 128 + lane;
    if (block >= 1008) {
        return;
    }
    if (block < 1007) {
        const uint4 input_a_value = (uint4)(input_a[((block * 4) % 65) * 63 - ((block * 4) / 65) + 62], input_a[((block * 4 + 1) % 65) * 63 - ((block * 4 + 1) / 65) + 62], input_a[((block * 4 + 2) % 65) * 63 - ((block * 4 + 2) / 65) + 62], input_a[((block * 4 + 3) % 65) * 63 - ((block * 4 + 3) / 65) + 62]);
        vstore4(convert_uchar4(input_a_value), block, t0);
    }
    if (block == 1007) {
        for (int i = 4028; i < 4030; i += 1) {
            const uint input_a_value = input_a[(i % 65) * 63 - (i / 65) + 62];
            t0[i] = input_a_value;
        }
    }
}
