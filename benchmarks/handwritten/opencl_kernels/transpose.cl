// A work-item turns a block of 16 by 16: it reads down sixteen columns, whose lines the next work-item finds in the
// cache, and writes sixteen whole vectors.

kernel void transpose(global const float *restrict x, global float *restrict result) {
    size_t row = get_global_id(0) / (COLUMNS / 16) * 16, column = get_global_id(0) % (COLUMNS / 16) * 16;
    for (int i = 0; i < 16; i++) {
        global const float *top = x + row * COLUMNS + column + i;
        float16 turned;
        turned.s0 = top[0 * COLUMNS];
        turned.s1 = top[1 * COLUMNS];
        turned.s2 = top[2 * COLUMNS];
        turned.s3 = top[3 * COLUMNS];
        turned.s4 = top[4 * COLUMNS];
        turned.s5 = top[5 * COLUMNS];
        turned.s6 = top[6 * COLUMNS];
        turned.s7 = top[7 * COLUMNS];
        turned.s8 = top[8 * COLUMNS];
        turned.s9 = top[9 * COLUMNS];
        turned.sa = top[10 * COLUMNS];
        turned.sb = top[11 * COLUMNS];
        turned.sc = top[12 * COLUMNS];
        turned.sd = top[13 * COLUMNS];
        turned.se = top[14 * COLUMNS];
        turned.sf = top[15 * COLUMNS];
        vstore16(turned, 0, result + (column + i) * ROWS + row);
    }
}
