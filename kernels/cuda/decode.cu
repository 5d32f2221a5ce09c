/* Frozen weights from their storage type to the compute dtype (kernels/weight_format.h).
 *
 * NF4 and MXFP4: a thread decodes packs of 8 weights: a load of 4 bytes, 8 lookups, a product each, and a
 * store of 16 bytes (two for fp32). So the loads of a warp are 128 contiguous bytes, and its stores 512. A
 * thread that loaded 16 bytes would own 32 weights, and its stores would each fill half a sector. Instead it
 * has PACKS loads in flight, a tile apart. The 16 values lie in shared memory, in 16 banks: equal codes are
 * one broadcast, others use other banks, so a lookup never waits for another. The 256 values of double
 * quantisation lie there too; eight threads read the same one. The values of MXFP4 are the same for all
 * matrices: each block of threads computes them from the codes' bits.
 *
 * int8: a thread decodes packs of 8 weights of a row: a load of 8 bytes, a store of 16.
 *
 * Bytes a weight in bf16: NF4 0.5625 read (double 0.516, MXFP4 0.531) and 2 written; int8 1 read and 2
 * written. On an H100 (3.35 TB/s) the floor of a layer of Llama-7B (202 million weights) is 155 us in NF4, a
 * fifth of which is reading; a copy of the decoded weights would take 241 us. Arithmetic: 7 instructions a
 * weight in NF4 (sm_90), a third of what the floor leaves time for.
 */
#include "kernels/cuda/map.cuh"

