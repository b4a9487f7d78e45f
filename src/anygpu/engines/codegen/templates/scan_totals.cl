// The total of every tile of a row but the last, which is not needed; the order of the elements is kept.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    __local Value values[$slots];
    __local Value totals[$group_size];
    $group
    const int lane = get_local_id(0);
    const int row = group / $totals_of_row;
    const int tile = group % $totals_of_row;
    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int i = tile * $slots + slot;
        values[slot] = $load;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const int first = lane * $items;
    Value running = values[first];
    for (int slot = first + 1; slot < first + $items; slot++) {
        running = combine(running, values[slot]);
    }
    totals[lane] = running;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int distance = 1; distance < $group_size; distance *= 2) {
        if (lane % (2 * distance) == 0) {
            totals[lane] = combine(totals[lane], totals[lane + distance]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0) {
        const Value value = totals[0];
        $store
    }
}
