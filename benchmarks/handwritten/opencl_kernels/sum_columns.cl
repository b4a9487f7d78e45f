// A work-item adds CHUNK rows of a strip of 128 columns: eight registers, so that whole cache lines are used up while
// they are near. What it finds is a row of partial sums; the same kernel then adds those.

#define STRIPS (COLUMNS / 128)

kernel void sum_columns(global const float *restrict x, global float *restrict sums) {
    size_t strip = get_global_id(0) % STRIPS, chunk = get_global_id(0) / STRIPS;
    global const float *row = x + chunk * CHUNK * COLUMNS + strip * 128;
    float16 sum[8];
    #pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = 0;
    for (int r = 0; r < CHUNK; r++, row += COLUMNS)
        #pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += vload16(i, row);
    #pragma unroll
    for (int i = 0; i < 8; i++) vstore16(sum[i], i, sums + chunk * COLUMNS + strip * 128);
}
