// A work-item computes attention for VECTORS * 16 queries of one head, one query in each component of a vector: scores,
// their greatest, weights and sums of different queries never meet. Keys and values are single numbers that are spread
// over a vector, KEYS keys at a time; what was summed before becomes smaller when a greater score comes.
//
// With CAUSAL a query sees the keys up to its own number, and keys that nobody here sees are left out.

#define QUERIES (VECTORS * 16)

// 2^x for x <= 0. The low bits of t hold the exponent.
float16 weight(float16 x) {
    float16 t = x + 12583039.0f;
    float16 r = x - (t - 12583039.0f);
    float16 p = fma((float16)1.535336188e-4f, r, (float16)1.339887440e-3f);
    p = fma(p, r, (float16)9.618437358e-3f);
    p = fma(p, r, (float16)5.550332471e-2f);
    p = fma(p, r, (float16)2.402264791e-1f);
    p = fma(p, r, (float16)6.931472029e-1f);
    p = fma(p, r, (float16)1.0f);
    return select(p * as_float16(as_int16(t) << 23), (float16)0.0f, x < -126.0f);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention(
    global const float *restrict q,
    global const float *restrict k,
    global const float *restrict v,
    global float *restrict result
) {
    local float16 queries[DEPTH * VECTORS];
    local float16 totals[DEPTH * VECTORS];
    local float16 weights[KEYS * VECTORS];
    int head = get_group_id(0) / (COUNT / QUERIES);
    int row = get_group_id(0) % (COUNT / QUERIES) * QUERIES;
    q += (head * COUNT + row) * DEPTH;
    k += head * COUNT * DEPTH;
    v += head * COUNT * DEPTH;
    result += (head * COUNT + row) * DEPTH;

    for (int i = 0; i < QUERIES; i++)
        for (int d = 0; d < DEPTH; d++)
            ((local float *)queries)[d * QUERIES + i] = q[i * DEPTH + d] * SCALE;
    for (int i = 0; i < DEPTH * VECTORS; i++) totals[i] = 0;
    float16 greatest[VECTORS], sum[VECTORS];
    for (int j = 0; j < VECTORS; j++) {
        greatest[j] = -3.402823466e38f;
        sum[j] = 0;
    }
#ifdef CAUSAL
    int end = row + QUERIES;
#else
    int end = COUNT;
#endif
    for (int first = 0; first < end; first += KEYS) {
        int count = min(KEYS, end - first);
        float16 now[VECTORS];
        for (int j = 0; j < VECTORS; j++) now[j] = greatest[j];
        for (int i = 0; i < count; i += KEY_TILE) {
            float16 score[KEY_TILE][VECTORS];
            #pragma unroll
            for (int a = 0; a < KEY_TILE; a++)
                #pragma unroll
                for (int j = 0; j < VECTORS; j++) score[a][j] = 0;
            for (int d = 0; d < DEPTH; d++)
                #pragma unroll
                for (int a = 0; a < KEY_TILE; a++) {
                    float16 key = k[(first + i + a) * DEPTH + d];
                    #pragma unroll
                    for (int j = 0; j < VECTORS; j++) score[a][j] = fma(key, queries[d * VECTORS + j], score[a][j]);
                }
#ifdef CAUSAL
            if (first + i + KEY_TILE - 1 > row)
                #pragma unroll
                for (int a = 0; a < KEY_TILE; a++)
                    #pragma unroll
                    for (int j = 0; j < VECTORS; j++) {
                        int16 own = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) + (row + j * 16);
                        score[a][j] = select(score[a][j], (float16)-INFINITY, first + i + a > own);
                    }
#endif
            #pragma unroll
            for (int a = 0; a < KEY_TILE; a++)
                #pragma unroll
                for (int j = 0; j < VECTORS; j++) {
                    weights[(i + a) * VECTORS + j] = score[a][j];
                    now[j] = fmax(now[j], score[a][j]);
                }
        }
        float16 factor[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            factor[j] = weight(greatest[j] - now[j]);
            greatest[j] = now[j];
            sum[j] *= factor[j];
        }
        for (int i = 0; i < count; i++)
            #pragma unroll
            for (int j = 0; j < VECTORS; j++) {
                float16 share = weight(weights[i * VECTORS + j] - now[j]);
                weights[i * VECTORS + j] = share;
                sum[j] += share;
            }
        for (int e = 0; e < DEPTH; e += VALUE_TILE) {
            float16 total[VALUE_TILE][VECTORS];
            #pragma unroll
            for (int a = 0; a < VALUE_TILE; a++)
                #pragma unroll
                for (int j = 0; j < VECTORS; j++) total[a][j] = totals[(e + a) * VECTORS + j] * factor[j];
            for (int i = 0; i < count; i++)
                #pragma unroll
                for (int a = 0; a < VALUE_TILE; a++) {
                    float16 value = v[(first + i) * DEPTH + e + a];
                    #pragma unroll
                    for (int j = 0; j < VECTORS; j++)
                        total[a][j] = fma(value, weights[i * VECTORS + j], total[a][j]);
                }
            #pragma unroll
            for (int a = 0; a < VALUE_TILE; a++)
                #pragma unroll
                for (int j = 0; j < VECTORS; j++) totals[(e + a) * VECTORS + j] = total[a][j];
        }
    }
    for (int j = 0; j < VECTORS; j++) {
        sum[j] = 1.0f / sum[j];
        for (int e = 0; e < DEPTH; e++) totals[e * VECTORS + j] *= sum[j];
    }
    for (int i = 0; i < QUERIES; i++)
        for (int e = 0; e < DEPTH; e++) result[i * DEPTH + e] = ((local float *)totals)[e * QUERIES + i];
}