inline namespace decode_cu {

/* ---- NF4 and MXFP4 ---- */

/* THREADS * PACKS packs are a tile. */
enum { THREADS = 256, PACK = 8, PACKS = 4, TILE = THREADS * PACKS };

template <class T, ot_weight_format FORMAT>
struct nibbles {
    static constexpr bool DOUBLE = FORMAT == OT_WEIGHT_NF4_DOUBLE, MX = FORMAT == OT_WEIGHT_MXFP4;
    static constexpr int BLOCK = MX ? OT_WEIGHT_MX_BLOCK : OT_WEIGHT_BLOCK;
    const uint8_t *codes;       /* from the first weight on, like the scales */
    const float *scales;        /* NF4 */
    const uint8_t *byte_scales; /* the other formats */
    const float *group_scales;
    const struct ot_weight_tables *tables;
    int64_t first_block; /* index in the matrix: decides the group */
    int64_t n, packs;    /* packs that one access reads and writes; the other weights go one at a time */
    T *out;

    /* values: the 16 values of the codes; behind them the 256 of the scales, and the offset. */
    __device__ __forceinline__ float scale(const float *values, int64_t block) const {
        if constexpr (DOUBLE) {
            float group = group_scales[(first_block + block) / OT_WEIGHT_GROUP];
            return values[16 + byte_scales[block]] * group + values[16 + 256];
        } else if constexpr (MX) {
            return __uint_as_float(OT_WEIGHT_MX_SCALE(byte_scales[block]));
        } else {
            return scales[block];
        }
    }

    /* The value of a code. E2M1 has the form of an fp32 number: sign, exponent, the first bit of the
     * mantissa, and subnormal numbers. Only the exponent has another bias. */
    __device__ __forceinline__ float value(uint32_t code) const {
        if constexpr (MX)
            return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
        else
            return tables->table[code];
    }

    /* The bit offset of weight j's code in its byte: NF4 has the upper half first. */
    static __device__ __forceinline__ int shift(int64_t j) { return (j % 2 == 0) == MX ? 0 : 4; }
};

template <class T, ot_weight_format FORMAT>
__global__ void __launch_bounds__(THREADS) decode_nibbles(nibbles<T, FORMAT> op) {
    using nibble = nibbles<T, FORMAT>;
    float *values = ot_shared<float>();
    if (threadIdx.x < 16)
        values[threadIdx.x] = op.value(threadIdx.x);
    if constexpr (nibble::DOUBLE) {
        values[16 + threadIdx.x] = op.tables->map[threadIdx.x];
        if (threadIdx.x == 0)
            values[16 + 256] = op.tables->offset;
    }
    __syncthreads();
#pragma unroll 1
    for (int64_t tile = blockIdx.x; tile * TILE < op.packs; tile += gridDim.x) {
        uint32_t words[PACKS];
        float scales[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t pack = tile * TILE + p * THREADS + threadIdx.x;
            if (pack < op.packs) {
                words[p] = reinterpret_cast<const uint32_t *>(op.codes)[pack];
                scales[p] = op.scale(values, pack / (nibble::BLOCK / PACK));
            }
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t pack = tile * TILE + p * THREADS + threadIdx.x;
            if (pack < op.packs) {
                ot_values<PACK> x;
#pragma unroll
                for (int j = 0; j < PACK; j++)
                    x.v[j] = values[words[p] >> (j / 2 * 8 + nibble::shift(j)) & 15] * scales[p];
                ot_write(op.out + pack * PACK, x);
            }
        }
    }
    int64_t stride = (int64_t)gridDim.x * THREADS;
#pragma unroll 1
    for (int64_t i = op.packs * PACK + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < op.n; i += stride) {
        int code = op.codes[i / 2] >> nibble::shift(i) & 15;
        op.out[i] = ot_from_float<T>(values[code] * op.scale(values, i / nibble::BLOCK));
    }
}

template <class T, ot_weight_format FORMAT>
cudaError_t launch_nibbles(const struct ot_decode *args, const struct ot_cuda_stream *on) {
    static_assert(THREADS == 256, "a thread loads one value of the map");
    struct ot_weight_layout l = ot_weight_layout(&args->weight);
    const uint8_t *encoded = (const uint8_t *)args->encoded;
    using nibble = nibbles<T, FORMAT>;
    int64_t block = args->first / nibble::BLOCK, n = args->n;
    /* Blocks of codes are 16 or 32 bytes, so packs of codes are aligned. Either all packs of `out` are, or
     * none. */
    int64_t packs = (uintptr_t)args->out % 16 == 0 ? n / PACK : 0, singles = n - packs * PACK;
    nibble op = {encoded + args->first / 2,
                 (const float *)(encoded + l.scales) + block,
                 encoded + l.scales + block,
                 (const float *)(encoded + l.group_scales),
                 (const struct ot_weight_tables *)(encoded + l.tables),
                 block,
                 n,
                 packs,
                 (T *)args->out};
    int64_t tiles = ot_ceil_div(packs, TILE), rounds = ot_ceil_div(singles, THREADS);
    int64_t most = (int64_t)on->sm_count * OT_MAP_BLOCKS_PER_SM, blocks = tiles > rounds ? tiles : rounds;
    return ot_launch(decode_nibbles<T, FORMAT>, dim3((unsigned)(blocks < most ? blocks : most)),
                     dim3(THREADS), (16 + (nibble::DOUBLE ? 256 + 1 : 0)) * sizeof(float), on->stream, op);
}

/* ---- int8 ---- */

template <class T>
struct bytes {
    static constexpr int N = 8;
    const int8_t *codes;
    const float *scales;
    T *out;
    int64_t cols;

    template <int W>
    __device__ __forceinline__ void run(int64_t row, int64_t i) const {
        float scale = scales[row];
        int64_t at = row * cols + i;
        ot_values<W> x;
        if constexpr (W == 1) {
            x.v[0] = (float)codes[at];
        } else {
            union {
                uint2 raw;
                int8_t codes[N];
            } pack;
            pack.raw = *reinterpret_cast<const uint2 *>(codes + at);
#pragma unroll
            for (int j = 0; j < N; j++)
                x.v[j] = (float)pack.codes[j];
        }
#pragma unroll
        for (int j = 0; j < W; j++)
            x.v[j] = x.v[j] * scale * OT_WEIGHT_INT8_STEP;
        ot_write(out + at, x);
    }
};

template <class T>
cudaError_t launch_bytes(const struct ot_decode *args, const struct ot_cuda_stream *on) {
    struct ot_weight_layout l = ot_weight_layout(&args->weight);
    int64_t cols = args->weight.cols, rows = args->n / cols, row = args->first / cols;
    const int8_t *codes = (const int8_t *)args->encoded + args->first;
    const float *scales = (const float *)((const char *)args->encoded + l.scales) + row;
    bool packs = (uintptr_t)codes % 8 == 0 && (uintptr_t)args->out % 16 == 0 && (rows == 1 || cols % 8 == 0);
    return ot_map(bytes<T>{codes, scales, (T *)args->out, cols}, rows, cols, packs ? 0 : cols, on);
}

} // namespace decode_cu

cudaError_t ot_cuda_decode(const struct ot_decode *args, const struct ot_cuda_stream *on) {
    if (ot_weight_is_plain(args->weight.format)) {
        enum ot_dtype plain = (enum ot_dtype)args->weight.format;
        const char *src = (const char *)args->encoded + args->first * (int64_t)ot_dtype_bytes(plain);
        struct ot_cast cast = {plain, args->dtype, args->n, src, args->out};
        return ot_cuda_cast(&cast, on);
    }
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        if (args->weight.format == OT_WEIGHT_INT8)
            return launch_bytes<T>(args, on);
        if (args->weight.format == OT_WEIGHT_NF4)
            return launch_nibbles<T, OT_WEIGHT_NF4>(args, on);
        if (args->weight.format == OT_WEIGHT_MXFP4)
            return launch_nibbles<T, OT_WEIGHT_MXFP4>(args, on);
        return launch_nibbles<T, OT_WEIGHT_NF4_DOUBLE>(args, on);
    });
}
