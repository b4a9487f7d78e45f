// Merges pairs of sorted stretches. A group writes one tile of the result: it finds which elements of
// both sides belong there, brings them together, and its lanes do the same once more among these.
$declarations
$functions
$helpers

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    __local Value elements[$slots];
    __local int lefts[2];
    $group
    const int lane = get_local_id(0);
    const int width = widths[0];
    const int row = group / $tiles;
    const int start = group % $tiles * $slots;
    const int pair = start / (2 * width) * (2 * width);
    const int middle = min(pair + width, $length);
    const int end = min(pair + (2 * width), $length);
    const int stop = min(start + $slots, end);

    // How many of the pair's first merged elements come from the left: before this tile, and up to its end.
    if (lane < 2) {
        const int taken = (lane == 1 ? stop : start) - pair;
        int fewest = max(0, taken - (end - middle));
        int most = min(taken, middle - pair);
        while (fewest < most) {
            const int half_way = (fewest + most) / 2;
            Value on_left, on_right;
            {
                const int i = pair + half_way;
                on_left = $load;
            }
            {
                const int i = middle + taken - 1 - half_way;
                on_right = $load;
            }
            if (less(on_right, on_left)) {
                most = half_way;
            } else {
                fewest = half_way + 1;
            }
        }
        lefts[lane] = fewest;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int first_left = pair + lefts[0];
    const int first_right = middle + start - pair - lefts[0];
    const int from_left = lefts[1] - lefts[0];
    const int count = stop - start;
    for (int slot = lane; slot < count; slot += $group_size) {
        const int i = slot < from_left ? first_left + slot : first_right + slot - from_left;
        elements[slot] = $load;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const int begin = min(lane * $items, count);
    int fewest = max(0, begin - (count - from_left));
    int most = min(begin, from_left);
    while (fewest < most) {
        const int half_way = (fewest + most) / 2;
        if (less(elements[from_left + begin - 1 - half_way], elements[half_way])) {
            most = half_way;
        } else {
            fewest = half_way + 1;
        }
    }
    int left = fewest;
    int right = from_left + begin - fewest;
    // The next element of each side is at hand: one more is read for each that is taken.
    Value on_left = elements[min(left, $slots - 1)];
    Value on_right = elements[min(right, $slots - 1)];
    Value mine[$items];
    for (int k = 0; k < $items; k++) {
        const bool take_left = right >= count || (left < from_left && !less(on_right, on_left));
        const Value next = elements[min((take_left ? left : right) + 1, $slots - 1)];
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
        if (begin + k < count) {
            elements[begin + k] = mine[k];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int slot = lane; slot < count; slot += $group_size) {
        const int i = start + slot;
        const Value value = elements[slot];
        $store
    }
}
