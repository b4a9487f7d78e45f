// One work-item for each row. The exponentials wait in the result for their sum: the row stays in the nearest cache.

kernel void softmax(global const float *restrict x, global float *restrict result) {
    size_t row = get_global_id(0);
    global const float16 *values = (global const float16 *)(x + row * COLUMNS);
    global float16 *shares = (global float16 *)(result + row * COLUMNS);

    float16 most = values[0];
    // Not fmax: that has a rule for NaN, which costs two more instructions.
    for (int i = 1; i < COLUMNS / 16; i++) most = values[i] > most ? values[i] : most;
    float8 eight = most.lo > most.hi ? most.lo : most.hi;
    float4 four = eight.lo > eight.hi ? eight.lo : eight.hi;
    float greatest = max(max(four.x, four.y), max(four.z, four.w));

    float16 sum = 0;
    for (int i = 0; i < COLUMNS / 16; i++) {
        float16 share = exp(values[i] - greatest);
        shares[i] = share;
        sum += share;
    }
    eight = sum.lo + sum.hi;
    four = eight.lo + eight.hi;
    float scale = 1.0f / ((four.x + four.y) + (four.z + four.w));
    for (int i = 0; i < COLUMNS / 16; i++) shares[i] *= scale;
}
