// Each element of the result: what it was, and its total in every copy of the axis.
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
    Value value = $load;
    for (int copy = 0; copy < $copies; copy++) {
        const int place = (copy * $columns + row * $after + i % $after) * $axis + i / $after;
        value = combine(value, $part);
    }
    $store
}
