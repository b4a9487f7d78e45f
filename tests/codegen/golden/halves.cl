// 1 groups of 128
#pragma OPENCL FP_CONTRACT OFF

// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static float nearest_f32(float x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// By arithmetic: a normal number loses 13 bits, a subnormal one is a multiple of 2^-24.
static float round_f16(float x) {
    const uint bits = as_uint(x) & 0x7fffffffu;
    const uint normal = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    const float subnormal = nearest_f32(as_float(bits) * 16777216.0f) * 5.9604644775390625e-8f;
    const uint finite = bits < 0x38800000u ? as_uint(subnormal) : bits >= 0x477ff000u ? 0x7f800000u : normal;
    return copysign(isnan(x) ? x : as_float(finite), x);
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void multiply_0(__global const half *restrict input_a, __global half *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = (int)get_local_id(0);
    const int block = lane;
    if (block >= 65) {
        return;
    }
    if (block < 64) {
        const float4 input_a_value = vload_half4(block, input_a);
        const float4 part_value_0 = (input_a_value * input_a_value);
        const float4 multiply_0 = (float4)(round_f16(part_value_0.s0), round_f16(part_value_0.s1), round_f16(part_value_0.s2), round_f16(part_value_0.s3));
        vstore_half4_rte(multiply_0, block, t0);
    }
    if (block == 64) {
        for (int i = 256; i < 257; i += 1) {
            const float input_a_value = vload_half(i, input_a);
            const float multiply_0 = round_f16(input_a_value * input_a_value);
            vstore_half_rte(multiply_0, i, t0);
        }
    }
}
