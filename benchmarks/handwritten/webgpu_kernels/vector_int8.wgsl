// One row by a matrix of bytes, four columns in a word, with a scale for each column. A lane goes down four columns;
// LANES groups of four numbers of the row are read at once, one by each lane, and go round the subgroup by broadcasts.

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<i32>;
@group(0) @binding(2) var<storage, read> scale: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> product: array<vec4<f32>>;

fn numbers(word: i32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

@compute @workgroup_size(LANES)
fn vector_int8(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group.x * LANES + lane;
    var sum = vec4<f32>(0.0);
    for (var k = 0u; k < INNER / 4u; k += LANES) {
        let left = a[k + lane];
        let first = k * 4u * (COLUMNS / 4u) + column;
        $for owner in LANES
        $for step in 4
        sum += subgroupBroadcast(left[$step], $owneru) * numbers(b[first + ($owneru * 4u + $stepu) * (COLUMNS / 4u)]);
        $end
        $end
    }
    product[column] = sum * scale[column];
}
