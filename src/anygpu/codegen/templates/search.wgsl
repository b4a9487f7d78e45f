$helpers

// Where a value belongs in the sorted line: before its equals (left), or after them (right).
fn $name($parameters) -> i32 {
    let value = $value;
    var first = 0;
    var last = $length;
    while (first < last) {
        let i = (first + last) / 2;
        let candidate = $load;
        if ($further) {
            first = i + 1;
        } else {
            last = i;
        }
    }
    return first;
}
