// 3 groups of 256
// Running totals along rows. Every lane scans 5 neighbours, then the lanes' totals are scanned together.
#pragma OPENCL FP_CONTRACT OFF
static inline float load_0(__global const float *restrict input_a, __global float *restrict t1, const int row, const int i) {
    const float input_a_value = input_a[i * 3 + row];
    return input_a_value;
}

static inline void store_0(__global const float *restrict input_a, __global float *restrict t1, const int row, const int i, const float value) {
    t1[i * 3 + row] = value;
}
typedef struct {
    float part_0;
} Value;

Value combine(Value a, Value b) {
    return (Value){a.part_0 + b.part_0};
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void scan_1(__global const float *restrict input_a, __global float *restrict t1) {
    __local Value values[1280];
    __local Value totals[256];
    const int group = (int)get_group_id(0);
    const int lane = get_local_id(0);
    const int first_row = group / 1 * 1;
    const int tile = group % 1;

    // Neighbouring lanes read neighbouring elements. Past the end the last one is read again: nothing before it sees that.
    for (int slot = lane; slot < 1280; slot += 256) {
        const int row = min(first_row + slot / 1280, 2);
        const int i = min(tile * 1280 + slot % 1280, 1024);
        values[slot] = (Value){load_0(input_a, t1, row, i)};
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const int first = lane * 5;
    const int lane_of_row = lane % 256;
    Value running = values[first];
    for (int slot = first + 1; slot < first + 5; slot++) {
        running = combine(running, values[slot]);
        values[slot] = running;
    }
    totals[lane] = running;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int distance = 1; distance < 256; distance *= 2) {
        if (lane_of_row >= distance) {
            running = combine(totals[lane - distance], running);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        totals[lane] = running;
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    Value before = totals[max(lane - 1, 0)];
    bool begins = lane_of_row == 0;
    if (!begins) {
        for (int slot = first; slot < first + 5; slot++) {
            values[slot] = combine(before, values[slot]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int slot = lane; slot < 1280; slot += 256) {
        const int row = first_row + slot / 1280;
        const int i = tile * 1280 + slot % 1280;
        if (row <= 2 && i <= 1024) {
            const Value value = values[slot];
            store_0(input_a, t1, row, i, value.part_0);
        }
    }
}
