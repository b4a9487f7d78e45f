// Merges pairs of sorted stretches. A group writes one tile of the result: it finds which elements of
// both sides belong there, brings them together, and its lanes do the same once more among these.
$declarations
$functions
$helpers

var<workgroup> elements: array<Value, $slots>;
var<workgroup> lefts: array<i32, 2>;

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let lane = i32(lane_index);
    let width = widths[0];
    let row = group / $tiles;
    let start = group % $tiles * $slots;
    let pair = start / (2 * width) * (2 * width);
    let middle = min(pair + width, $length);
    let end = min(pair + (2 * width), $length);
    let stop = min(start + $slots, end);

    // How many of the pair's first merged elements come from the left: before this tile, and up to its end.
    if (lane < 2) {
        let taken = select(start, stop, lane == 1) - pair;
        var fewest = max(0, taken - (end - middle));
        var most = min(taken, middle - pair);
        while (fewest < most) {
            let half = (fewest + most) / 2;
            var on_left: Value;
            var on_right: Value;
            {
                let i = pair + half;
                on_left = $load;
            }
            {
                let i = middle + taken - 1 - half;
                on_right = $load;
            }
            if (less(on_right, on_left)) {
                most = half;
            } else {
                fewest = half + 1;
            }
        }
        lefts[lane] = fewest;
    }
    workgroupBarrier();
    let first_left = pair + lefts[0];
    let first_right = middle + start - pair - lefts[0];
    let from_left = lefts[1] - lefts[0];
    let count = stop - start;
    for (var slot = lane; slot < count; slot += $group_size) {
        let i = select(first_right + slot - from_left, first_left + slot, slot < from_left);
        elements[slot] = $load;
    }
    workgroupBarrier();

    let begin = min(lane * $items, count);
    var fewest = max(0, begin - (count - from_left));
    var most = min(begin, from_left);
    while (fewest < most) {
        let half = (fewest + most) / 2;
        if (less(elements[from_left + begin - 1 - half], elements[half])) {
            most = half;
        } else {
            fewest = half + 1;
        }
    }
    var left = fewest;
    var right = from_left + begin - fewest;
    // The next element of each side is at hand: one more is read for each that is taken.
    var on_left = elements[min(left, $slots - 1)];
    var on_right = elements[min(right, $slots - 1)];
    var mine: array<Value, $items>;
    for (var k = 0; k < $items; k++) {
        let take_left = right >= count || (left < from_left && !less(on_right, on_left));
        let next = elements[min(select(right, left, take_left) + 1, $slots - 1)];
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
        if (begin + k < count) {
            elements[begin + k] = mine[k];
        }
    }
    workgroupBarrier();
    for (var slot = lane; slot < count; slot += $group_size) {
        let i = start + slot;
        let value = elements[slot];
        $store
    }
}
