// Each element of the result, in order: as it was, or with the latest of its updates.
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
    let latest = $latest[row / $before * $axis + i / $after];
    var value: Value;
    if (latest == 0) {
        value = $load;
    } else {
        let update = latest - 1;
        value = $updated;
    }
    $store
}
