// 1 groups of 16
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void pad_0(__global const float *restrict input_a, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 15) {
        return;
    }
    for (int part = 0; part < 8; part += 1) {
        const bool inside = ((((block * 8 + part) / 12 - 1) >= 0) && (((block * 8 + part) / 12 - 1) < 7)) && (((block * 8 + part) % 12) < 9);
        const float input_a_value = input_a[clamp((block * 8 + part) / 12 - 1, 0, 6) * 9 + clamp((block * 8 + part) % 12, 0, 8)];
        const float padded = inside ? input_a_value : 0.0f;
        t0[block * 8 + part] = padded;
    }
}
