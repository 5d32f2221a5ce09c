/* Loop order and packing follow Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication".
 * Both operands are copied into tiles of 1 KiB, in the order in which they are multiplied. A tile of A is 16
 * rows by 32 of k. A tile of B is 16 columns by 32 of k, with pairs of k side by side, as TDPBF16PS requires
 * (Intel Architecture Instruction Set Extensions, chapter 3). Four accumulators, 32 x 32 of C, use each
 * loaded tile twice. */
#include "kernels/cpu/cpu_amx.h"

#include <stdlib.h>

#ifdef __AMX_BF16__ /* the compiler may use AMX: see kernels/cpu/meson.build */

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/minmax.h"

enum {
    SIDE = 16,                /* rows of a tile; also columns of fp32, or pairs of bf16 */
    PANEL = OT_CPU_AMX_PANEL, /* rows of A, and columns of B, of the accumulators */
    STEP = 32,                /* elements of k in a tile */
    TILE_ELEMS = SIDE * STEP, /* bf16 */
    BLOCK_K = 512,            /* makes a panel of A 32 KiB, which stays in L1 */
};

/* ---- the registers ---- */

enum { TILE_DATA_FEATURE = 18, REQUEST_PERMISSION = 0x1023 }; /* arch_prctl, Linux 5.16 */

bool ot_cpu_amx_open(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & AMX_BF16) || !(edx & AMX_TILE))
        return false;
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA_FEATURE) == 0;
}

/* Configures all eight tiles as 16 rows of 64 bytes. */
static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = SIDE;
    }
    _tile_loadconfig(&config);
}

/* ---- packing ---- */

/* Transposes 16 x 16 words of 32 bits. */
static inline void transpose(__m512i r[SIDE]) {
    __m512i t[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

/* The layout of an operand. Line i (a row of A, a column of B) and position p of k are at data[i * line + p]
 * if k is contiguous, else at data[p * line + i]. */
struct operand {
    const uint16_t *data;
    int64_t line;
    bool k_contiguous;
    bool pairs_across; /* B's tiles hold one pair of k for all lines in a row; A's tiles hold one line */
};

/* Loads row r of a tile as it is stored, before a transposition: a line of k, or a pair of k for all lines.
 * lines, depth: the elements that exist; all others become zeros. */
static inline __m512i load_row(const struct operand *from, bool k_contiguous, int64_t r, int64_t lines,
                               int64_t depth) {
    if (k_contiguous) {
        __mmask32 mask = depth >= STEP ? ~0u : (1u << depth) - 1;
        return _mm512_maskz_loadu_epi16(r < lines ? mask : 0, from->data + r * from->line);
    }
    __mmask16 mask = (__mmask16)(lines >= SIDE ? 0xffff : (1 << lines) - 1);
    const uint16_t *even = from->data + 2 * r * from->line;
    __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(2 * r < depth ? mask : 0, even));
    __m512i high =
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(2 * r + 1 < depth ? mask : 0, even + from->line));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Packs `lines` lines (at most 16) and `depth` of k (at most 32), starting at from->data. It is always
 * inlined, so that the masks are constants for a whole tile. */
static inline __attribute__((always_inline)) void pack_tile(const struct operand *from, int64_t lines,
                                                            int64_t depth, uint16_t *to) {
    bool k_contiguous = from->k_contiguous;
    __m512i r[SIDE];
    for (int64_t i = 0; i < SIDE; i++)
        r[i] = load_row(from, k_contiguous, i, lines, depth);
    if (k_contiguous == from->pairs_across)
        transpose(r);
    for (int i = 0; i < SIDE; i++)
        _mm512_store_si512(to + i * STEP, r[i]);
}

/* Packs 32 lines and all of k in the kernel's order: two tiles for each step of k. */
static inline __attribute__((always_inline)) void pack_panel_as(struct operand from, int64_t lines, int64_t k,
                                                                uint16_t *to) {
    int64_t next_line = from.k_contiguous ? from.line : 1, next_k = from.k_contiguous ? 1 : from.line;
    const uint16_t *data = from.data;
    for (int64_t step = 0; step < k; step += STEP)
        for (int64_t half = 0; half < PANEL; half += SIDE, to += TILE_ELEMS) {
            from.data = data + half * next_line + step * next_k;
            if (lines - half >= SIDE && k - step >= STEP)
                pack_tile(&from, SIDE, STEP, to);
            else if (half < lines)
                pack_tile(&from, lines - half, k - step, to);
            else
                memset(to, 0, TILE_ELEMS * sizeof *to);
        }
}

/* Packs lines [first, first + lines). The compiler specializes each kind of packing. */
static void pack_panel(const struct operand *from, int64_t first, int64_t lines, int64_t k, uint16_t *to) {
    const uint16_t *data = from->data + first * (from->k_contiguous ? from->line : 1);
    if (from->k_contiguous && from->pairs_across)
        pack_panel_as((struct operand){data, from->line, true, true}, lines, k, to);
    else if (from->k_contiguous)
        pack_panel_as((struct operand){data, from->line, true, false}, lines, k, to);
    else if (from->pairs_across)
        pack_panel_as((struct operand){data, from->line, false, true}, lines, k, to);
    else
        pack_panel_as((struct operand){data, from->line, false, false}, lines, k, to);
}

/* ---- the kernel ---- */

/* 32 rows of A for the kernel, packed or in place. */
struct a_panel {
    const uint16_t *data;
    int64_t row, half, step; /* elements from one row, tile of 16 rows, step of k to the next */
};

/* C[32, 32] (+)= A panel times B panel. */
static void multiply_panels(struct a_panel a, const uint16_t *b, int64_t steps, float *c, int64_t ldc,
                            bool accumulate) {
    size_t stride = (size_t)ldc * sizeof *c, a_stride = (size_t)a.row * sizeof *a.data;
    if (accumulate) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + SIDE, stride);
        _tile_loadd(2, c + SIDE * ldc, stride);
        _tile_loadd(3, c + SIDE * ldc + SIDE, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t step = 0; step < steps; step++, a.data += a.step, b += 2 * TILE_ELEMS) {
        _tile_loadd(4, a.data, a_stride);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE_ELEMS, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a.data + a.half, a_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + SIDE, stride);
    _tile_stored(2, c + SIDE * ldc, stride);
    _tile_stored(3, c + SIDE * ldc + SIDE, stride);
}

