// Each update on its own. An index outside of the axis is reported, and its update left out.
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
    let index = load_index(${pass}row / $rows_of_batch, i / $after);
    if ($outside) {
        report(${pass}index);
        $left_out
    } else {
        let place = i32(index) * $after + i % $after;
        $apply
    }
}
