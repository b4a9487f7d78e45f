// $title
// For processors: one invocation is the whole group. It copies a panel of b, $tile_columns columns and $stage_depth deep, into memory
// that stays near, as strips that are read from front to end, and passes the rows over it in blocks of $rows x $columns.
$declarations
$functions

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void $name($parameters) {
    __local $vector panel_b[$panel_b_size];
    $more_memory
    $group
    $place
    for (int step = $first_k; step < $end_k; step += $stage_depth) {
        const int depth = min($stage_depth, $end_k - step);
        $stage_b
        $stage_a
        for (int strip = 0; strip < $strips; strip++) {
            const int column = $strip_column;
            for (int block = 0; block < $blocks; block++) {
                const int row = $block_row;
                $totals
                $resume
                #pragma unroll $depth
                for (int k = 0; k < depth; k++) {
                    $load_a
                    $load_b
                    $multiply
                }
                $keep
            }
        }
    }
}
