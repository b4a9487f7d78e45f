// $title
// Every invocation has $queries queries and keeps them, and their totals, in registers; it goes over the keys $chunk at a time.
$declarations
$functions

$shared

// 2^x of numbers that are not positive. What is not a number stays what it is.
fn weight(x: f32) -> f32 {
    $weight
}

@compute @workgroup_size($group_size)
fn $name(
    @builtin(workgroup_id) group_id: vec3<u32>,
    @builtin(local_invocation_index) lane_index: u32,
    $builtins
) {
    $group
    let lane = i32(lane_index);
    $place
    $load_queries
    $begin
    $last_key
    for (var step = 0; step < $end; step += $keys) {
        $stage
        $chunks
    }
    $store
}
