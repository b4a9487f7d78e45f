// 1 groups of 64
#pragma OPENCL FP_CONTRACT OFF
typedef int8 loose_int8 __attribute__((aligned(4)));
typedef long8 loose_long8 __attribute__((aligned(8)));

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void select_0(__global const int *restrict input_a, __global long *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 33) {
        return;
    }
    if (block < 32) {
        const int8 input_a_value = *(__global const loose_int8 *)(input_a + block * 8);
        const long8 cast_1 = convert_long8(input_a_value);
        const int8 less_2 = convert_int8((cast_1 < (long8)(0L)));
        const long8 add_3 = as_long8(as_ulong8(cast_1) + as_ulong8((long8)(65L)));
        const long8 select_0 = select(cast_1, add_3, convert_long8(less_2));
        *(__global loose_long8 *)(t0 + block * 8) = select_0;
    }
    if (block == 32) {
        for (int i = 256; i < 257; i += 1) {
            const int input_a_value = input_a[i];
            const long cast_1 = convert_long(input_a_value);
            const bool less_2 = cast_1 < 0L;
            const long add_3 = as_long(as_ulong(cast_1) + as_ulong(65L));
            const long select_0 = less_2 ? add_3 : cast_1;
            t0[i] = select_0;
        }
    }
}

// 2 groups of 64
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void gather_0(__global const float *restrict input_a, __global const long *restrict t1, __global float *restrict t0, __global uint *restrict status) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 64 + lane;
    if (block >= 97) {
        return;
    }
    if (block < 96) {
        for (int part = 0; part < 8; part += 1) {
            const long t1_value = t1[(block * 8 + part) / 3];
            if ((t1_value < 0L) || (t1_value >= 65L)) {
                status[0] = (convert_int(t1_value)) == -1 ? 2147483648u : (uint)(convert_int(t1_value)) + 1u;
            }
            const int at_0 = min(max(convert_int(t1_value), 0), 64);
            const float input_a_value = input_a[at_0 * 3 + ((block * 8 + part) % 3)];
            t0[block * 8 + part] = input_a_value;
        }
    }
    if (block == 96) {
        for (int i = 768; i < 771; i += 1) {
            const long t1_value = t1[i / 3];
            if ((t1_value < 0L) || (t1_value >= 65L)) {
                status[0] = (convert_int(t1_value)) == -1 ? 2147483648u : (uint)(convert_int(t1_value)) + 1u;
            }
            const int at_0 = min(max(convert_int(t1_value), 0), 64);
            const float input_a_value = input_a[at_0 * 3 + (i % 3)];
            t0[i] = input_a_value;
        }
    }
}
