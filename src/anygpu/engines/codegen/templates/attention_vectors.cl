// $title
// For processors: one invocation has $rows queries, one in each component of $vectors vectors, and goes over the keys $keys
// at a time. So greatest scores, sums and weights of different queries never meet, and keys and values are read where they are.
$declarations
$functions

// 2^x of numbers that are not positive. The whole part of x is in the low bits of a sum with a large number.
static inline $vector weight(const $vector x) {
    const $vector t = x + 12583039.0f;
    const $vector r = x - (t - 12583039.0f);
    $vector p = ($vector)(1.535336188e-4f);
    p = fma(p, r, ($vector)(1.339887440e-3f));
    p = fma(p, r, ($vector)(9.618437358e-3f));
    p = fma(p, r, ($vector)(5.550332471e-2f));
    p = fma(p, r, ($vector)(2.402264791e-1f));
    p = fma(p, r, ($vector)(6.931472029e-1f));
    p = fma(p, r, ($vector)(1.0f));
    // NaN stays NaN.
    return select(p * as_$vector(as_$integers(t) << 23), ($vector)(0.0f), x < -126.0f);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void $name($parameters) {
    // All have a query in each component: along d, along e, and for every key of a step.
    __local $vector queries[$queries_size];
    __local $vector totals[$totals_size];
    __local $vector weights[$weights_size];
    $group
    const int batch = group / $blocks;
    const int first_row = group % $blocks * $rows;
    $row
    $load_queries
    for (int i = 0; i < $totals_size; i++) {
        totals[i] = 0.0f;
    }
    $vector greatest[$vectors];
    $vector sum[$vectors];
    for (int j = 0; j < $vectors; j++) {
        greatest[j] = -3.402823466e38f;
        sum[j] = 0.0f;
    }
    $last_key
    for (int step = 0; step < $end; step += $keys) {
        const int count = min($keys, $end - step);
        $vector now[$vectors];
        for (int j = 0; j < $vectors; j++) {
            now[j] = greatest[j];
        }
        int i = 0;
        for (; i <= count - $key_block; i += $key_block) {
            $scores
        }
        $scores_rest
        $vector factor[$vectors];
        for (int j = 0; j < $vectors; j++) {
            factor[j] = weight(greatest[j] - now[j]);
            greatest[j] = now[j];
            sum[j] *= factor[j];
        }
        for (i = 0; i < count; i++) {
            #pragma unroll
            for (int j = 0; j < $vectors; j++) {
                const $vector value = weight(weights[i * $vectors + j] - now[j]);
                weights[i * $vectors + j] = value;
                sum[j] += value;
            }
        }
        $add_values
    }
    $store
}
