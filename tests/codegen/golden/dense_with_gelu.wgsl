// 10 groups of 64
// [65, 127] @ [127, 63]
// The group shares tiles of both operands, 16 rows of a and 32 columns of b, 16 deep at a time;
// every invocation keeps 2 x 4 totals in registers.
@group(0) @binding(0) var<storage, read> input_a: array<f32, 8255>;
@group(0) @binding(1) var<storage, read> input_b: array<f32, 8001>;
@group(0) @binding(2) var<storage, read> input_c: array<f32, 63>;
@group(0) @binding(3) var<storage, read_write> t0: array<f32, 4095>;
var<private> zero: u32;

// (e^r - 1 - r) / r^2, |r| <= ln(2) / 2; error 2^-26.6.
fn expm1_tail_f32(r: f32) -> f32 {
    let square = r * r;
    var p = f32(0.001392639242);
    p = p * square + (0.008363345638 * r + 0.04166655242);
    p = p * square + (0.1666657627 * r + 0.5);
    return p;
}

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
fn half_expm1_f32(x: f32) -> f32 {
    let n = round(x * 1.44269504);
    let r = (x - n * 0.693359375) - n * -2.12194440e-4;
    let p = r + r * r * expm1_tail_f32(r);
    // As in scale_f32, with the bias of one less than n.
    let half = bitcast<f32>(bitcast<u32>(n + 12583038.0) << 23);
    return half * p + (half - 0.5);
}

fn copysign_f32(x: f32, y: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & ~0x80000000u) | (bitcast<u32>(y) & 0x80000000u));
}

// Beyond 10.0, or the bits of it, it is 1; NaN stays what it is.
// Half of e^2x - 1 is h, and h / (h + 1) the result.
fn tanh_f32(x: f32) -> f32 {
    let magnitude = bitcast<u32>(x) & ~0x80000000u;
    let h = half_expm1_f32(2.0 * bitcast<f32>(min(magnitude, 0x41200000u)));
    return select(copysign_f32(h / (h + 1.0), x), x, magnitude > 0x7f800000u);
}

fn load_a(batch: i32, m: i32, k: i32) -> f32 {
    let input_a_value = input_a[m * 127 + k];
    return input_a_value;
}

fn load_b(batch: i32, k: i32, n: i32) -> f32 {
    let input_b_value = input_b[k * 63 + n];
    return input_b_value;
}

fn store_out(batch: i32, m: i32, n: i32, total: f32) {
    let input_c_value = input_c[n];
    let add_1 = total + input_c_value;
    let multiply_2 = 0.5f * add_1;
    let multiply_3 = 0.044715f * add_1;
    let multiply_4 = bitcast<f32>(bitcast<u32>(multiply_3) ^ zero) * add_1;
    let multiply_5 = multiply_4 * add_1;
    let add_6 = bitcast<f32>(bitcast<u32>(add_1) ^ zero) + multiply_5;
    let multiply_7 = 0.7978846f * add_6;
    let tanh_8 = tanh_f32(bitcast<f32>(bitcast<u32>(multiply_7) ^ zero));
    let add_9 = 1.0f + tanh_8;
    let multiply_0 = bitcast<f32>(bitcast<u32>(multiply_2) ^ zero) * add_9;
    t0[m * 63 + n] = multiply_0;
}

// Along k in vectors, row after row, with room between the rows so that they begin in different banks.
var<workgroup> tile_a: array<vec4<f32>, 80>;
// Along n in vectors, one k after the other.
var<workgroup> tile_b: array<vec4<f32>, 128>;

