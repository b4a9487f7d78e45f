$helpers

// Where a value belongs in the sorted line: before its equals (left), or after them (right).
int $name(${taken}$parameters) {
    const $struct value = $value;
    int first = 0;
    int last = $length;
    while (first < last) {
        const int i = (first + last) / 2;
        const $struct candidate = $load;
        if ($further) {
            first = i + 1;
        } else {
            last = i;
        }
    }
    return first;
}
