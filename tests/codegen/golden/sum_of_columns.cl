// 17 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void sum_1_parts(__global const float *restrict input_a, __global float *restrict parts_1) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int row = group * 64 + lane;
    if (row >= 1071) {
        return;
    }
    const int stop_2 = min((row / 63) * 61 + 61, 1025);
    float sum_1 = 0.0f;
    for (int column_2 = (row / 63) * 61; column_2 < stop_2; column_2 += 1) {
        const float a = input_a[column_2 * 63 + (row % 63)];
        sum_1 = sum_1 + a;
    }
    parts_1[row] = sum_1;
}

// 63 groups of 1
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void sum_1(__global float *restrict t1, __global const float *restrict parts_1) {
    const int group = (int)get_group_id(0);
    const int row = group;
    float sum_1 = 0.0f;
    for (int column_2 = 0; column_2 < 17; column_2 += 1) {
        const float parts_1_value = parts_1[column_2 * 63 + row];
        sum_1 = sum_1 + parts_1_value;
    }
    t1[row] = sum_1;
}
