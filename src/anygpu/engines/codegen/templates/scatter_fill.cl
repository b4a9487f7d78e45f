// Each element on its own: a copy, or a beginning.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    $group
    const int number = group * $group_size + (int)get_local_id(0);
    if (number < $count) {
        const int row = number / $row_length;
        const int i = number % $row_length;
        const Value value = $load;
        $store
    }
}
