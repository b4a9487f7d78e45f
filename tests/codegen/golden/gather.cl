// 1 groups of 128
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void select_0(__global const int *restrict input_a, __global long *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 65) {
        return;
    }
    if (block < 64) {
        const int4 input_a_value = vload4(block, input_a);
        const long4 cast_1 = convert_long4(input_a_value);
        const int4 less_2 = convert_int4((cast_1 < (long4)(0L)));
        const long4 add_3 = as_long4(as_ulong4(cast_1) + as_ulong4((long4)(65L)));
        const long4 select_0 = select(cast_1, add_3, convert_long4(less_2));
        vstore4(select_0, block, t0);
    }
    if (block == 64) {
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

// 2 groups of 128
#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void gather_0(__global const float *restrict input_a, __global const long *restrict t1, __global float *restrict t0, __global uint *restrict status) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = group * 128 + lane;
    if (block >= 193) {
        return;
    }
    if (block < 192) {
        const long4 t1_value = (long4)(t1[(block * 4) / 3], t1[(block * 4 + 1) / 3], t1[(block * 4 + 2) / 3], t1[(block * 4) / 3 + 1]);
        const int4 part_value_2 = (convert_int4((t1_value < (long4)(0L))) | convert_int4((t1_value >= (long4)(65L))));
        const int4 part_value_3 = convert_int4(t1_value);
        if (any(part_value_2)) {
            if (part_value_2.s0) { status[0] = (part_value_3.s0) == -1 ? 2147483648u : (uint)(part_value_3.s0) + 1u; }
            if (part_value_2.s1) { status[0] = (part_value_3.s1) == -1 ? 2147483648u : (uint)(part_value_3.s1) + 1u; }
            if (part_value_2.s2) { status[0] = (part_value_3.s2) == -1 ? 2147483648u : (uint)(part_value_3.s2) + 1u; }
            if (part_value_2.s3) { status[0] = (part_value_3.s3) == -1 ? 2147483648u : (uint)(part_value_3.s3) + 1u; }
        }
        const int4 at_0 = min(max(convert_int4(t1_value), (int4)(0)), (int4)(64));
        const float4 input_a_value = (float4)(input_a[at_0.s0 * 3 + ((block * 4) % 3)], input_a[at_0.s1 * 3 + ((block * 4 + 1) % 3)], input_a[at_0.s2 * 3 + ((block * 4 + 2) % 3)], input_a[at_0.s3 * 3 + ((block * 4) % 3)]);
        vstore4(input_a_value, block, t0);
    }
    if (block == 192) {
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
