// One work-item for each row: its mean, the variance around that mean, then the result.

float horizontal_sum(float16 v) {
    float8 eight = v.lo + v.hi;
    float4 four = eight.lo + eight.hi;
    return (four.x + four.y) + (four.z + four.w);
}

kernel void layer_norm(
    global const float *restrict x,
    global const float16 *restrict scale,
    global const float16 *restrict shift,
    global float *restrict result
) {
    size_t row = get_global_id(0);
    global const float16 *values = (global const float16 *)(x + row * COLUMNS);
    global float16 *normal = (global float16 *)(result + row * COLUMNS);

    float16 sum[4] = {0, 0, 0, 0};
    for (int i = 0; i < COLUMNS / 16; i += 4)
        #pragma unroll
        for (int j = 0; j < 4; j++) sum[j] += values[i + j];
    float mean = horizontal_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / COLUMNS;

    float16 square[4] = {0, 0, 0, 0};
    for (int i = 0; i < COLUMNS / 16; i += 4)
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            float16 distance = values[i + j] - mean;
            square[j] = fma(distance, distance, square[j]);
        }
    float variance = horizontal_sum((square[0] + square[1]) + (square[2] + square[3])) / COLUMNS;
    float factor = 1.0f / sqrt(variance + 1e-5f);
    for (int i = 0; i < COLUMNS / 16; i++) normal[i] = (values[i] - mean) * factor * scale[i] + shift[i];
}
