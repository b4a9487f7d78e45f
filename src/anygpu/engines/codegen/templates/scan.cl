// Running totals along rows. Every lane scans $items neighbours, then the lanes' totals are scanned together.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    __local Value values[$slots];
    __local Value totals[$group_size];
    $group
    const int lane = get_local_id(0);
    const int first_row = group / $tiles * $rows_per_group;
    const int tile = group % $tiles;

    // Neighbouring lanes read neighbouring elements. Past the end the last one is read again: nothing before it sees that.
    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int row = min(first_row + slot / $span, $last_row);
        const int i = min(tile * $span + slot % $span, $last);
        values[slot] = $load;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const int first = lane * $items;
    const int lane_of_row = lane % $lanes;
    Value running = values[first];
    for (int slot = first + 1; slot < first + $items; slot++) {
        running = combine(running, values[slot]);
        values[slot] = running;
    }
    totals[lane] = running;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int distance = 1; distance < $lanes; distance *= 2) {
        if (lane_of_row >= distance) {
            running = combine(totals[lane - distance], running);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        totals[lane] = running;
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    Value before = totals[max(lane - 1, 0)];
    bool begins = lane_of_row == 0;
    $carry
    if (!begins) {
        for (int slot = first; slot < first + $items; slot++) {
            values[slot] = combine(before, values[slot]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int row = first_row + slot / $span;
        const int i = tile * $span + slot % $span;
        if (row <= $last_row && i <= $last) {
            const Value value = values[slot];
            $store
        }
    }
}
