// 10 groups of 64
// [65, 127] @ [127, 63]
// The group shares tiles of both operands, 16 rows of a and 32 columns of b, 16 deep at a time;
// every invocation keeps 2 x 4 totals in registers.
#pragma OPENCL FP_CONTRACT ON
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
static float4 expm1_tail_f32x4(float4 r) {
    #pragma OPENCL FP_CONTRACT ON
    float4 p = 0.001392639242f;
    p = p * r + 0.008363345638f;
    p = p * r + 0.04166655242f;
    p = p * r + 0.1666657627f;
    p = p * r + 0.5f;
    return p;
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
static float4 bounded_expm1_f32x4(float4 x) {
    #pragma OPENCL FP_CONTRACT ON
    const float4 sum = x * 1.44269504f + 12582912.0f;
    const float4 n = sum - 12582912.0f;
    const float4 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float4 p = r * r * expm1_tail_f32x4(r) + r;
    const float4 halved = as_float4((as_uint4(sum) << 23) + ((uint4)(127 - 1) << 23));
    return (halved * p + (halved - 0.5f)) * 2.0f;
}

// Beyond 10.0f, or the bits of it, it is 1; NaN stays what it is.
static float4 tanh_f32x4(float4 x) {
    const float4 a = fabs(x);
    const float4 t = bounded_expm1_f32x4(2.0f * ((float4)10.0f < a ? (float4)10.0f : a));
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

static inline float4 load_a_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int m, const int k) {
    const float4 input_a_value = vload4(0, input_a + m * 127 + k);
    return input_a_value;
}

static inline float4 load_b_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int k, const int n) {
    const float4 input_b_value = vload4(0, input_b + k * 63 + n);
    return input_b_value;
}

static inline void store_out_vector(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0, const int batch, const int m, const int n, const float4 total) {
    const float4 input_c_value = vload4(0, input_c + n);
    const float4 add_1 = total + input_c_value;
    const float4 multiply_2 = 0.5f * add_1;
    const float4 multiply_3 = 0.044715f * add_1;
    const float4 multiply_4 = multiply_3 * add_1;
    const float4 multiply_5 = multiply_4 * add_1;
    const float4 add_6 = add_1 + multiply_5;
    const float4 multiply_7 = 0.7978846f * add_6;
    const float4 tanh_8 = tanh_f32x4(multiply_7);
    const float4 add_9 = 1.0f + tanh_8;
    const float4 multiply_0 = multiply_2 * add_9;
    vstore4(multiply_0, 0, t0 + m * 63 + n);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void multiply_0(__global const float *restrict input_a, __global const float *restrict input_b, __global const float *restrict input_c, __global float *restrict t0) {
    // Along k in vectors, row after row, with room between the rows so that they begin in different banks.
    __local float4 tile_a[80];
    // Along n in vectors, one k after the other.
    __local float4 tile_b[128];
    const int group = (int)get_group_id(0);
    const int lane = get_local_id(0);
    const int batch = 0;
    const int first_row = group / 2 * 16;
    const int first_column = group % 2 * 32;
    // The last tiles end at the edge: what they have in common with others is not stored again.
    const int tile_row = min(first_row, 49);
    const int tile_column = min(first_column, 31);
    const int row = tile_row + lane / 8 * 2;
    const int column = tile_column + lane % 8 * 4;
    const int row_of_tile = lane / 8 * 10;
    const int column_of_tile = lane % 8;
    float4 total_10_0 = 0;
    float4 total_11_0 = 0;
    for (int step = 0; step < 127; step += 16) {
        {
            const int slot = lane;
            const int m = slot / 4;
            const int part_of_k = slot % 4;
            const int k = step + part_of_k * 4;
            tile_a[m * 5 + part_of_k] = (float4)((k < 127 ? load_a(input_a, input_b, input_c, t0, batch, tile_row + m, k) : 0), (k + 1 < 127 ? load_a(input_a, input_b, input_c, t0, batch, tile_row + m, k + 1) : 0), (k + 2 < 127 ? load_a(input_a, input_b, input_c, t0, batch, tile_row + m, k + 2) : 0), (k + 3 < 127 ? load_a(input_a, input_b, input_c, t0, batch, tile_row + m, k + 3) : 0));
        }
        {
            const int slot = lane;
            const int k = step + slot / 8;
            const int n = tile_column + slot % 8 * 4;
            float4 loaded = 0;
            if (k < 127) {
                loaded = load_b_vector(input_a, input_b, input_c, t0, batch, k, n);
            }
            tile_b[slot] = loaded;
        }
        {
            const int slot = lane + 64;
            const int k = step + slot / 8;
            const int n = tile_column + slot % 8 * 4;
            float4 loaded = 0;
            if (k < 127) {
                loaded = load_b_vector(input_a, input_b, input_c, t0, batch, k, n);
            }
            tile_b[slot] = loaded;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 16; k += 4) {
            const float4 a_10 = tile_a[row_of_tile + k / 4];
            const float4 a_11 = tile_a[row_of_tile + 5 + k / 4];
            const float4 b_10_0 = tile_b[k * 8 + column_of_tile];
            const float4 b_11_0 = tile_b[k * 8 + column_of_tile + 8];
            const float4 b_12_0 = tile_b[k * 8 + column_of_tile + 16];
            const float4 b_13_0 = tile_b[k * 8 + column_of_tile + 24];
            total_10_0 += (float4)(a_10.s0) * b_10_0;
            total_10_0 += (float4)(a_10.s1) * b_11_0;
            total_10_0 += (float4)(a_10.s2) * b_12_0;
            total_10_0 += (float4)(a_10.s3) * b_13_0;
            total_11_0 += (float4)(a_11.s0) * b_10_0;
            total_11_0 += (float4)(a_11.s1) * b_11_0;
            total_11_0 += (float4)(a_11.s2) * b_12_0;
            total_11_0 += (float4)(a_11.s3) * b_13_0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float4 totals[2];
    totals[0] = total_10_0;
    totals[1] = total_11_0;
    for (int i = 0; i < 2; i++) {
        const int stored_row = row + i;
        const int stored_column = column;
        const float4 total = totals[i];
        if (stored_row >= first_row) {
            if (stored_column >= first_column) {
                store_out_vector(input_a, input_b, input_c, t0, batch, stored_row, stored_column, total);
            } else {
                float components[4];
                vstore4(total, 0, components);
                for (int c = first_column - stored_column; c < 4; c++) {
                    store_out(input_a, input_b, input_c, t0, batch, stored_row, stored_column + c, components[c]);
                }
            }
        }
    }
}
