// As matmul.cl, with a b of bytes and a scale for each of its columns. A work-item takes PANEL_ROWS rows; a panel of b
// becomes numbers once for all of them. The scale is for the finished sums.
//
// With a single row there is nothing to share: a work-item goes down its columns and adds up.

#define WIDTH (TILE_VECTORS * 16)

kernel void matmul_int8(
    global const float *restrict a,
    global const char *restrict b,
    global const float *restrict scale,
    global float *restrict product
) {
#if ROWS == 1
    size_t column = get_global_id(0) * WIDTH;
    float16 sum[TILE_VECTORS];
    #pragma unroll
    for (int j = 0; j < TILE_VECTORS; j++) sum[j] = 0;
    #pragma unroll 4
    for (int k = 0; k < INNER; k++) {
        float left = a[k];
        #pragma unroll
        for (int j = 0; j < TILE_VECTORS; j++)
            sum[j] = fma((float16)left, convert_float16(vload16(j, b + k * COLUMNS + column)), sum[j]);
    }
    #pragma unroll
    for (int j = 0; j < TILE_VECTORS; j++)
        vstore16(sum[j] * vload16(j, scale + column), j, product + column);
#else
    size_t column = get_global_id(0) / (ROWS / PANEL_ROWS) * WIDTH;
    size_t first_row = get_global_id(0) % (ROWS / PANEL_ROWS) * PANEL_ROWS;
    float16 panel[INNER * TILE_VECTORS];
    for (int k = 0; k < INNER; k++)
        #pragma unroll
        for (int j = 0; j < TILE_VECTORS; j++)
            panel[k * TILE_VECTORS + j] = convert_float16(vload16(j, b + k * COLUMNS + column));
    for (size_t row = first_row; row < first_row + PANEL_ROWS; row += TILE_ROWS) {
        float16 sum[TILE_ROWS][TILE_VECTORS];
        #pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
            #pragma unroll
            for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = 0;

        #pragma unroll 4
        for (int k = 0; k < INNER; k++)
            #pragma unroll
            for (int i = 0; i < TILE_ROWS; i++) {
                float left = a[(row + i) * INNER + k];
                #pragma unroll
                for (int j = 0; j < TILE_VECTORS; j++)
                    sum[i][j] = fma((float16)left, panel[k * TILE_VECTORS + j], sum[i][j]);
            }

        #pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
            #pragma unroll
            for (int j = 0; j < TILE_VECTORS; j++)
                vstore16(sum[i][j] * vload16(j, scale + column), j, product + (row + i) * COLUMNS + column);
    }
#endif
}
