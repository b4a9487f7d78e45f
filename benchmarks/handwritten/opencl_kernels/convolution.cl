// A work-item computes a row of TILE_VECTORS * 16 pixels in TILE_CHANNELS channels: sixteen sums in registers. Images
// come as (image, channel, row, column) with a margin of one pixel on each side.

#define TILE_WIDTH (TILE_VECTORS * 16)
#define IN_WIDTH (WIDTH + 2)

kernel void convolution(global const float *restrict x, global const float *restrict weights, global float *restrict result) {
    size_t number = get_global_id(0);
    size_t column = number % (WIDTH / TILE_WIDTH) * TILE_WIDTH;
    number /= WIDTH / TILE_WIDTH;
    size_t out = number % (OUT_CHANNELS / TILE_CHANNELS) * TILE_CHANNELS;
    number /= OUT_CHANNELS / TILE_CHANNELS;
    size_t row = number % HEIGHT, image = number / HEIGHT;

    float16 sum[TILE_CHANNELS][TILE_VECTORS];
    #pragma unroll
    for (int i = 0; i < TILE_CHANNELS; i++)
        #pragma unroll
        for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = 0;

    for (int in = 0; in < IN_CHANNELS; in++) {
        global const float *plane = x + ((image * IN_CHANNELS + in) * (HEIGHT + 2) + row) * IN_WIDTH + column;
        #pragma unroll
        for (int dy = 0; dy < 3; dy++)
            #pragma unroll
            for (int dx = 0; dx < 3; dx++) {
                float16 pixels[TILE_VECTORS];
                #pragma unroll
                for (int j = 0; j < TILE_VECTORS; j++) pixels[j] = vload16(j, plane + dy * IN_WIDTH + dx);
                #pragma unroll
                for (int i = 0; i < TILE_CHANNELS; i++) {
                    float weight = weights[((out + i) * IN_CHANNELS + in) * 9 + dy * 3 + dx];
                    #pragma unroll
                    for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = fma((float16)weight, pixels[j], sum[i][j]);
                }
            }
    }

    #pragma unroll
    for (int i = 0; i < TILE_CHANNELS; i++)
        #pragma unroll
        for (int j = 0; j < TILE_VECTORS; j++)
            vstore16(sum[i][j], j, result + ((image * OUT_CHANNELS + out + i) * HEIGHT + row) * WIDTH + column);
}
