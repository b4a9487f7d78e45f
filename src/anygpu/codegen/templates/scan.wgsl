// Running totals along rows. Every lane scans $items neighbours, then the lanes' totals are scanned together.
$declarations
$functions
$helpers

var<workgroup> values: array<Value, $slots>;
var<workgroup> totals: array<Value, $group_size>;

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let lane = i32(lane_index);
    let first_row = group / $tiles * $rows_per_group;
    let tile = group % $tiles;

    // Neighbouring lanes read neighbouring elements. Past the end the last one is read again: nothing before it sees that.
    for (var slot = lane; slot < $slots; slot += $group_size) {
        let row = min(first_row + slot / $span, $last_row);
        let i = min(tile * $span + slot % $span, $last);
        values[slot] = $load;
    }
    workgroupBarrier();

    let first = lane * $items;
    let lane_of_row = lane % $lanes;
    var running = values[first];
    for (var slot = first + 1; slot < first + $items; slot++) {
        running = combine(running, values[slot]);
        values[slot] = running;
    }
    totals[lane] = running;
    workgroupBarrier();
    for (var distance = 1; distance < $lanes; distance *= 2) {
        if (lane_of_row >= distance) {
            running = combine(totals[lane - distance], running);
        }
        workgroupBarrier();
        totals[lane] = running;
        workgroupBarrier();
    }

    var before = totals[max(lane - 1, 0)];
    var begins = lane_of_row == 0;
    $carry
    if (!begins) {
        for (var slot = first; slot < first + $items; slot++) {
            values[slot] = combine(before, values[slot]);
        }
    }
    workgroupBarrier();
    for (var slot = lane; slot < $slots; slot += $group_size) {
        let row = first_row + slot / $span;
        let i = tile * $span + slot % $span;
        if (row <= $last_row && i <= $last) {
            let value = values[slot];
            $store
        }
    }
}
