// 1 groups of 32
@group(0) @binding(0) var<storage, read> input_a: array<f32, 130>;
@group(0) @binding(1) var<storage, read> input_b: array<f32, 130>;
@group(0) @binding(2) var<storage, read_write> t0: array<f32, 130>;

@compute @workgroup_size(32)
fn multiply_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 17) {
        return;
    }
    if (block < 16) {
        for (var part = 0; part < 4; part += 1) {
            let input_a_value_re = input_a[block * 8 + part * 2];
            let input_a_value_im = input_a[block * 8 + part * 2 + 1];
            let input_b_value_re = input_b[block * 8 + part * 2];
            let input_b_value_im = input_b[block * 8 + part * 2 + 1];
            let multiply_0 = (input_a_value_re * input_b_value_re) - (input_a_value_im * input_b_value_im);
            let multiply_0_2 = (input_a_value_re * input_b_value_im) + (input_a_value_im * input_b_value_re);
            t0[block * 8 + part * 2] = multiply_0;
            t0[block * 8 + part * 2 + 1] = multiply_0_2;
        }
    }
    if (block == 16) {
        for (var i = 64; i < 65; i += 1) {
            let input_a_value_re = input_a[i * 2];
            let input_a_value_im = input_a[i * 2 + 1];
            let input_b_value_re = input_b[i * 2];
            let input_b_value_im = input_b[i * 2 + 1];
            let multiply_0 = (input_a_value_re * input_b_value_re) - (input_a_value_im * input_b_value_im);
            let multiply_0_2 = (input_a_value_re * input_b_value_im) + (input_a_value_im * input_b_value_re);
            t0[i * 2] = multiply_0;
            t0[i * 2 + 1] = multiply_0_2;
        }
    }
}
