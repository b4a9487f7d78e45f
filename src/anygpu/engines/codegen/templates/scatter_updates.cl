// Each update on its own. An index outside of the axis is reported, and its update left out.
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
    const $index_type index = load_index(${pass}row / $rows_of_batch, i / $after);
    if ($outside) {
        report(${pass}index);
        $left_out
    } else {
        const int place = (int)index * $after + i % $after;
        $apply
    }
}
