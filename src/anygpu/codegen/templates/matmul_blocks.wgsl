// $title
// Every invocation keeps $rows x $columns totals in registers and reads the operands where they are.
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
    $multiply
    $tail
    $stores
}
