// COUNT numbers, sixteen for each work-item: one register of AVX-512, and enough work beside its own launch.

kernel void chain(global const float16 *restrict x, global float16 *restrict result) {
    size_t i = get_global_id(0);
    float16 v = x[i];
    result[i] = 1.0f / (1.0f + exp(-(v * v * 0.5f + tanh(v) * 0.25f - 1.0f)));
}
