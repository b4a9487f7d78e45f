// Each lane brings one stretch of the updates, in order, into a copy of the axis that is its own.
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
    const int column = number % $columns;
    const int row = column / $after;
    const int first = number / $columns * $stretch;
    const int end = min(first + $stretch, $positions);
    for (int position = first; position < end; position++) {
        const $index_type index = load_index(${pass}row / $before, position);
        if ($outside) {
            report(${pass}index);
        } else {
            const int place = number * $axis + (int)index;
            const int i = position * $after + column % $after;
            const Value value = combine($part, $load);
            $store
        }
    }
}
