// For every place along the axis, the last of its updates in sorted order, counted from 1; 0 stays where there is none.
$declarations
$functions

__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))
void $name($parameters) {
    $group
    const int number = group * $group_size + (int)get_local_id(0);
    if (number >= $count) {
        return;
    }
    const int i = number % $positions;
    const int place = $places[number];
    // Updates that were left out are sorted to the end, as one more place.
    if (place < $axis && (i == $positions - 1 || $places[min(number + 1, $count - 1)] != place)) {
        $latest[number / $positions * $axis + place] = i + 1;
    }
}
