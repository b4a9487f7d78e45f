// 10 groups of 128
@group(0) @binding(0) var<storage, read> input_a_0: array<f32>;
@group(0) @binding(1) var<storage, read> input_a_1: array<f32>;
@group(0) @binding(2) var<storage, read> input_a_2: array<f32>;
@group(0) @binding(3) var<storage, read_write> t3_0: array<f32>;
@group(0) @binding(4) var<storage, read_write> t3_1: array<f32>;
@group(0) @binding(5) var<storage, read_write> t3_2: array<f32>;

fn load_input_a(i: i32) -> f32 {
    let inside = i & 2047;
    switch i >> 11u {
        case 0: { return input_a_0[inside]; }
        case 1: { return input_a_1[inside]; }
        default: { return input_a_2[inside]; }
    }
}

fn load_t3(i: i32) -> f32 {
    let inside = i & 2047;
    switch i >> 11u {
        case 0: { return t3_0[inside]; }
        case 1: { return t3_1[inside]; }
        default: { return t3_2[inside]; }
    }
}

fn store_t3(i: i32, value: f32) {
    let inside = i & 2047;
    switch i >> 11u {
        case 0: { t3_0[inside] = value; }
        case 1: { t3_1[inside] = value; }
        default: { t3_2[inside] = value; }
    }
}

@compute @workgroup_size(128)
fn add_3(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x) + i32(group_id.y) * 8;
    if (group >= 10) { return; }
    let lane = i32(lane_index);
    let block = group * 128 + lane;
    if (block >= 1250) {
        return;
    }
    for (var part = 0; part < 4; part += 1) {
        let a = load_input_a(block * 4 + part);
        let add_3 = a + 1.0f;
        store_t3(block * 4 + part, add_3);
    }
}
