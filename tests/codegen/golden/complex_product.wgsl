// 1 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<f32, 130>;
@group(0) @binding(1) var<storage, read> input_b: array<f32, 130>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32, 130>;

@compute @workgroup_size(32)
fn multiply_2(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 17) {
        return;
    }
    if (block < 16) {
        for (var part = 0; part < 4; part += 1) {
            let a_re = input_a[block * 8 + part * 2];
            let a_im = input_a[block * 8 + part * 2 + 1];
            let b_re = input_b[block * 8 + part * 2];
            let b_im = input_b[block * 8 + part * 2 + 1];
            let multiply_2 = (a_re * b_re) - (a_im * b_im);
            let multiply_2_2 = (a_re * b_im) + (a_im * b_re);
            t2[block * 8 + part * 2] = multiply_2;
            t2[block * 8 + part * 2 + 1] = multiply_2_2;
        }
    }
    if (block == 16) {
        for (var i = 64; i < 65; i += 1) {
            let a_re = input_a[i * 2];
            let a_im = input_a[i * 2 + 1];
            let b_re = input_b[i * 2];
            let b_im = input_b[i * 2 + 1];
            let multiply_2 = (a_re * b_re) - (a_im * b_im);
            let multiply_2_2 = (a_re * b_im) + (a_im * b_re);
            t2[i * 2] = multiply_2;
            t2[i * 2 + 1] = multiply_2_2;
        }
    }
}
