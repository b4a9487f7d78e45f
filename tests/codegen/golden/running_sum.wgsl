// 3 groups of 256
// Running totals along rows. Every lane scans 5 neighbours, then the lanes' totals are scanned together.
@group(0) @binding(0) var<storage, read> input_a: array<f32, 3075>;
@group(0) @binding(1) var<storage, read_write> t0: array<f32, 3075>;
fn load_1(row: i32, i: i32) -> f32 {
    let input_a_value = input_a[i * 3 + row];
    return input_a_value;
}

fn store_1(row: i32, i: i32, value: f32) {
    t0[i * 3 + row] = value;
}
struct Value {
    part_1: f32,
}

fn combine(a: Value, b: Value) -> Value {
    return Value(a.part_1 + b.part_1);
}

var<workgroup> values: array<Value, 1280>;
var<workgroup> totals: array<Value, 256>;

@compute @workgroup_size(256)
fn scan_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let first_row = group / 1 * 1;
    let tile = group % 1;

    // Neighbouring lanes read neighbouring elements. Past the end the last one is read again: nothing before it sees that.
    for (var slot = lane; slot < 1280; slot += 256) {
        let row = min(first_row + slot / 1280, 2);
        let i = min(tile * 1280 + slot % 1280, 1024);
        values[slot] = Value(load_1(row, i));
    }
    workgroupBarrier();

    let first = lane * 5;
    let lane_of_row = lane % 256;
    var running = values[first];
    for (var slot = first + 1; slot < first + 5; slot++) {
        running = combine(running, values[slot]);
        values[slot] = running;
    }
    totals[lane] = running;
    workgroupBarrier();
    for (var distance = 1; distance < 256; distance *= 2) {
        if (lane_of_row >= distance) {
            running = combine(totals[lane - distance], running);
        }
        workgroupBarrier();
        totals[lane] = running;
        workgroupBarrier();
    }

    var before = totals[max(lane - 1, 0)];
    var begins = lane_of_row == 0;
    if (!begins) {
        for (var slot = first; slot < first + 5; slot++) {
            values[slot] = combine(before, values[slot]);
        }
    }
    workgroupBarrier();
    for (var slot = lane; slot < 1280; slot += 256) {
        let row = first_row + slot / 1280;
        let i = tile * 1280 + slot % 1280;
        if (row <= 2 && i <= 1024) {
            let value = values[slot];
            store_1(row, i, value.part_1);
        }
    }
}
