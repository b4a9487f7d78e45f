// Sorts rows, or tiles of a row. Every lane sorts $items neighbours; then pairs of sorted stretches are merged, with
// each lane finding by itself which part of the merged stretch is its own.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    __local Value elements[$slots];
    $group
    const int lane = get_local_id(0);
    const int first_row = group / $tiles * $rows_per_group;
    const int tile = group % $tiles;
    const int count = min($span, $length - tile * $span);
    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int row = min(first_row + slot / $span, $last_row);
        const int i = min(tile * $span + slot % $span, $last);
        elements[slot] = $load;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    // Where this lane's row begins among the elements, and where in the row this lane begins.
    const int base = lane / $lanes * $span;
    const int begin = lane % $lanes * $items;
    Value mine[$items];
    for (int k = 0; k < $items; k++) {
        mine[k] = elements[base + begin + k];
    }
    for (int turn = 0; turn < $items; turn++) {
        for (int k = turn % 2; k < $items - 1; k += 2) {
            if (begin + k + 1 < count && less(mine[k + 1], mine[k])) {
                const Value smaller = mine[k + 1];
                mine[k + 1] = mine[k];
                mine[k] = smaller;
            }
        }
    }
    for (int k = 0; k < $items; k++) {
        elements[base + begin + k] = mine[k];
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    for (int width = $items; width < $span; width *= 2) {
        const int pair = min(begin / (2 * width) * (2 * width), count);
        const int middle = min(pair + width, count);
        const int end = min(pair + 2 * width, count);
        const int taken = min(begin, count) - pair;
        // How many of the first `taken` merged elements come from the left: equal ones come from there first.
        int fewest = max(0, taken - (end - middle));
        int most = min(taken, middle - pair);
        while (fewest < most) {
            const int half_way = (fewest + most) / 2;
            if (less(elements[base + middle + taken - 1 - half_way], elements[base + pair + half_way])) {
                most = half_way;
            } else {
                fewest = half_way + 1;
            }
        }
        int left = pair + fewest;
        int right = middle + taken - fewest;
        // The next element of each side is at hand: one more is read for each that is taken.
        Value on_left = elements[base + min(left, $span - 1)];
        Value on_right = elements[base + min(right, $span - 1)];
        for (int k = 0; k < $items; k++) {
            const bool take_left = right >= end || (left < middle && !less(on_right, on_left));
            const Value next = elements[base + min((take_left ? left : right) + 1, $span - 1)];
#ifdef WGSL
            if (take_left) {
                mine[k] = on_left;
                on_left = next;
                left++;
            } else {
                mine[k] = on_right;
                on_right = next;
                right++;
            }
#else
            mine[k] = take_left ? on_left : on_right;
            on_left = take_left ? next : on_left;
            on_right = take_left ? on_right : next;
            left += take_left;
            right += !take_left;
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < $items; k++) {
            elements[base + begin + k] = mine[k];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    for (int slot = lane; slot < $slots; slot += $group_size) {
        const int row = first_row + slot / $span;
        const int i = tile * $span + slot % $span;
        if (row <= $last_row && i <= $last) {
            const Value value = elements[slot];
            $store
        }
    }
}
