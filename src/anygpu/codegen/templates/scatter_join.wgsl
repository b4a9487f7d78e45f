// Each element of the result: what it was, and its total in every copy of the axis.
$declarations
$functions
$helpers

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let number = group * $group_size + i32(lane_index);
    if (number >= $count) {
        return;
    }
    let row = number / $row_length;
    let i = number % $row_length;
    var value = $load;
    for (var copy = 0; copy < $copies; copy++) {
        let place = (copy * $columns + row * $after + i % $after) * $axis + i / $after;
        value = combine(value, $part);
    }
    $store
}
