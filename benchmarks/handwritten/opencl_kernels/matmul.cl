// A work-item computes TILE_ROWS rows of TILE_VECTORS * 16 columns of a (ROWS, INNER) by (INNER, COLUMNS) product. Its
// sums stay in registers; b comes as whole vectors, and a as single numbers that are spread over one.
//
// With PANEL_ROWS the work-item takes so many rows, and first copies its columns of b to where they lie close together:
// rows of b that are a power of two apart would all compete for the same few lines of the cache.
//
// With BIAS_GELU the bias is added and the gelu taken, one tile after the other.

#define WIDTH (TILE_VECTORS * 16)

#ifdef BIAS_GELU
float16 gelu(float16 v) {
    return 0.5f * v * (1.0f + tanh(0.7978845608f * (v + 0.044715f * v * v * v)));
}
#endif

kernel void matmul(
    global const float *restrict a,
    global const float *restrict b,
#ifdef BIAS_GELU
    global const float *restrict bias,
#endif
    global float *restrict product
) {
#ifdef PANEL_ROWS
    size_t column = get_global_id(0) / (ROWS / PANEL_ROWS) * WIDTH;
    size_t first_row = get_global_id(0) % (ROWS / PANEL_ROWS) * PANEL_ROWS;
    float16 panel[INNER * TILE_VECTORS];
    for (int k = 0; k < INNER; k++)
        #pragma unroll
        for (int j = 0; j < TILE_VECTORS; j++) panel[k * TILE_VECTORS + j] = vload16(j, b + k * COLUMNS + column);
    #define B(k, j) panel[(k) * TILE_VECTORS + (j)]
    for (size_t row = first_row; row < first_row + PANEL_ROWS; row += TILE_ROWS)
#else
    size_t column = get_global_id(0) % (COLUMNS / WIDTH) * WIDTH;
    size_t row = get_global_id(0) / (COLUMNS / WIDTH) * TILE_ROWS;
    #define B(k, j) vload16(j, b + (k) * COLUMNS + column)
#endif
    {
        float16 sum[TILE_ROWS][TILE_VECTORS];
        #pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
            #pragma unroll
            for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = 0;

        #pragma unroll 4
        for (int k = 0; k < INNER; k++) {
            float16 right[TILE_VECTORS];
            #pragma unroll
            for (int j = 0; j < TILE_VECTORS; j++) right[j] = B(k, j);
            #pragma unroll
            for (int i = 0; i < TILE_ROWS; i++) {
                float left = a[(row + i) * INNER + k];
                #pragma unroll
                for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = fma((float16)left, right[j], sum[i][j]);
            }
        }

        #pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
            #pragma unroll
            for (int j = 0; j < TILE_VECTORS; j++) vstore16(sum[i][j], j, product + (row + i) * COLUMNS + column);

#ifdef BIAS_GELU
        // Only now, from the nearest cache: a call of tanh among the sums would save and restore all of them.
        for (int i = 0; i < TILE_ROWS; i++)
            for (int j = 0; j < TILE_VECTORS; j++) {
                global float *part = product + (row + i) * COLUMNS + column;
                vstore16(gelu(vload16(j, part) + vload16(j, bias + column)), j, part);
            }
#endif
    }
}
