// 1 groups of 128
enable f16;

@group(0) @binding(0) var<storage, read> input_a: array<vec4<f16>, 65>;
@group(0) @binding(1) var<storage, read_write> t0: array<vec4<f16>, 65>;

// float16, held in 16 of the 32 bits of an integer. Everything by integers, for devices differ in how they round
// and in whether they keep subnormal numbers.
fn f16_from_bits(bits: u32) -> f32 {
    let magnitude = bits & 0x7fffu;
    // Infinity and NaN move from the top of one range of exponents to the top of the other.
    let rebias = select(0x38000000u, 0x70000000u, magnitude >= 0x7c00u);
    let normal = bitcast<f32>((magnitude << 13u) + rebias);
    let value = select(normal, f32(magnitude) * 5.9604644775390625e-8, magnitude < 0x400u);
    return bitcast<f32>(bitcast<u32>(value) | ((bits & 0x8000u) << 16u));
}

fn f16_to_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    let sign = (bits >> 16u) & 0x8000u;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) {
        // A multiple of 2^-24: the significand moves right by what its exponent lacks.
        let distance = min(126u - (magnitude >> 23u), 25u);
        let significand = (magnitude & 0x7fffffu) | 0x800000u;
        return sign | ((significand + (1u << (distance - 1u)) - 1u + ((significand >> distance) & 1u)) >> distance);
    }
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
}

fn round_f16(x: f32) -> f32 {
    return f16_from_bits(f16_to_bits(x));
}

@compute @workgroup_size(128)
fn multiply_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = lane;
    if (block >= 65) {
        return;
    }
    if (block < 64) {
        let input_a_value = vec4<f32>(input_a[block]);
        let part_value_0 = (input_a_value * input_a_value);
        let multiply_0 = vec4<f32>(round_f16(part_value_0.x), round_f16(part_value_0.y), round_f16(part_value_0.z), round_f16(part_value_0.w));
        t0[block] = vec4<f16>(multiply_0);
    }
    if (block == 64) {
        for (var i = 256; i < 257; i += 1) {
            let input_a_value = f32(input_a[i / 4][i % 4]);
            let multiply_0 = round_f16(input_a_value * input_a_value);
            t0[i / 4][i % 4] = f16(multiply_0);
        }
    }
}
