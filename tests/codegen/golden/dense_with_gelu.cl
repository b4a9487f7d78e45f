// 36 groups of 1
// [65, 127] @ [127, 63]
// Every invocation keeps 8 x 16 totals in registers and reads the operands where they are.
#pragma OPENCL FP_CONTRACT ON
typedef float8 loose_float8 __attribute__((aligned(4)));
// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float expm1_tail_f32(float r) {
    #pragma OPENCL FP_CONTRACT ON
    float p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float bounded_expm1_f32(float x) {
    #pragma OPENCL FP_CONTRACT ON
    const float sum = x * 1.44269504f + 12582912.0f;
    const float n = sum - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p = r * r * expm1_tail_f32(r) + r;
    const float halved = as_float((as_uint(sum) << 23) + ((uint)(127 - 1) << 23));
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond 10.0f, or the bits of it, it is 1; NaN stays what it is.
static float tanh_f32(float x) {
    const float a = fabs(x);
    const float t = bounded_expm1_f32(2.0f * ((float)10.0f < a ? (float)10.0f : a));
    return copysign(t / (t + 2.0f), x);
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float8 expm1_tail_f32x8(float8 r) {
    #pragma OPENCL FP_CONTRACT ON
    float8 p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float8 bounded_expm1_f32x8(float8 x) {
    #pragma OPENCL FP_CONTRACT ON
    const float8 sum = x * 1.44269504f + 12582912.0f;
    const float8 n = sum - 12582912.0f;
    const float8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float8 p = r * r * expm1_tail_f32x8(r) + r;
    const float8 halved = as_float8((as_uint8(sum) << 23) + ((uint8)(127 - 1) << 23));
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond 10.0f, or the bits of it, it is 1; NaN stays what it is.
static float8 tanh_f32x8(float8 x) {
    const float8 a = fabs(x);
    const float8 t = bounded_expm1_f32x8(2.0f * ((float8)10.0f < a ? (float8)10.0f : a));
    return copysign(t / (t + 2.0f), x);
}

static inline float load_a(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int m, const int k) {
    const float input_a_value = input_a[m * 127 + k];
    return input_a_value;
}

static inline float load_b(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int k, const int n) {
    const float input_b_value = input_b[k * 63 + n];
    return input_b_value;
}

static inline void store_out(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int m, const int n, const float total) {
    const float input_c_value = input_c[n];
    const float add_1 = total + input_c_value;
    const float multiply_2 = 0.5f * add_1;
    const float multiply_3 = 0.044715f * add_1;
    const float multiply_4 = multiply_3 * add_1;
    const float multiply_5 = multiply_4 * add_1;
    const float add_6 = add_1 + multiply_5;
    const float multiply_7 = 0.7978846f * add_6;
    const float tanh_8 = tanh_f32(multiply_7);
    const float add_9 = 1.0f + tanh_8;
    const float multiply_0 = multiply_2 * add_9;
    t0[m * 63 + n] = multiply_0;
}

static inline float8 load_a_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int m, const int k) {
    const float8 input_a_value = *(__global const loose_float8 *)(input_a + (m * 127 + k));
    return input_a_value;
}

static inline float8 load_b_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int k, const int n) {
    const float8 input_b_value = *(__global const loose_float8 *)(input_b + (k * 63 + n));
    return input_b_value;
}

static inline void store_out_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int m, const int n, const float8 total) {
    const float8 input_c_value = *(__global const loose_float8 *)(input_c + n);
    const float8 add_1 = total + input_c_value;
    const float8 multiply_2 = 0.5f * add_1;
    const float8 multiply_3 = 0.044715f * add_1;
    const float8 multiply_4 = multiply_3 * add_1;
    const float8 multiply_5 = multiply_4 * add_1;
    const float8 add_6 = add_1 + multiply_5;
    const float8 multiply_7 = 0.7978846f * add_6;
    const float8 tanh_8 = tanh_f32x8(multiply_7);
    const float8 add_9 = 1.0f + tanh_8;
    const float8 multiply_0 = multiply_2 * add_9;
    *(__global loose_float8 *)(t0 + (m * 63 + n)) = multiply_0;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void multiply_0(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0) {
    const int group = (int)get_group_id(0);
    const int lane = get_local_id(0);
    const int batch = 0;
    const int first_row = group / 4 * 8;
    const int first_column = group % 4 * 16;
    // The last tiles end at the edge: what they have in common with others is not stored again.
    const int tile_row = min(first_row, 57);
    const int tile_column = min(first_column, 47);
    const int row = tile_row;
    const int column = tile_column;
    float8 total_10_0 = 0;
    float8 total_10_1 = 0;
    float8 total_11_0 = 0;
    float8 total_11_1 = 0;
    float8 total_12_0 = 0;
    float8 total_12_1 = 0;
    float8 total_13_0 = 0;
    float8 total_13_1 = 0;
    float8 total_14_0 = 0;
    float8 total_14_1 = 0;
    float8 total_15_0 = 0;
    float8 total_15_1 = 0;
    float8 total_16_0 = 0;
    float8 total_16_1 = 0;
    float8 total_1_0 = 0;
    float8 total_1_1 = 0;
    for (int k = 0; k < 124; k += 4) {
        const float a_10_0 = load_a(input_a, input_b, input_c, t0, batch, row, k);
        const float a_10_1 = load_a(input_a, input_b, input_c, t0, batch, row, k + 1);
        const float a_10_2 = load_a(input_a, input_b, input_c, t0, batch, row, k + 2);
        const float a_10_3 = load_a(input_a, input_b, input_c, t0, batch, row, k + 3);
        const float a_11_0 = load_a(input_a, input_b, input_c, t0, batch, row + 1, k);
        const float a_11_1 = load_a(input_a, input_b, input_c, t0, batch, row + 1, k + 1);
        const float a_11_2 = load_a(input_a, input_b, input_c, t0, batch, row + 1, k + 2);
        const float a_11_3 = load_a(input_a, input_b, input_c, t0, batch, row + 1, k + 3);
        const float a_12_0 = load_a(input_a, input_b, input_c, t0, batch, row + 2, k);
        const float a_12_1 = load_a(input_a, input_b, input_c, t0, batch, row + 2, k + 1);
        const float a_12_2 = load_a(input_a, input_b, input_c, t0, batch, row + 2, k + 2);
        const float a_12_3 = load_a(input_a, input_b, input_c, t0, batch, row + 2, k + 3);
        const float a_13_0 = load_a(input_a, input_b, input_c, t0, batch, row + 3, k);
        const float a_13_1 = load_a(input_a, input_b, input_c, t0, batch, row + 3, k + 1);
        const float a_13_2 = load_a(input_a, input_b, input_c, t0, batch, row + 3, k + 2);
        const float a_13_3 = load_a(input_a, input_b, input_c, t0, batch, row + 3, k + 3);
        const float a_14_0 = load_a(input_a, input_b, input_c, t0, batch, row + 4, k);
        const float a_14_1 = load_a(input_a, input_b, input_c, t0, batch, row + 4, k + 1);
        const float a_14_2 = load_a(input_a, input_b, input_c, t0, batch, row + 4, k + 2);
        const float a_14_3 = load_a(input_a, input_b, input_c, t0, batch, row + 4, k + 3);
        const float a_15_0 = load_a(input_a, input_b, input_c, t0, batch, row + 5, k);
        const float a_15_1 = load_a(input_a, input_b, input_c, t0, batch, row + 5, k + 1);
        const float a_15_2 = load_a(input_a, input_b, input_c, t0, batch, row + 5, k + 2);
        const float a_15_3 = load_a(input_a, input_b, input_c, t0, batch, row + 5, k + 3);
        const float a_16_0 = load_a(input_a, input_b, input_c, t0, batch, row + 6, k);
        const float a_16_1 = load_a(input_a, input_b, input_c, t0, batch, row + 6, k + 1);
        const float a_16_2 = load_a(input_a, input_b, input_c, t0, batch, row + 6, k + 2);
        const float a_16_3 = load_a(input_a, input_b, input_c, t0, batch, row + 6, k + 3);
        const float a_1_0 = load_a(input_a, input_b, input_c, t0, batch, row + 7, k);
        const float a_1_1 = load_a(input_a, input_b, input_c, t0, batch, row + 7, k + 1);
        const float a_1_2 = load_a(input_a, input_b, input_c, t0, batch, row + 7, k + 2);
        const float a_1_3 = load_a(input_a, input_b, input_c, t0, batch, row + 7, k + 3);
        const float8 b_10_0 = load_b_vector(input_a, input_b, input_c, t0, batch, k, column);
        const float8 b_11_0 = load_b_vector(input_a, input_b, input_c, t0, batch, k + 1, column);
        const float8 b_12_0 = load_b_vector(input_a, input_b, input_c, t0, batch, k + 2, column);
        const float8 b_13_0 = load_b_vector(input_a, input_b, input_c, t0, batch, k + 3, column);
        const float8 b_10_1 = load_b_vector(input_a, input_b, input_c, t0, batch, k, column + 8);
        const float8 b_11_1 = load_b_vector(input_a, input_b, input_c, t0, batch, k + 1, column + 8);
        const float8 b_12_1 = load_b_vector(input_a, input_b, input_c, t0, batch, k + 2, column + 8);
        const float8 b_13_1 = load_b_vector(input_a, input_b, input_c, t0, batch, k + 3, column + 8);
        const float8 a_10_0_all = (float8)(a_10_0);
        total_10_0 += a_10_0_all * b_10_0;
        total_10_1 += a_10_0_all * b_10_1;
        const float8 a_10_1_all = (float8)(a_10_1);
        total_10_0 += a_10_1_all * b_11_0;
        total_10_1 += a_10_1_all * b_11_1;
        const float8 a_10_2_all = (float8)(a_10_2);
        total_10_0 += a_10_2_all * b_12_0;
        total_10_1 += a_10_2_all * b_12_1;
        const float8 a_10_3_all = (float8)(a_10_3);
        total_10_0 += a_10_3_all * b_13_0;
        total_10_1 += a_10_3_all * b_13_1;
        const float8 a_11_0_all = (float8)(a_11_0);
        total_11_0 += a_11_0_all * b_10_0;
        total_11_1 += a_11_0_all * b_10_1;
        const float8 a_11_1_all = (float8)(a_11_1);
        total_11_0 += a_11_1_all * b_11_0;
        total_11_1 += a_11_1_all * b_11_1;
        const float8 a_11_2_all = (float8)(a_11_2);
        total_11_0 += a_11_2_all * b_12_0;
        total_11_1 += a_11_2_all * b_12_1;
        const float8 a_11_3_all = (float8)(a_11_3);
        total_11_0 += a_11_3_all * b_13_0;
        total_11_1 += a_11_3_all * b_13_1;
        const float8 a_12_0_all = (float8)(a_12_0);
        total_12_0 += a_12_0_all * b_10_0;
        total_12_1 += a_12_0_all * b_10_1;
        const float8 a_12_1_all = (float8)(a_12_1);
        total_12_0 += a_12_1_all * b_11_0;
        total_12_1 += a_12_1_all * b_11_1;
        const float8 a_12_2_all = (float8)(a_12_2);
        total_12_0 += a_12_2_all * b_12_0;
        total_12_1 += a_12_2_all * b_12_1;
        const float8 a_12_3_all = (float8)(a_12_3);
        total_12_0 += a_12_3_all * b_13_0;
        total_12_1 += a_12_3_all * b_13_1;
        const float8 a_13_0_all = (float8)(a_13_0);
        total_13_0 += a_13_0_all * b_10_0;
        total_13_1 += a_13_0_all * b_10_1;
        const float8 a_13_1_all = (float8)(a_13_1);
        total_13_0 += a_13_1_all * b_11_0;
        total_13_1 += a_13_1_all * b_11_1;
        const float8 a_13_2_all = (float8)(a_13_2);
        total_13_0 += a_13_2_all * b_12_0;
        total_13_1 += a_13_2_all * b_12_1;
        const float8 a_13_3_all = (float8)(a_13_3);
        total_13_0 += a_13_3_all * b_13_0;
        total_13_1 += a_13_3_all * b_13_1;
        const float8 a_14_0_all = (float8)(a_14_0);
        total_14_0 += a_14_0_all * b_10_0;
        total_14_1 += a_14_0_all * b_10_1;
        const float8 a_14_1_all = (float8)(a_14_1);
        total_14_0 += a_14_1_all * b_11_0;
        total_14_1 += a_14_1_all * b_11_1;
        const float8 a_14_2_all = (float8)(a_14_2);
        total_14_0 += a_14_2_all * b_12_0;
        total_14_1 += a_14_2_all * b_12_1;
        const float8 a_14_3_all = (float8)(a_14_3);
        total_14_0 += a_14_3_all * b_13_0;
        total_14_1 += a_14_3_all * b_13_1;
        const float8 a_15_0_all = (float8)(a_15_0);
        total_15_0 += a_15_0_all * b_10_0;
        total_15_1 += a_15_0_all * b_10_1;
        const float8 a_15_1_all = (float8)(a_15_1);
        total_15_0 += a_15_1_all * b_11_0;
        total_15_1 += a_15_1_all * b_11_1;
        const float8 a_15_2_all = (float8)(a_15_2);
        total_15_0 += a_15_2_all * b_12_0;
        total_15_1 += a_15_2_all * b_12_1;
        const float8 a_15_3_all = (float8)(a_15_3);
        total_15_0 += a_15_3_all * b_13_0;
        total_15_1 += a_15_3_all * b_13_1;
        const float8 a_16_0_all = (float8)(a_16_0);
        total_16_0 += a_16_0_all * b_10_0;
        total_16_1 += a_16_0_all * b_10_1;
        const float8 a_16_1_all = (float8)(a_16_1);
        total_16_0 += a_16_1_all * b_11_0;
        total_16_1 += a_16_1_all * b_11_1;
        const float8 a_16_2_all = (float8)(a_16_2);
        total_16_0 += a_16_2_all * b_12_0;
        total_16_1 += a_16_2_all * b_12_1;
        const float8 a_16_3_all = (float8)(a_16_3);
        total_16_0 += a_16_3_all * b_13_0;
        total_16_1 += a_16_3_all * b_13_1;
        const float8 a_1_0_all = (float8)(a_1_0);
        total_1_0 += a_1_0_all * b_10_0;
        total_1_1 += a_1_0_all * b_10_1;
        const float8 a_1_1_all = (float8)(a_1_1);
        total_1_0 += a_1_1_all * b_11_0;
        total_1_1 += a_1_1_all * b_11_1;
        const float8 a_1_2_all = (float8)(a_1_2);
        total_1_0 += a_1_2_all * b_12_0;
        total_1_1 += a_1_2_all * b_12_1;
        const float8 a_1_3_all = (float8)(a_1_3);
        total_1_0 += a_1_3_all * b_13_0;
        total_1_1 += a_1_3_all * b_13_1;
    }
    for (int k = 124; k < 127; k++) {
        const float a_10_0 = load_a(input_a, input_b, input_c, t0, batch, row, k);
        const float a_11_0 = load_a(input_a, input_b, input_c, t0, batch, row + 1, k);
        const float a_12_0 = load_a(input_a, input_b, input_c, t0, batch, row + 2, k);
        const float a_13_0 = load_a(input_a, input_b, input_c, t0, batch, row + 3, k);
        const float a_14_0 = load_a(input_a, input_b, input_c, t0, batch, row + 4, k);
        const float a_15_0 = load_a(input_a, input_b, input_c, t0, batch, row + 5, k);
        const float a_16_0 = load_a(input_a, input_b, input_c, t0, batch, row + 6, k);
        const float a_1_0 = load_a(input_a, input_b, input_c, t0, batch, row + 7, k);
        const float8 b_10_0 = load_b_vector(input_a, input_b, input_c, t0, batch, k, column);
        const float8 b_10_1 = load_b_vector(input_a, input_b, input_c, t0, batch, k, column + 8);
        const float8 a_10_0_all = (float8)(a_10_0);
        total_10_0 += a_10_0_all * b_10_0;
        total_10_1 += a_10_0_all * b_10_1;
        const float8 a_11_0_all = (float8)(a_11_0);
        total_11_0 += a_11_0_all * b_10_0;
        total_11_1 += a_11_0_all * b_10_1;
        const float8 a_12_0_all = (float8)(a_12_0);
        total_12_0 += a_12_0_all * b_10_0;
        total_12_1 += a_12_0_all * b_10_1;
        const float8 a_13_0_all = (float8)(a_13_0);
        total_13_0 += a_13_0_all * b_10_0;
        total_13_1 += a_13_0_all * b_10_1;
        const float8 a_14_0_all = (float8)(a_14_0);
        total_14_0 += a_14_0_all * b_10_0;
        total_14_1 += a_14_0_all * b_10_1;
        const float8 a_15_0_all = (float8)(a_15_0);
        total_15_0 += a_15_0_all * b_10_0;
        total_15_1 += a_15_0_all * b_10_1;
        const float8 a_16_0_all = (float8)(a_16_0);
        total_16_0 += a_16_0_all * b_10_0;
        total_16_1 += a_16_0_all * b_10_1;
        const float8 a_1_0_all = (float8)(a_1_0);
        total_1_0 += a_1_0_all * b_10_0;
        total_1_1 += a_1_0_all * b_10_1;
    }
    float8 totals[16];
    totals[0] = total_10_0;
    totals[1] = total_10_1;
    totals[2] = total_11_0;
    totals[3] = total_11_1;
    totals[4] = total_12_0;
    totals[5] = total_12_1;
    totals[6] = total_13_0;
    totals[7] = total_13_1;
    totals[8] = total_14_0;
    totals[9] = total_14_1;
    totals[10] = total_15_0;
    totals[11] = total_15_1;
    totals[12] = total_16_0;
    totals[13] = total_16_1;
    totals[14] = total_1_0;
    totals[15] = total_1_1;
    for (int i = 0; i < 16; i++) {
        const int stored_row = row + i / 2;
        const int stored_column = column + i % 2 * 8;
        const float8 total = totals[i];
        if (stored_row >= first_row) {
            if (stored_column >= first_column) {
                store_out_vector(input_a, input_b, input_c, t0, batch, stored_row, stored_column, total);
            } else {
                float components[8];
                vstore8(total, 0, components);
                for (int c = first_column - stored_column; c < 8; c++) {
                    store_out(input_a, input_b, input_c, t0, batch, stored_row, stored_column + c, components[c]);
                }
            }
        }
    }
}
