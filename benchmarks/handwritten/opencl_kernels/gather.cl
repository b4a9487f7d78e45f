// A work-item copies ROWS_EACH rows of 64 numbers: four vectors each. The caller promises indices that exist.

kernel void gather(global const float16 *restrict table, global const INDEX *restrict indices, global float16 *restrict result) {
    for (size_t row = get_global_id(0) * ROWS_EACH; row < (get_global_id(0) + 1) * ROWS_EACH; row++) {
        global const float16 *source = table + (size_t)indices[row] * 4;
        float16 first = source[0], second = source[1], third = source[2], fourth = source[3];
        result[row * 4] = first;
        result[row * 4 + 1] = second;
        result[row * 4 + 2] = third;
        result[row * 4 + 3] = fourth;
    }
}
