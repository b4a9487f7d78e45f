// 1 groups of 32
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void pad_0(__global const float *restrict input_a, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 30) {
        return;
    }
    const int4 inside = (int4)((((block / 3 - 1) >= 0) && ((block / 3 - 1) < 7)) ? -1 : 0) & (((block % 3) * 4 + (int4)(0, 1, 2, 3)) < (int4)(9));
    const float4 input_a_value = (float4)(input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4, 0, 8)], input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4 + 1, 0, 8)], input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4 + 2, 0, 8)], input_a[clamp(block / 3 - 1, 0, 6) * 9 + clamp((block % 3) * 4 + 3, 0, 8)]);
    const float4 padded = select((float4)(0.0f), input_a_value, inside);
    vstore4(padded, block, t0);
}
