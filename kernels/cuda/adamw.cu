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

inline namespace adamw_cu {

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

} // namespace adamw_cu

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

/* ---- compact moments ---- */

/* AdamW in place with compact moments. It computes kernels/adamw.h and kernels/state_format.h operation by
 * operation, so it has the bits of the CPU kernels.
 *
 * A thread updates a pack: 8 parameters, whose first has a place in the slab that is a multiple of 8. Four
 * neighbouring threads have a group, and share the largest m and v through shuffles. A pack that is whole and
 * aligned takes 16-byte accesses; otherwise its parameters go one at a time.
 *
 * Bytes per parameter with a split master: 18 (16 bits) or 14.25 (8 bits); without a master, 14 or 10.25. A
 * random word takes eight instructions, and the 8-bit codes take a second square root but no division.
 */

inline namespace adamw_cu {

/* BLOCKS: on a multiprocessor, so that a thread may have 128 registers. */
enum { PACK = 8, THREADS = 256, BLOCKS = 2, GROUP_THREADS = OT_STATE_GROUP / PACK };

/* ---- packs ---- */

template <class T>
struct alignas(PACK * sizeof(T)) raw {
    T v[PACK];
};

/* The elements [from, to) of a pack at `at`; WHOLE: all of them, in one access. */
template <bool WHOLE, class T>
__device__ __forceinline__ raw<T> load_raw(const T *at, int from, int to) {
    if constexpr (WHOLE) {
        return *reinterpret_cast<const raw<T> *>(at);
    } else {
        raw<T> x;
#pragma unroll
        for (int j = 0; j < PACK; j++)
            x.v[j] = j >= from && j < to ? at[j] : T(0);
        return x;
    }
}

template <bool WHOLE, class T>
__device__ __forceinline__ void store_raw(T *at, const raw<T> &x, int from, int to) {
    if constexpr (WHOLE) {
        *reinterpret_cast<raw<T> *>(at) = x;
    } else {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            if (j >= from && j < to)
                at[j] = x.v[j];
    }
}

struct moments {
    float m[PACK], v[PACK];
};

/* ---- 16 bits ---- */

struct sixteen_bits {
    static constexpr bool WHOLE_GROUPS = false;
    uint16_t *m, *v;

    /* A word for each parameter. index: the place of the pack in the slab. */
    static __device__ __forceinline__ void random(const struct ot_state_noise &noise, int64_t index,
                                                  uint32_t *out) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            out[j] = random_word(noise, index + j);
    }

    template <bool WHOLE>
    __device__ __forceinline__ void read(int64_t i, int64_t, int from, int to, moments *x) const {
        raw<uint16_t> m16 = load_raw<WHOLE>(m + i, from, to), v16 = load_raw<WHOLE>(v + i, from, to);
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            x->m[j] = __uint_as_float((uint32_t)m16.v[j] << 16);
            x->v[j] = __uint_as_float((uint32_t)v16.v[j] << 16);
        }
    }

    template <bool WHOLE>
    __device__ __forceinline__ void write(int64_t i, int64_t, int from, int to, const moments &x,
                                          const uint32_t *random) const {
        raw<uint16_t> m16, v16;
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            m16.v[j] = round_bf16(x.m[j], random[j] & 0xffffu);
            v16.v[j] = round_bf16(x.v[j], random[j] >> 16);
        }
        store_raw<WHOLE>(m + i, m16, from, to);
        store_raw<WHOLE>(v + i, v16, from, to);
    }
};

/* ---- 8 bits ---- */

__device__ __forceinline__ int size_of_code(int code) {
    return code + (code > 80 ? code - 80 : 0);
}

__device__ __forceinline__ int place_of_m(float size, float k) {
    float place = fminf(fmaf(size, k * 0.5f, 40960.0f), 130048.0f);
    return __float2int_rn(fminf(size * k, place));
}

__device__ __forceinline__ float group_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ uint32_t bf16_above(float x) {
    return (__float_as_uint(x) + 0xffffu) >> 16;
}

/* Codes a step. */
__device__ __forceinline__ float steps_of(uint32_t scale) {
    return 1024.0f / fmaxf(__uint_as_float(scale << 16), 0x1p-100f);
}

/* All threads of a warp call read and write together: a thread without a pack has from = to = 0. Only the
 * first thread of a group touches its scales. */
struct eight_bits {
    static constexpr bool WHOLE_GROUPS = true;
    int8_t *m;
    uint8_t *v;
    uint32_t *scales; /* struct ot_state_scale: m in the low half */

