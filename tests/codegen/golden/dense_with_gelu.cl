// 36 groups of 1
// [65, 127] @ [127, 63]
// Every invocation keeps 8 x 16 totals in registers and reads the operands where they are.
#pragma OPENCL FP_CONTRACT ON
typedef float8 loose_float8 __attribute__((aligned(4)));
// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static float nearest_f32(float x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float expm1_tail_f32(float r) {
    float p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// 2^n, for exponents of normal numbers only.
static float power_of_two_f32(int n) {
    return as_float((n + 127) << 23);
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float bounded_expm1_f32(float x) {
    const float n = nearest_f32(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p = r + r * r * expm1_tail_f32(r);
    const float halved = power_of_two_f32(convert_int(n) - 1);
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond, it is 1.
static float tanh_f32(float x) {
    const float t = bounded_expm1_f32(2.0f * fmin(fabs(x), 10.0f));
    return isnan(x) ? x : copysign(t / (t + 2.0f), x);
}

// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static float8 nearest_f32x8(float8 x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
static float8 expm1_tail_f32x8(float8 r) {
    float8 p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// 2^n, for exponents of normal numbers only.
static float8 power_of_two_f32x8(int8 n) {
    return as_float8((n + 127) << 23);
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float8 bounded_expm1_f32x8(float8 x) {
    const float8 n = nearest_f32x8(x * 1.44269504f);
    const float8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float8 p = r + r * r * expm1_tail_f32x8(r);
    const float8 halved = power_of_two_f32x8(convert_int8(n) - 1);
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond, it is 1.
static float8 tanh_f32x8(float8 x) {
    const float8 t = bounded_expm1_f32x8(2.0f * fmin(fabs(x), 10.0f));
    return isnan(x) ? x : copysign(t / (t + 2.0f), x);
}

static inline float load_a(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22, const int batch, const int m, const int k) {
    const float a = input_a[m * 127 + k];
    return a;
}

static inline float load_b(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22, const int batch, const int k, const int n) {
    const float b = input_b[k * 63 + n];
    return b;
}

static inline void store_out(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22, const int batch, const int m, const int n, const float total) {
    const float c = input_c[n];
    const float add_7 = total + c;
    const float multiply_8 = 0.5f * add_7;
    const float multiply_15 = 0.044715f * add_7;
    const float multiply_16 = multiply_15 * add_7;
    const float multiply_17 = multiply_16 * add_7;
    const float add_18 = add_7 + multiply_17;
    const float multiply_19 = 0.7978846f * add_18;
    const float tanh_20 = tanh_f32(multiply_19);
    const float add_21 = 1.0f + tanh_20;
    const float multiply_22 = multiply_8 * add_21;
    t22[m * 63 + n] = multiply_22;
}

static inline float8 load_a_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22, const int batch, const int m, const int k) {
    const float8 a = vload8(0, input_a + m * 127 + k);
    return a;
}

static inline float8 load_b_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22, const int batch, const int k, const int n) {
    const float8 b = vload8(0, input_b + k * 63 + n);
    return b;
}

static inline void store_out_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22, const int batch, const int m, const int n, const float8 total) {
    const float8 c = vload8(0, input_c + n);
    const float8 add_7 = total + c;
    const float8 multiply_8 = 0.5f * add_7;
    const float8 multiply_15 = 0.044715f * add_7;
    const float8 multiply_16 = multiply_15 * add_7;
    const float8 multiply_17 = multiply_16 * add_7;
    const float8 add_18 = add_7 + multiply_17;
    const float8 multiply_19 = 0.7978846f * add_18;
    const float8 tanh_20 = tanh_f32x8(multiply_19);
    const float8 add_21 = 1.0f + tanh_20;
    const float8 multiply_22 = multiply_8 * add_21;
    *(__global loose_float8 *)(t22 + m * 63 + n) = multiply_22;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void multiply_22(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t22) {
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
    float8 total_0_0 = 0;
    float8 total_0_1 = 0;
    float8 total_1_0 = 0;
    float8 total_1_1 = 0;
    float8 total_2_0 = 0;
    float8 total_2_1 = 0;
    float8 total_3_0 = 0;
    float8 total_3_1 = 0;
    float8 total_4_0 = 0;
    float8 total_4_1 = 0;
    float8 total_5_0 = 0;
    float8 total_5_1 = 0;
    float8 total_6_0 = 0;
    float8 total_6_1 = 0;
    float8 total_7_0 = 0;
    float8 total_7_1 = 0;
    for (int k = 0; k < 124; k += 4) {
        const float a_0_0 = load_a(input_a, input_b, input_c, t22, batch, row, k);
        const float a_0_1 = load_a(input_a, input_b, input_c, t22, batch, row, k + 1);
        const float a_0_2 = load_a(input_a, input_b, input_c, t22, batch, row, k + 2);
        const float a_0_3 = load_a(input_a, input_b, input_c, t22, batch, row, k + 3);
        const float a_1_0 = load_a(input_a, input_b, input_c, t22, batch, row + 1, k);
        const float a_1_1 = load_a(input_a, input_b, input_c, t22, batch, row + 1, k + 1);
        const float a_1_2 = load_a(input_a, input_b, input_c, t22, batch, row + 1, k + 2);
        const float a_1_3 = load_a(input_a, input_b, input_c, t22, batch, row + 1, k + 3);
        const float a_2_0 = load_a(input_a, input_b, input_c, t22, batch, row + 2, k);
        const float a_2_1 = load_a(input_a, input_b, input_c, t22, batch, row + 2, k + 1);
        const float a_2_2 = load_a(input_a, input_b, input_c, t22, batch, row + 2, k + 2);
        const float a_2_3 = load_a(input_a, input_b, input_c, t22, batch, row + 2, k + 3);
        const float a_3_0 = load_a(input_a, input_b, input_c, t22, batch, row + 3, k);
        const float a_3_1 = load_a(input_a, input_b, input_c, t22, batch, row + 3, k + 1);
        const float a_3_2 = load_a(input_a, input_b, input_c, t22, batch, row + 3, k + 2);
        const float a_3_3 = load_a(input_a, input_b, input_c, t22, batch, row + 3, k + 3);
        const float a_4_0 = load_a(input_a, input_b, input_c, t22, batch, row + 4, k);
        const float a_4_1 = load_a(input_a, input_b, input_c, t22, batch, row + 4, k + 1);
        const float a_4_2 = load_a(input_a, input_b, input_c, t22, batch, row + 4, k + 2);
        const float a_4_3 = load_a(input_a, input_b, input_c, t22, batch, row + 4, k + 3);
        const float a_5_0 = load_a(input_a, input_b, input_c, t22, batch, row + 5, k);
        const float a_5_1 = load_a(input_a, input_b, input_c, t22, batch, row + 5, k + 1);
        const float a_5_2 = load_a(input_a, input_b, input_c, t22, batch, row + 5, k + 2);
        const float a_5_3 = load_a(input_a, input_b, input_c, t22, batch, row + 5, k + 3);
        const float a_6_0 = load_a(input_a, input_b, input_c, t22, batch, row + 6, k);
        const float a_6_1 = load_a(input_a, input_b, input_c, t22, batch, row + 6, k + 1);
        const float a_6_2 = load_a(input_a, input_b, input_c, t22, batch, row + 6, k + 2);
        const float a_6_3 = load_a(input_a, input_b, input_c, t22, batch, row + 6, k + 3);
        const float a_7_0 = load_a(input_a, input_b, input_c, t22, batch, row + 7, k);
        const float a_7_1 = load_a(input_a, input_b, input_c, t22, batch, row + 7, k + 1);
        const float a_7_2 = load_a(input_a, input_b, input_c, t22, batch, row + 7, k + 2);
        const float a_7_3 = load_a(input_a, input_b, input_c, t22, batch, row + 7, k + 3);
        const float8 b_0_0 = load_b_vector(input_a, input_b, input_c, t22, batch, k, column);
        const float8 b_1_0 = load_b_vector(input_a, input_b, input_c, t22, batch, k + 1, column);
        const float8 b_2_0 = load_b_vector(input_a, input_b, input_c, t22, batch, k + 2, column);
        const float8 b_3_0 = load_b_vector(input_a, input_b, input_c, t22, batch, k + 3, column);
        const float8 b_0_1 = load_b_vector(input_a, input_b, input_c, t22, batch, k, column + 8);
        const float8 b_1_1 = load_b_vector(input_a, input_b, input_c, t22, batch, k + 1, column + 8);
        const float8 b_2_1 = load_b_vector(input_a, input_b, input_c, t22, batch, k + 2, column + 8);
        const float8 b_3_1 = load_b_vector(input_a, input_b, input_c, t22, batch, k + 3, column + 8);
        const float8 a_0_0_all = (float8)(a_0_0);
        total_0_0 += a_0_0_all * b_0_0;
        total_0_1 += a_0_0_all * b_0_1;
        const float8 a_0_1_all = (float8)(a_0_1);
        total_0_0 += a_0_1_all * b_1_0;
        total_0_1 += a_0_1_all * b_1_1;
        const float8 a_0_2_all = (float8)(a_0_2);
        total_0_0 += a_0_2_all * b_2_0;
        total_0_1 += a_0_2_all * b_2_1;
        const float8 a_0_3_all = (float8)(a_0_3);
        total_0_0 += a_0_3_all * b_3_0;
        total_0_1 += a_0_3_all * b_3_1;
        const float8 a_1_0_all = (float8)(a_1_0);
        total_1_0 += a_1_0_all * b_0_0;
        total_1_1 += a_1_0_all * b_0_1;
        const float8 a_1_1_all = (float8)(a_1_1);
        total_1_0 += a_1_1_all * b_1_0;
        total_1_1 += a_1_1_all * b_1_1;
        const float8 a_1_2_all = (float8)(a_1_2);
        total_1_0 += a_1_2_all * b_2_0;
        total_1_1 += a_1_2_all * b_2_1;
        const float8 a_1_3_all = (float8)(a_1_3);
        total_1_0 += a_1_3_all * b_3_0;
        total_1_1 += a_1_3_all * b_3_1;
        const float8 a_2_0_all = (float8)(a_2_0);
        total_2_0 += a_2_0_all * b_0_0;
        total_2_1 += a_2_0_all * b_0_1;
        const float8 a_2_1_all = (float8)(a_2_1);
        total_2_0 += a_2_1_all * b_1_0;
        total_2_1 += a_2_1_all * b_1_1;
        const float8 a_2_2_all = (float8)(a_2_2);
        total_2_0 += a_2_2_all * b_2_0;
        total_2_1 += a_2_2_all * b_2_1;
        const float8 a_2_3_all = (float8)(a_2_3);
        total_2_0 += a_2_3_all * b_3_0;
        total_2_1 += a_2_3_all * b_3_1;
        const float8 a_3_0_all = (float8)(a_3_0);
        total_3_0 += a_3_0_all * b_0_0;
        total_3_1 += a_3_0_all * b_0_1;
        const float8 a_3_1_all = (float8)(a_3_1);
        total_3_0 += a_3_1_all * b_1_0;
        total_3_1 += a_3_1_all * b_1_1;
        const float8 a_3_2_all = (float8)(a_3_2);
        total_3_0 += a_3_2_all * b_2_0;
        total_3_1 += a_3_2_all * b_2_1;
        const float8 a_3_3_all = (float8)(a_3_3);
        total_3_0 += a_3_3_all * b_3_0;
        total_3_1 += a_3_3_all * b_3_1;
        const float8 a_4_0_all = (float8)(a_4_0);
        total_4_0 += a_4_0_all * b_0_0;
        total_4_1 += a_4_0_all * b_0_1;
        const float8 a_4_1_all = (float8)(a_4_1);
        total_4_0 += a_4_1_all * b_1_0;
        total_4_1 += a_4_1_all * b_1_1;
        const float8 a_4_2_all = (float8)(a_4_2);
        total_4_0 += a_4_2_all * b_2_0;
        total_4_1 += a_4_2_all * b_2_1;
        const float8 a_4_3_all = (float8)(a_4_3);
        total_4_0 += a_4_3_all * b_3_0;
        total_4_1 += a_4_3_all * b_3_1;
        const float8 a_5_0_all = (float8)(a_5_0);
        total_5_0 += a_5_0_all * b_0_0;
        total_5_1 += a_5_0_all * b_0_1;
        const float8 a_5_1_all = (float8)(a_5_1);
        total_5_0 += a_5_1_all * b_1_0;
        total_5_1 += a_5_1_all * b_1_1;
        const float8 a_5_2_all = (float8)(a_5_2);
        total_5_0 += a_5_2_all * b_2_0;
        total_5_1 += a_5_2_all * b_2_1;
        const float8 a_5_3_all = (float8)(a_5_3);
        total_5_0 += a_5_3_all * b_3_0;
        total_5_1 += a_5_3_all * b_3_1;
        const float8 a_6_0_all = (float8)(a_6_0);
        total_6_0 += a_6_0_all * b_0_0;
        total_6_1 += a_6_0_all * b_0_1;
        const float8 a_6_1_all = (float8)(a_6_1);
        total_6_0 += a_6_1_all * b_1_0;
        total_6_1 += a_6_1_all * b_1_1;
        const float8 a_6_2_all = (float8)(a_6_2);
        total_6_0 += a_6_2_all * b_2_0;
        total_6_1 += a_6_2_all * b_2_1;
        const float8 a_6_3_all = (float8)(a_6_3);
        total_6_0 += a_6_3_all * b_3_0;
        total_6_1 += a_6_3_all * b_3_1;
        const float8 a_7_0_all = (float8)(a_7_0);
        total_7_0 += a_7_0_all * b_0_0;
        total_7_1 += a_7_0_all * b_0_1;
        const float8 a_7_1_all = (float8)(a_7_1);
        total_7_0 += a_7_1_all * b_1_0;
        total_7_1 += a_7_1_all * b_1_1;
        const float8 a_7_2_all = (float8)(a_7_2);
        total_7_0 += a_7_2_all * b_2_0;
        total_7_1 += a_7_2_all * b_2_1;
        const float8 a_7_3_all = (float8)(a_7_3);
        total_7_0 += a_7_3_all * b_3_0;
        total_7_1 += a_7_3_all * b_3_1;
    }
    for (int k = 124; k < 127; k++) {
        const float a_0_0 = load_a(input_a, input_b, input_c, t22, batch, row, k);
        const float a_1_0 = load_a(input_a, input_b, input_c, t22, batch, row + 1, k);
        const float a_2_0 = load_a(input_a, input_b, input_c, t22, batch, row + 2, k);
        const float a_3_0 = load_a(input_a, input_b, input_c, t22, batch, row + 3, k);
        const float a_4_0 = load_a(input_a, input_b, input_c, t22, batch, row + 4, k);
        const float a_5_0 = load_a(input_a, input_b, input_c, t22, batch, row + 5, k);
        const float a_6_0 = load_a(input_a, input_b, input_c, t22, batch, row + 6, k);
        const float a_7_0 = load_a(input_a, input_b, input_c, t22, batch, row + 7, k);
        const float8 b_0_0 = load_b_vector(input_a, input_b, input_c, t22, batch, k, column);
        const float8 b_0_1 = load_b_vector(input_a, input_b, input_c, t22, batch, k, column + 8);
        const float8 a_0_0_all = (float8)(a_0_0);
        total_0_0 += a_0_0_all * b_0_0;
        total_0_1 += a_0_0_all * b_0_1;
        const float8 a_1_0_all = (float8)(a_1_0);
        total_1_0 += a_1_0_all * b_0_0;
        total_1_1 += a_1_0_all * b_0_1;
        const float8 a_2_0_all = (float8)(a_2_0);
        total_2_0 += a_2_0_all * b_0_0;
        total_2_1 += a_2_0_all * b_0_1;
        const float8 a_3_0_all = (float8)(a_3_0);
        total_3_0 += a_3_0_all * b_0_0;
        total_3_1 += a_3_0_all * b_0_1;
        const float8 a_4_0_all = (float8)(a_4_0);
        total_4_0 += a_4_0_all * b_0_0;
        total_4_1 += a_4_0_all * b_0_1;
        const float8 a_5_0_all = (float8)(a_5_0);
        total_5_0 += a_5_0_all * b_0_0;
        total_5_1 += a_5_0_all * b_0_1;
        const float8 a_6_0_all = (float8)(a_6_0);
        total_6_0 += a_6_0_all * b_0_0;
        total_6_1 += a_6_0_all * b_0_1;
        const float8 a_7_0_all = (float8)(a_7_0);
        total_7_0 += a_7_0_all * b_0_0;
        total_7_1 += a_7_0_all * b_0_1;
    }
    float8 totals[16];
    totals[0] = total_0_0;
    totals[1] = total_0_1;
    totals[2] = total_1_0;
    totals[3] = total_1_1;
    totals[4] = total_2_0;
    totals[5] = total_2_1;
    totals[6] = total_3_0;
    totals[7] = total_3_1;
    totals[8] = total_4_0;
    totals[9] = total_4_1;
    totals[10] = total_5_0;
    totals[11] = total_5_1;
    totals[12] = total_6_0;
    totals[13] = total_6_1;
    totals[14] = total_7_0;
    totals[15] = total_7_1;
    for (int i = 0; i < 16; i++) {
        const int stored_row = row + i / 2;
        const int stored_column = column + i % 2 * 8;
        const float8 total = totals[i];
        if (stored_row >= first_row) {
            if (stored_column >= first_column) {
                store_out_vector(input_a, input_b, input_c, t22, batch, stored_row, stored_column, total);
            } else {
                float components[8];
                vstore8(total, 0, components);
                for (int c = first_column - stored_column; c < 8; c++) {
                    store_out(input_a, input_b, input_c, t22, batch, stored_row, stored_column + c, components[c]);
                }
            }
        }
    }
}
