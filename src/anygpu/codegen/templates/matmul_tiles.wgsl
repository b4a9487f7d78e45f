// $title
// The group shares tiles of both operands, $tile_rows rows of a and $tile_columns columns of b, $stage_depth deep at a time;
// every invocation keeps $rows x $columns totals in registers.
$declarations
$functions

// Along k in vectors, row after row, with room between the rows so that they begin in different banks.
var<workgroup> tile_a: array<$vector, $tile_a_size>;
// Along n in vectors, one k after the other.
var<workgroup> tile_b: array<$vector, $tile_b_size>;

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let lane = i32(lane_index);
    $place
    $place_in_tiles
    $totals
    for (var step = $first_k; step < $end_k; step += $stage_depth) {
        $stage_a
        $stage_b
        workgroupBarrier();
        for (var k = 0; k < $stage_depth; k += $width) {
            $load_a
            $load_b
            $multiply
        }
        workgroupBarrier();
    }
    $stores
}
