// $title
// Every invocation keeps the totals of $channels channels x $rows rows x $columns columns in registers.
$declarations
$functions

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters$builtins) {
    $group
    const int lane = get_local_id(0);
    $place
    $totals
    for (int c = 0; c < $input_channels; c++) {
        $multiply
    }
    $stores
}
