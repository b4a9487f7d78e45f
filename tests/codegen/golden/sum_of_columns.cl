// 16 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void sum_0_parts(__global const float *restrict input_a, __global float *restrict parts_0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = group * 64 + lane;
    if (row >= 1008) {
        return;
    }
    const int stop_1 = min((row / 63) * 65 + 65, 1025);
    float sum_0 = 0.0f;
    for (int column_1 = (row / 63) * 65; column_1 < stop_1; column_1 += 1) {
        const float input_a_value = input_a[column_1 * 63 + (row % 63)];
        sum_0 = sum_0 + input_a_value;
    }
    parts_0[row] = sum_0;
}

// 1 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void sum_0(__global float *restrict t0, __global const float *restrict parts_0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = lane;
    if (row >= 63) {
        return;
    }
    float sum_0 = 0.0f;
    for (int column_1 = 0; column_1 < 16; column_1 += 1) {
        const float parts_0_value = parts_0[column_1 * 63 + row];
        sum_0 = sum_0 + parts_0_value;
    }
    const float result_0 = sum_0 + 0.0f;
    t0[row] = result_0;
}
