// Sorts rows, or tiles of a row. Every lane sorts $items neighbours; then pairs of sorted stretches are merged, with
// each lane finding by itself which part of the merged stretch is its own.
$declarations
$functions
$helpers

var<workgroup> elements: array<Value, $slots>;

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let lane = i32(lane_index);
    let first_row = group / $tiles * $rows_per_group;
    let tile = group % $tiles;
    let count = min($span, $length - tile * $span);
    for (var slot = lane; slot < $slots; slot += $group_size) {
        let row = min(first_row + slot / $span, $last_row);
        let i = min(tile * $span + slot % $span, $last);
        elements[slot] = $load;
    }
    workgroupBarrier();

    // Where this lane's row begins among the elements, and where in the row this lane begins.
    let base = lane / $lanes * $span;
    let begin = lane % $lanes * $items;
    var mine: array<Value, $items>;
    for (var k = 0; k < $items; k++) {
        mine[k] = elements[base + begin + k];
    }
    for (var turn = 0; turn < $items; turn++) {
        for (var k = turn % 2; k < $items - 1; k += 2) {
            if (begin + k + 1 < count && less(mine[k + 1], mine[k])) {
                let smaller = mine[k + 1];
                mine[k + 1] = mine[k];
                mine[k] = smaller;
            }
        }
    }
    for (var k = 0; k < $items; k++) {
        elements[base + begin + k] = mine[k];
    }
    workgroupBarrier();

    for (var width = $items; width < $span; width *= 2) {
        let pair = min(begin / (2 * width) * (2 * width), count);
        let middle = min(pair + width, count);
        let end = min(pair + 2 * width, count);
        let taken = min(begin, count) - pair;
        // How many of the first `taken` merged elements come from the left: equal ones come from there first.
        var fewest = max(0, taken - (end - middle));
        var most = min(taken, middle - pair);
        while (fewest < most) {
            let half = (fewest + most) / 2;
            if (less(elements[base + middle + taken - 1 - half], elements[base + pair + half])) {
                most = half;
            } else {
                fewest = half + 1;
            }
        }
        var left = pair + fewest;
        var right = middle + taken - fewest;
        // The next element of each side is at hand: one more is read for each that is taken.
        var on_left = elements[base + min(left, $span - 1)];
        var on_right = elements[base + min(right, $span - 1)];
        for (var k = 0; k < $items; k++) {
            let take_left = right >= end || (left < middle && !less(on_right, on_left));
            let next = elements[base + min(select(right, left, take_left) + 1, $span - 1)];
            if (take_left) {
                mine[k] = on_left;
                on_left = next;
                left++;
            } else {
                mine[k] = on_right;
                on_right = next;
                right++;
            }
        }
        workgroupBarrier();
        for (var k = 0; k < $items; k++) {
            elements[base + begin + k] = mine[k];
        }
        workgroupBarrier();
    }

    for (var slot = lane; slot < $slots; slot += $group_size) {
        let row = first_row + slot / $span;
        let i = tile * $span + slot % $span;
        if (row <= $last_row && i <= $last) {
            let value = elements[slot];
            $store
        }
    }
}
