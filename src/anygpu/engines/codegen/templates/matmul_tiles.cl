// $title
// The group shares tiles of both operands, $tile_rows rows of a and $tile_columns columns of b, $stage_depth deep at a time;
// every invocation keeps $rows x $columns totals in registers.
$declarations
$functions

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    // Along k in vectors, row after row, with room between the rows so that they begin in different banks.
    __local $vector tile_a[$tile_a_size];
    // Along n in vectors, one k after the other.
    __local $vector tile_b[$tile_b_size];
    $group
    const int lane = get_local_id(0);
    $place
    $place_in_tiles
    $totals
    for (int step = $first_k; step < $end_k; step += $stage_depth) {
        $stage_a
        $stage_b
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < $stage_depth; k += $width) {
            $load_a
            $load_b
            $multiply
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    $stores
}
