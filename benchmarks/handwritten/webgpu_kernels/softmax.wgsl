// One subgroup for each row, which stays in registers from its load to its store.

const ROW = COLUMNS / 4u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>, ROWS * ROW>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4<f32>, ROWS * ROW>;

@compute @workgroup_size(LANES)
fn softmax(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * ROW + lane;
    $for i in VECTORS
    var value_$i = x[first + $iu * LANES];
    $end
    var most = value_0;
    $for i in VECTORS
    most = max(most, value_$i);
    $end
    let greatest = subgroupMax(max(max(most.x, most.y), max(most.z, most.w)));
    var sum = vec4<f32>(0.0);
    $for i in VECTORS
    value_$i = exp(value_$i - greatest);
    sum += value_$i;
    $end
    let scale = 1.0 / subgroupAdd((sum.x + sum.y) + (sum.z + sum.w));
    $for i in VECTORS
    result[first + $iu * LANES] = value_$i * scale;
    $end
}
