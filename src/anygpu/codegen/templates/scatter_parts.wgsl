// Each lane brings one stretch of the updates, in order, into a copy of the axis that is its own.
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
    let column = number % $columns;
    let row = column / $after;
    let first = number / $columns * $stretch;
    let end = min(first + $stretch, $positions);
    for (var position = first; position < end; position++) {
        let index = load_index(${pass}row / $before, position);
        if ($outside) {
            report(${pass}index);
        } else {
            let place = number * $axis + i32(index);
            let i = position * $after + column % $after;
            let value = combine($part, $load);
            $store
        }
    }
}