@compute @workgroup_size(64)
fn multiply_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x); zero = group_id.z;
    let lane = i32(lane_index);
    let batch = 0;
    let first_row = group / 2 * 16;
    let first_column = group % 2 * 32;
    // The last tiles end at the edge: what they have in common with others is not stored again.
    let tile_row = min(first_row, 49);
    let tile_column = min(first_column, 31);
    let row = tile_row + lane / 8 * 2;
    let column = tile_column + lane % 8 * 4;
    let row_of_tile = lane / 8 * 10;
    let column_of_tile = lane % 8;
    var total_10_0 = vec4<f32>();
    var total_11_0 = vec4<f32>();
    for (var step = 0; step < 127; step += 16) {
        {
            let slot = lane;
            let m = slot / 4;
            let part_of_k = slot % 4;
            let k = step + part_of_k * 4;
            tile_a[m * 5 + part_of_k] = vec4<f32>(select(f32(), load_a(batch, tile_row + m, min(k, 127 - 1)), k < 127), select(f32(), load_a(batch, tile_row + m, min(k + 1, 127 - 1)), k + 1 < 127), select(f32(), load_a(batch, tile_row + m, min(k + 2, 127 - 1)), k + 2 < 127), select(f32(), load_a(batch, tile_row + m, min(k + 3, 127 - 1)), k + 3 < 127));
        }
        {
            let slot = lane;
            let k = step + slot / 8;
            let n = tile_column + slot % 8 * 4;
            tile_b[slot] = vec4<f32>(select(f32(), load_b(batch, min(k, 127 - 1), n), k < 127), select(f32(), load_b(batch, min(k, 127 - 1), n + 1), k < 127), select(f32(), load_b(batch, min(k, 127 - 1), n + 2), k < 127), select(f32(), load_b(batch, min(k, 127 - 1), n + 3), k < 127));
        }
        {
            let slot = lane + 64;
            let k = step + slot / 8;
            let n = tile_column + slot % 8 * 4;
            tile_b[slot] = vec4<f32>(select(f32(), load_b(batch, min(k, 127 - 1), n), k < 127), select(f32(), load_b(batch, min(k, 127 - 1), n + 1), k < 127), select(f32(), load_b(batch, min(k, 127 - 1), n + 2), k < 127), select(f32(), load_b(batch, min(k, 127 - 1), n + 3), k < 127));
        }
        workgroupBarrier();
        for (var k = 0; k < 16; k += 4) {
            let a_10 = tile_a[row_of_tile + k / 4];
            let a_11 = tile_a[row_of_tile + 5 + k / 4];
            let b_10_0 = tile_b[k * 8 + column_of_tile];
            let b_11_0 = tile_b[k * 8 + column_of_tile + 8];
            let b_12_0 = tile_b[k * 8 + column_of_tile + 16];
            let b_13_0 = tile_b[k * 8 + column_of_tile + 24];
            total_10_0 = fma(vec4<f32>(a_10[0]), b_10_0, total_10_0);
            total_10_0 = fma(vec4<f32>(a_10[1]), b_11_0, total_10_0);
            total_10_0 = fma(vec4<f32>(a_10[2]), b_12_0, total_10_0);
            total_10_0 = fma(vec4<f32>(a_10[3]), b_13_0, total_10_0);
            total_11_0 = fma(vec4<f32>(a_11[0]), b_10_0, total_11_0);
            total_11_0 = fma(vec4<f32>(a_11[1]), b_11_0, total_11_0);
            total_11_0 = fma(vec4<f32>(a_11[2]), b_12_0, total_11_0);
            total_11_0 = fma(vec4<f32>(a_11[3]), b_13_0, total_11_0);
        }
        workgroupBarrier();
    }
    if (row >= first_row) {
        if (column + 0 >= first_column) {
            store_out(batch, row, column + 0, total_10_0[0]);
        }
        if (column + 1 >= first_column) {
            store_out(batch, row, column + 1, total_10_0[1]);
        }
        if (column + 2 >= first_column) {
            store_out(batch, row, column + 2, total_10_0[2]);
        }
        if (column + 3 >= first_column) {
            store_out(batch, row, column + 3, total_10_0[3]);
        }
    }
    if (row + 1 >= first_row) {
        if (column + 0 >= first_column) {
            store_out(batch, row + 1, column + 0, total_11_0[0]);
        }
        if (column + 1 >= first_column) {
            store_out(batch, row + 1, column + 1, total_11_0[1]);
        }
        if (column + 2 >= first_column) {
            store_out(batch, row + 1, column + 2, total_11_0[2]);
        }
        if (column + 3 >= first_column) {
            store_out(batch, row + 1, column + 3, total_11_0[3]);
        }
    }
}
