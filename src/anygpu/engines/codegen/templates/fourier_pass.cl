// One pass of an FFT: $columns transforms of $radix elements together, by the factors $factors.
$declarations
$functions

$complex multiplied($complex a, $complex b) {
    return ($complex)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    // Two halves: every step reads one and writes the other.
    __local $complex values[$shared];
    $group
    const int lane = get_local_id(0);
    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int element = $load_element;
        const int column = $load_column;
        const int number = min(group * $columns + column, $last_column);
        const int row = number / $columns_of_row;
        const int j = number % $columns_of_row;
        const int i = j + element * $columns_of_row;
        $complex value = ($complex)(0);
        $load
        $turn
        values[column * $pitch + element] = value;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    $steps
    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int element = $store_element;
        const int column = $store_column;
        const int number = group * $columns + column;
        if (number <= $last_column) {
            const int row = number / $columns_of_row;
            const int j = number % $columns_of_row;
            const int i = (j / $done * $radix + element) * $done + j % $done;
            $complex value = values[$finished + column * $pitch + element];
            $store
        }
    }
}
