// $title
// Every invocation keeps $rows x $columns totals in registers and reads the operands where they are.
$declarations
$functions

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters$builtins) {
    $group
    const int lane = get_local_id(0);
    $place
    $totals
    $multiply
    $tail
    $stores
}
