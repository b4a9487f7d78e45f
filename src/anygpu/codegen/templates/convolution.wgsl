// $title
// Every invocation keeps the totals of $channels channels x $rows rows x $columns columns in registers.
$declarations
$functions

@compute @workgroup_size($group_size)
fn $name(
    @builtin(workgroup_id) group_id: vec3<u32>,
    @builtin(local_invocation_index) lane_index: u32,
    $builtins
) {
    $group
    let lane = i32(lane_index);
    $place
    $totals
    for (var c = 0; c < $input_channels; c++) {
        $multiply
    }
    $stores
}
