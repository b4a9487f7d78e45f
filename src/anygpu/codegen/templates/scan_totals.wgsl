// The total of every tile of a row but the last, which nobody needs; the order of the elements is kept.
$declarations
$functions
$helpers

var<workgroup> values: array<Value, $slots>;
var<workgroup> totals: array<Value, $group_size>;

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let lane = i32(lane_index);
    let row = group / $totals_of_row;
    let tile = group % $totals_of_row;
    for (var slot = lane; slot < $slots; slot += $group_size) {
        let i = tile * $slots + slot;
        values[slot] = $load;
    }
    workgroupBarrier();

    let first = lane * $items;
    var running = values[first];
    for (var slot = first + 1; slot < first + $items; slot++) {
        running = combine(running, values[slot]);
    }
    totals[lane] = running;
    workgroupBarrier();
    for (var distance = 1; distance < $group_size; distance *= 2) {
        if (lane % (2 * distance) == 0) {
            totals[lane] = combine(totals[lane], totals[lane + distance]);
        }
        workgroupBarrier();
    }
    if (lane == 0) {
        let value = totals[0];
        $store
    }
}