    /* Half a word for each parameter. */
    static __device__ __forceinline__ void random(const struct ot_state_noise &noise, int64_t index,
                                                  uint32_t *out) {
#pragma unroll
        for (int j = 0; j < PACK / 2; j++) {
            uint32_t word = random_word(noise, index + j);
            out[j] = word & 0xffffu;
            out[j + PACK / 2] = word >> 16;
        }
    }

    template <bool WHOLE>
    __device__ __forceinline__ void read(int64_t i, int64_t pack, int from, int to, moments *x) const {
        raw<int8_t> m8 = load_raw<WHOLE>(m + i, from, to);
        raw<uint8_t> v8 = load_raw<WHOLE>(v + i, from, to);
        bool first = threadIdx.x % GROUP_THREADS == 0;
        uint32_t scale = first && to > 0 ? scales[pack / GROUP_THREADS] : 0;
        scale = __shfl_sync(0xffffffffu, scale, threadIdx.x % OT_WARP / GROUP_THREADS * GROUP_THREADS);
        float s = __uint_as_float(scale << 16), u = __uint_as_float(scale & 0xffff0000u);
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            int code = m8.v[j], size = size_of_code(code < 0 ? -code : code);
            float root = (float)v8.v[j] * u;
            x->m[j] = s * (float)(code < 0 ? -size : size);
            x->v[j] = root * root;
        }
    }

    template <bool WHOLE>
    __device__ __forceinline__ void write(int64_t i, int64_t pack, int from, int to, const moments &x,
                                          const uint32_t *random) const {
        float root[PACK], most_m = 0, most_root = 0;
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            root[j] = sqrtf(x.v[j]);
            most_m = fmaxf(most_m, fabsf(x.m[j]));
            most_root = fmaxf(most_root, root[j]);
        }
        uint32_t s_bits = bf16_above(fminf(group_max(most_m), 0x1p126f) / 174.0f);
        uint32_t u_bits = bf16_above(fminf(group_max(most_root), 0x1p64f) / 255.0f);
        float m_steps = steps_of(s_bits), v_steps = steps_of(u_bits);
        raw<int8_t> m8;
        raw<uint8_t> v8;
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            int code = (place_of_m(fabsf(x.m[j]), m_steps) + (int)(random[j] >> 6)) >> 10;
            m8.v[j] = (int8_t)(__float_as_uint(x.m[j]) >> 31 ? -code : code);
            code = (__float2int_rn(fminf(root[j] * v_steps, 261120.0f)) + (int)(random[j] & 1023)) >> 10;
            v8.v[j] = (uint8_t)(code > 0 ? code : root[j] > 0);
        }
        store_raw<WHOLE>(m + i, m8, from, to);
        store_raw<WHOLE>(v + i, v8, from, to);
        if (threadIdx.x % GROUP_THREADS == 0 && to > 0)
            scales[pack / GROUP_THREADS] = u_bits << 16 | s_bits;
    }
};

/* ---- the kernel ---- */

template <class Master, class Format>
struct compact {
    Master master;
    const typename Master::grad_type *grad;
    Format format;
    const struct ot_adamw_step *step;
    int64_t first, n,
        packs; /* packs: number in the groups that have the n parameters from place `first` of the slab */
    bool decay;
    float rate;
    bool aligned; /* whole packs take 16-byte accesses */
};

/* Updates the parameters [from, to) of the pack at i. */
template <bool WHOLE, class Master>
__device__ __forceinline__ void update_pack(const numbers &k, const Master &master,
                                            const typename Master::grad_type *grad, int64_t i, int from,
                                            int to, moments *x) {
    if constexpr (WHOLE) {
        ot_values<PACK> p = master.template read<PACK>(i), g = ot_read<PACK>(grad + i);
#pragma unroll
        for (int j = 0; j < PACK; j++)
            p.v[j] = update(k, p.v[j], g.v[j], &x->m[j], &x->v[j]);
        master.template write<PACK>(i, p);
    } else {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            if (j >= from && j < to) {
                ot_values<1> p = master.template read<1>(i + j);
                p.v[0] = update(k, p.v[0], ot_read<1>(grad + i + j).v[0], &x->m[j], &x->v[j]);
                master.template write<1>(i + j, p);
            }
    }
}

