// Each element on its own: a copy, or a beginning.
$declarations
$functions
$helpers

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let number = group * $group_size + i32(lane_index);
    if (number < $count) {
        let row = number / $row_length;
        let i = number % $row_length;
        let value = $load;
        $store
    }
}
