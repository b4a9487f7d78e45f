// One work-item for each row of COLUMNS numbers. A single sum would wait for each addition: four run side by side.

kernel void sum_rows(global const float *restrict x, global float *restrict sums) {
    size_t row = get_global_id(0);
    global const float16 *values = (global const float16 *)(x + row * COLUMNS);
    float16 first = 0, second = 0, third = 0, fourth = 0;
    for (int i = 0; i < COLUMNS / 16; i += 4) {
        first += values[i];
        second += values[i + 1];
        third += values[i + 2];
        fourth += values[i + 3];
    }
    float16 sixteen = (first + second) + (third + fourth);
    float8 eight = sixteen.lo + sixteen.hi;
    float4 four = eight.lo + eight.hi;
    sums[row] = (four.x + four.y) + (four.z + four.w);
}
