/* AdamW in place. It computes kernels/adamw.h operation by operation, so it has the bits of the CPU kernels,
 * and either side may update a parameter.
 *
 * Bytes per parameter: 28 in fp32 (weight, m and v read and written, gradient read). 26 with the split master
 * (2 of weight and 2 of low instead of 4, 2 of the gradient); 22 without a master, with eight instructions
 * more for a random word. 28 with an fp16 weight (the weight written only, its fp32 master read and written).
 * Two divisions and a square root, all IEEE: some 60 instructions, well below what the memory leaves time
 * for.
 */
#include "kernels/cuda/adamw.cuh"

namespace {

template <class Master>
struct adamw {
    static constexpr int N = Master::N;
    Master master;
    const typename Master::grad_type *grad;
    float *m, *v;
    const struct ot_adamw_step *step;
    bool decay;
    float rate;
    numbers k; /* this thread's copy */

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> p = master.template read<W>(i), g = ot_read<W>(grad + i), mean = ot_read<W>(m + i),
                     square = ot_read<W>(v + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            p.v[j] = update(k, p.v[j], g.v[j], &mean.v[j], &square.v[j]);
        master.template write<W>(i, p);
        ot_write(m + i, mean);
        ot_write(v + i, square);
    }
};

/* Blocks on a multiprocessor of sm_100 and sm_120. By itself the compiler takes 64 registers for fp16 weights
 * there, and spills one value; without masters it takes 122, and few threads fit. */
constexpr int newest_blocks() {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 1000
    return 3;
#else
    return 0;
#endif
}
constexpr int ot_map_blocks(const adamw<f16_master> *) {
    return newest_blocks();
}
constexpr int ot_map_blocks(const adamw<no_master> *) {
    return newest_blocks();
}

template <class Master>
__device__ __forceinline__ bool ot_map_prepare(adamw<Master> &op) {
    op.k = step_numbers(op.step, op.decay, op.rate);
    return !op.step->skip;
}

template <class Master>
cudaError_t launch(const struct ot_adamw *args, const Master &master, const struct ot_cuda_stream *on) {
    using G = typename Master::grad_type;
    int64_t bytes = sizeof(G); /* the gradient and the weight have this size */
    const void *low = args->low ? (const void *)args->low : args->weight;
    const void *apart = args->master ? (const void *)args->master : (const void *)args->m;
    int64_t head = ot_map_head({{args->weight, bytes, 0},
                                {low, bytes, 0},
                                {apart, 4, 0},
                                {args->grad, bytes, 0},
                                {args->m, 4, 0},
                                {args->v, 4, 0}},
                               1, args->n);
    adamw<Master> op = {master,     (const G *)args->grad, (float *)args->m, (float *)args->v,
                        args->step, args->decay,           args->rate,       {}};
    return ot_map(op, 1, args->n, head, on);
}

} // namespace

cudaError_t ot_cuda_adamw(const struct ot_adamw *args, const struct ot_cuda_stream *on) {
    if (args->state != OT_STATE_F32)
        return ot_cuda_adamw_compact(args, on);
    switch (args->dtype) {
    case OT_F32:
        return launch(args, f32_master{(float *)args->weight}, on);
    case OT_BF16:
        if (args->masters == OT_MASTERS_NONE)
            return launch(args, no_master{(uint16_t *)args->weight, args->step, args->first}, on);
        return launch(args, split_master{(uint16_t *)args->weight, (uint16_t *)args->low}, on);
    case OT_F16:
        return launch(args, f16_master{(__half *)args->weight, args->master}, on);
    }
    return cudaErrorInvalidValue;
}
