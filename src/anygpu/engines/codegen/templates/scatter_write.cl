// Each element of the result, in order: as it was, or with the latest of its updates.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    $group
    const int number = group * $group_size + (int)get_local_id(0);
    if (number >= $count) {
        return;
    }
    const int row = number / $row_length;
    const int i = number % $row_length;
    const int latest = $latest[row / $before * $axis + i / $after];
    Value value;
    if (latest == 0) {
        value = $load;
    } else {
        const int update = latest - 1;
        value = $updated;
    }
    $store
}
