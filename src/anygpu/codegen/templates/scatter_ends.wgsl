// For every place along the axis, the last of its updates in sorted order, counted from 1; 0 stays where there is none.
$declarations
$functions

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let number = group * $group_size + i32(lane_index);
    if (number >= $count) {
        return;
    }
    let i = number % $positions;
    let place = $places[number];
    // What was left out has sorted behind everything else, as one more place.
    if (place < $axis && (i == $positions - 1 || $places[min(number + 1, $count - 1)] != place)) {
        $latest[number / $positions * $axis + place] = i + 1;
    }
}