/* Like multiply_panels, at the border of C, where only rows x cols exist. Works through a copy. */
static void multiply_border(struct a_panel a, const uint16_t *b, int64_t steps,
                            const struct ot_cpu_product *border) {
    _Alignas(64) float copy[PANEL * PANEL];
    size_t bytes = (size_t)border->n * sizeof *copy;
    for (int64_t i = 0; border->accumulate && i < border->m; i++)
        memcpy(copy + i * PANEL, border->c + i * border->ldc, bytes);
    multiply_panels(a, b, steps, copy, PANEL, border->accumulate);
    for (int64_t i = 0; i < border->m; i++)
        memcpy(border->c + i * border->ldc, copy + i * PANEL, bytes);
}

/* ---- products ---- */

int64_t ot_cpu_amx_panel_elems(int64_t k) {
    return (k + STEP - 1) / STEP * 2 * TILE_ELEMS;
}

void ot_cpu_amx_pack_a(const struct ot_cpu_product *p, int64_t row, uint16_t *panel) {
    struct operand a = {p->a, p->lda, !p->trans_a, false};
    pack_panel(&a, row, ot_min(p->m - row, PANEL), p->k, panel);
}

void ot_cpu_amx_pack_b(const struct ot_cpu_product *p, int64_t col, uint16_t *panel) {
    struct operand b = {p->b, p->ldb, p->trans_b, true};
    pack_panel(&b, col, ot_min(p->n - col, PANEL), p->k, panel);
}

/* One block of k: A's panel stays in L1 while all panels of B pass. */
static void multiply_block(const struct ot_cpu_product *p, int64_t k) {
    const uint16_t *a_data = p->a, *b_data = p->b;
    int64_t panel_elems = ot_cpu_amx_panel_elems(p->k), skip = k / STEP * 2 * TILE_ELEMS;
    int64_t steps = (ot_min(p->k - k, BLOCK_K) + STEP - 1) / STEP;
    bool accumulate = p->accumulate || k > 0;
    for (int64_t i = 0; i < p->m; i += PANEL) {
        struct a_panel a = {a_data + i / PANEL * panel_elems + skip, STEP, TILE_ELEMS, 2 * TILE_ELEMS};
        if (p->lda)
            a = (struct a_panel){a_data + i * p->lda + k, p->lda, SIDE * p->lda, STEP};
        for (int64_t j = 0; j < p->n; j += PANEL) {
            const uint16_t *b = b_data + j / PANEL * panel_elems + skip;
            float *c = p->c + i * p->ldc + j;
            struct ot_cpu_product border = {.accumulate = accumulate, .c = c, .ldc = p->ldc};
            border.m = ot_min(p->m - i, PANEL);
            border.n = ot_min(p->n - j, PANEL);
            if (border.m == PANEL && border.n == PANEL)
                multiply_panels(a, b, steps, c, p->ldc, accumulate);
            else
                multiply_border(a, b, steps, &border);
        }
    }
}

void ot_cpu_amx_multiply(const struct ot_cpu_product *p) {
    configure_tiles();
    for (int64_t k = 0; k < p->k; k += BLOCK_K)
        multiply_block(p, k);
    _tile_release();
}

#else

bool ot_cpu_amx_open(void) {
    return false;
}

int64_t ot_cpu_amx_panel_elems(int64_t k) {
    return k;
}

void ot_cpu_amx_pack_a(const struct ot_cpu_product *p, int64_t row, uint16_t *panel) {
    (void)p, (void)row, (void)panel;
    abort();
}

void ot_cpu_amx_pack_b(const struct ot_cpu_product *p, int64_t col, uint16_t *panel) {
    (void)p, (void)col, (void)panel;
    abort();
}

void ot_cpu_amx_multiply(const struct ot_cpu_product *p) {
    (void)p;
    abort();
}

#endif
