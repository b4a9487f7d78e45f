// 1 groups of 64
#pragma OPENCL FP_CONTRACT OFF
typedef long8 loose_long8 __attribute__((aligned(8)));

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void select_10(__global const int *restrict input_b, __global long *restrict t10) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 33) {
        return;
    }
    if (block < 32) {
        const int8 b = vload8(block, input_b);
        const long8 cast_3 = convert_long8(b);
        const int8 less_6 = convert_int8((cast_3 < (long8)(0L)));
        const long8 add_9 = cast_3 + 65L;
        const long8 select_10 = select(cast_3, add_9, convert_long8(less_6));
        *(__global loose_long8 *)(t10 + block * 8) = select_10;
    }
    if (block == 32) {
        for (int i = 256; i < 257; i += 1) {
            const int b = input_b[i];
            const long cast_3 = convert_long(b);
            const bool less_6 = cast_3 < 0L;
            const long add_9 = cast_3 + 65L;
            const long select_10 = less_6 ? add_9 : cast_3;
            t10[i] = select_10;
        }
    }
}

// 2 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void gather_11(__global const float *restrict input_a, __global const long *restrict t10, __global float *restrict t11, __global uint *restrict status) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 64 + lane;
    if (block >= 97) {
        return;
    }
    if (block < 96) {
        for (int part = 0; part < 8; part += 1) {
            const long t10_value = t10[(block * 8 + part) / 3];
            if ((t10_value < 0L) || (t10_value >= 65L)) {
                status[0] = max((uint)(convert_int(t10_value)) + 1u, 1u);
            }
            const int at_11 = min(max(convert_int(t10_value), 0), 64);
            const float a = input_a[at_11 * 3 + ((block * 8 + part) % 3)];
            t11[block * 8 + part] = a;
        }
    }
    if (block == 96) {
        for (int i = 768; i < 771; i += 1) {
            const long t10_value = t10[i / 3];
            if ((t10_value < 0L) || (t10_value >= 65L)) {
                status[0] = max((uint)(convert_int(t10_value)) + 1u, 1u);
            }
            const int at_11 = min(max(convert_int(t10_value), 0), 64);
            const float a = input_a[at_11 * 3 + (i % 3)];
            t11[i] = a;
        }
    }
}
