// One pass of a Fourier transform: $columns transforms of $radix elements together, by the factors $factors.
$declarations
$functions

fn multiplied(a: $complex, b: $complex) -> $complex {
    return $complex(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// Two halves: every step reads one and writes the other.
var<workgroup> values: array<$complex, $shared>;

@compute @workgroup_size($group_size)
fn $name(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    $group
    let lane = i32(lane_index);
    for (var slot = lane; slot < $slots; slot += $group_size) {
        let element = $load_element;
        let column = $load_column;
        let number = min(group * $columns + column, $last_column);
        let row = number / $columns_of_row;
        let j = number % $columns_of_row;
        let i = j + element * $columns_of_row;
        var value = $complex();
        $load
        $turn
        values[column * $pitch + element] = value;
    }
    workgroupBarrier();
    $steps
    for (var slot = lane; slot < $slots; slot += $group_size) {
        let element = $store_element;
        let column = $store_column;
        let number = group * $columns + column;
        if (number <= $last_column) {
            let row = number / $columns_of_row;
            let j = number % $columns_of_row;
            let i = (j / $done * $radix + element) * $done + j % $done;
            var value = values[$finished + column * $pitch + element];
            $store
        }
    }
}
