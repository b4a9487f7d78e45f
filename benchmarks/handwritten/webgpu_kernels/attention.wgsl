// A lane has QUERIES queries of one head, and keeps them and their totals in registers. Loads are what costs: so each lane
// reads another key, and the numbers go round the subgroup by broadcasts. What was summed before becomes smaller when
// a greater score comes.
//
// With CAUSAL a query sees the keys up to its own number, and keys that nobody here sees are left out.

const ROW = DEPTH / 4u;
const TILE = QUERIES * LANES;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x / (COUNT / TILE) * COUNT;
    let first = group.x % (COUNT / TILE) * TILE;
    $for j in QUERIES
    let row_$j = first + $ju * LANES + lane;
    $for d in PARTS
    let q_$j_$d = q[(head + row_$j) * ROW + $du] * (inverseSqrt(f32(DEPTH)) * 1.44269504f);
    var total_$j_$d = vec4<f32>(0.0);
    $end
    var greatest_$j = -3.4e38f;
    var sum_$j = 0.0f;
    $end
    var end = COUNT;
    $if CAUSAL
    end = first + TILE;
    $end
    for (var key = 0u; key < end; key += LANES) {
        let own = (head + key + lane) * ROW;
        $for x in LANES
        $for j in QUERIES
        var score_$j_$x = 0.0f;
        $end
        $end
        $for d in PARTS
        let k_$d = k[own + $du];
        $for x in LANES
        let k_$d_$x = subgroupBroadcast(k_$d, $xu);
        $for j in QUERIES
        score_$j_$x = fma(q_$j_$d.x, k_$d_$x.x, score_$j_$x);
        score_$j_$x = fma(q_$j_$d.y, k_$d_$x.y, score_$j_$x);
        score_$j_$x = fma(q_$j_$d.z, k_$d_$x.z, score_$j_$x);
        score_$j_$x = fma(q_$j_$d.w, k_$d_$x.w, score_$j_$x);
        $end
        $end
        $end
        $for j in QUERIES
        $if CAUSAL
        $for x in LANES
        score_$j_$x = select(score_$j_$x, -3.4e38f, key + $xu > row_$j);
        $end
        $end
        var now_$j = greatest_$j;
        $for x in LANES
        now_$j = max(now_$j, score_$j_$x);
        $end
        let factor_$j = exp2(greatest_$j - now_$j);
        greatest_$j = now_$j;
        sum_$j *= factor_$j;
        $for x in LANES
        let weight_$j_$x = exp2(score_$j_$x - now_$j);
        sum_$j += weight_$j_$x;
        $end
        $end
        $for e in PARTS
        let v_$e = v[own + $eu];
        $for j in QUERIES
        total_$j_$e *= factor_$j;
        $end
        $for x in LANES
        let v_$e_$x = subgroupBroadcast(v_$e, $xu);
        $for j in QUERIES
        total_$j_$e = fma(vec4<f32>(weight_$j_$x), v_$e_$x, total_$j_$e);
        $end
        $end
        $end
    }
    $for j in QUERIES
    $for e in PARTS
    result[(head + row_$j) * ROW + $eu] = total_$j_$e / sum_$j;
    $end
    $end
}