template <bool WHOLE, class Master, class Format>
__device__ __forceinline__ void run_pack(const compact<Master, Format> &op, const numbers &k, int64_t pack,
                                         int64_t i, int from, int to) {
    constexpr bool GROUPS = Format::WHOLE_GROUPS;
    bool active = pack < op.packs;
    int coded_from = GROUPS ? 0 : from, coded_to = GROUPS ? (active ? PACK : 0) : to;
    moments x;
    uint32_t random[PACK];
    op.format.template read<WHOLE>(i, pack, coded_from, coded_to, &x);
    update_pack<WHOLE>(k, op.master, op.grad, i, from, to, &x);
    Format::random(op.step->noise, op.first + i, random);
    op.format.template write<WHOLE>(i, pack, coded_from, coded_to, x, random);
}

template <class Master, class Format>
__global__ void __launch_bounds__(THREADS, BLOCKS) adamw_compact(compact<Master, Format> op) {
    if (op.step->skip)
        return;
    numbers k = step_numbers(op.step, op.decay, op.rate);
    int64_t lead = op.first % OT_STATE_GROUP, lane = threadIdx.x % OT_WARP;
    int64_t stride = (int64_t)gridDim.x * THREADS;
#pragma unroll 1
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x - lane; at < op.packs; at += stride) {
        int64_t pack = at + lane,
                i = pack * PACK - lead; /* the pack's first parameter, relative to `first` */
        int64_t begin = i < 0 ? -i : 0, end = op.n - i < PACK ? op.n - i : PACK;
        int from = begin < PACK ? (int)begin : PACK, to = end > 0 ? (int)end : 0;
        bool whole = op.aligned && from == 0 && to == PACK;
        if (__all_sync(0xffffffffu, whole)) /* shuffles need the whole warp in one branch */
            run_pack<true>(op, k, pack, i, from, to);
        else
            run_pack<false>(op, k, pack, i, from, to);
    }
}

/* True if packs of the array, whose element `lead` is at `begin`, are aligned to 16 bytes (8 for codes). */
bool is_aligned(const void *begin, int64_t lead, int64_t bytes) {
    return ((uintptr_t)begin - (uintptr_t)(lead * bytes)) % (uintptr_t)(bytes == 1 ? PACK : 16) == 0;
}

template <class Master, class Format>
cudaError_t launch(const struct ot_adamw *args, const Master &master, const Format &format,
                   const struct ot_cuda_stream *on) {
    using G = typename Master::grad_type;
    int64_t lead = args->first % OT_STATE_GROUP, bytes = sizeof(G), moment = sizeof *format.m;
    int64_t groups = ot_ceil_div(lead + args->n, OT_STATE_GROUP), packs = groups * GROUP_THREADS;
    bool aligned = is_aligned(args->weight, lead, bytes) && is_aligned(args->grad, lead, bytes) &&
                   is_aligned(args->m, lead, moment) && is_aligned(args->v, lead, moment) &&
                   (!args->low || is_aligned(args->low, lead, sizeof *args->low)) &&
                   (!args->master || is_aligned(args->master, lead, sizeof *args->master));
    compact<Master, Format> op = {master, (const G *)args->grad, format,     args->step, args->first, args->n,
                                  packs,  args->decay,           args->rate, aligned};
    int64_t blocks = ot_ceil_div(packs, THREADS), most = (int64_t)on->sm_count * OT_MAP_BLOCKS_PER_SM;
    return ot_launch(adamw_compact<Master, Format>, dim3((unsigned)(blocks < most ? blocks : most)),
                     dim3(THREADS), 0, on->stream, op);
}

template <class Master>
cudaError_t launch_format(const struct ot_adamw *args, const Master &master,
                          const struct ot_cuda_stream *on) {
    if (args->n <= 0)
        return cudaSuccess;
    if (args->state == OT_STATE_16BIT)
        return launch(args, master, sixteen_bits{(uint16_t *)args->m, (uint16_t *)args->v}, on);
    return launch(args, master, eight_bits{(int8_t *)args->m, (uint8_t *)args->v, (uint32_t *)args->scales},
                  on);
}

} // namespace adamw_cu

cudaError_t ot_cuda_adamw_compact(const struct ot_adamw *args, const struct ot_cuda_stream *on) {
    switch (args->dtype) {
    case OT_F32:
        return launch_format(args, f32_master{(float *)args->weight}, on);
    case OT_BF16:
        if (args->masters == OT_MASTERS_NONE)
            return launch_format(args, no_master{(uint16_t *)args->weight, args->step, args->first}, on);
        return launch_format(args, split_master{(uint16_t *)args->weight, (uint16_t *)args->low}, on);
    case OT_F16:
        return launch_format(args, f16_master{(__half *)args->weight, args->master}, on);
    }
    return cudaErrorInvalidValue;
}
