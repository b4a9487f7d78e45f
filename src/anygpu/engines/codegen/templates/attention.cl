// $title
// Every invocation has $queries queries and keeps them, and their totals, in registers; it goes over the keys $chunk at a time.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters$builtins) {
    $shared
    $group
    const int lane = get_local_id(0);
    $place
    $load_queries
    $begin
    $last_key
    for (int step = 0; step < $end; step += $keys) {
        $stage
        $chunks
    }
    $store
}
