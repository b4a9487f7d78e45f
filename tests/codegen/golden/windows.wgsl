// 10 groups of 128
@group(0) @binding(0) var<storage, read> input_a_0: array<f32>;
@group(0) @binding(1) var<storage, read> input_a_1: array<f32>;
@group(0) @binding(2) var<storage, read> input_a_2: array<f32>;
@group(0) @binding(3) var<storage, read_write> t0_0: array<f32>;
@group(0) @binding(4) var<storage, read_write> t0_1: array<f32>;
@group(0) @binding(5) var<storage, read_write> t0_2: array<f32>;

fn load_input_a(i: i32) -> f32 {
    let inside = i & 2047;
    switch i >> 11u {
        case 0: { return input_a_0[inside]; }
        case 1: { return input_a_1[inside]; }
        default: { return input_a_2[inside]; }
    }
}

fn load_t0(i: i32) -> f32 {
    let inside = i & 2047;
    switch i >> 11u {
        case 0: { return t0_0[inside]; }
        case 1: { return t0_1[inside]; }
        default: { return t0_2[inside]; }
    }
}

fn store_t0(i: i32, value: f32) {
    let inside = i & 2047;
    switch i >> 11u {
        case 0: { t0_0[inside] = value; }
        case 1: { t0_1[inside] = value; }
        default: { t0_2[inside] = value; }
    }
}

@compute @workgroup_size(128)
fn add_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x) + i32(group_id.y) * 8;
    if (group >= 10) { return; }
    let lane = i32(lane_index);
    let block = group * 128 + lane;
    if (block >= 1250) {
        return;
    }
    for (var part = 0; part < 4; part += 1) {
        let input_a_value = load_input_a(block * 4 + part);
        let add_0 = input_a_value + 1.0f;
        store_t0(block * 4 + part, add_0);
    }
}
