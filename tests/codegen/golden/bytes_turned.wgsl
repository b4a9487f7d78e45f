// 8 groups of 128
@group(0) @binding(0) var<storage, read> input_a: array<u32, 1024>;
@group(0) @binding(1) var<storage, read_write> t0: array<u32, 1008>;

@compute @workgroup_size(128)
fn flip_0(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane_index: u32) {
    let group = i32(group_id.x);
    let lane = i32(lane_index);
    let block = group * 128 + lane;
    if (block >= 1008) {
        return;
    }
    if (block < 1007) {
        var word_t0 = 0u;
        let input_a_value = vec4<u32>(extractBits(input_a[(((block * 4) % 65) * 63 - ((block * 4) / 65) + 62) >> 2u], (u32(((block * 4) % 65) * 63 - ((block * 4) / 65) + 62) & 3u) << 3u, 8u), extractBits(input_a[(((block * 4 + 1) % 65) * 63 - ((block * 4 + 1) / 65) + 62) >> 2u], (u32(((block * 4 + 1) % 65) * 63 - ((block * 4 + 1) / 65) + 62) & 3u) << 3u, 8u), extractBits(input_a[(((block * 4 + 2) % 65) * 63 - ((block * 4 + 2) / 65) + 62) >> 2u], (u32(((block * 4 + 2) % 65) * 63 - ((block * 4 + 2) / 65) + 62) & 3u) << 3u, 8u), extractBits(input_a[(((block * 4 + 3) % 65) * 63 - ((block * 4 + 3) / 65) + 62) >> 2u], (u32(((block * 4 + 3) % 65) * 63 - ((block * 4 + 3) / 65) + 62) & 3u) << 3u, 8u));
        word_t0 = dot(input_a_value, vec4<u32>(1u, 256u, 65536u, 16777216u));
        t0[block] = word_t0;
    }
    if (block == 1007) {
        var word_t0 = 0u;
        for (var part = 0; part < 4; part += 1) {
            let input_a_value = extractBits(input_a[((clamp(block * 4 + part, 0, 4029)) % 65 * 63 - ((clamp(block * 4 + part, 0, 4029)) / 65) + 62) >> 2u], (u32((clamp(block * 4 + part, 0, 4029)) % 65 * 63 - ((clamp(block * 4 + part, 0, 4029)) / 65) + 62) & 3u) << 3u, 8u);
            word_t0 |= input_a_value << (u32(part) * 8u);
        }
        t0[block] = word_t0;
    }
}
