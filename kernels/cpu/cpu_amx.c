/* Loop order and packing follow Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication".
 * Both operands are copied into tiles of 1 KiB, in the order in which they are multiplied: 16 rows of A by 32
 * of k, and 16 columns of B by 32 of k with pairs of k side by side, as TDPBF16PS wants them (Intel
 * Architecture Instruction Set Extensions, chapter 3). Four accumulators, 32 x 32 of C, use each loaded tile
 * twice. */
#include "kernels/cpu/cpu_amx.h"

#include <stdlib.h>

#ifdef __AMX_BF16__ /* the compiler may use it: see kernels/cpu/meson.build */

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SIDE = 16,                /* rows of a tile; columns of fp32, pairs of bf16 */
    PANEL = 2 * SIDE,         /* rows of A, columns of B, that the accumulators cover */
    STEP = 32,                /* elements of k in a tile */
    TILE_ELEMS = SIDE * STEP, /* bf16 */
    BLOCK_K = 512,            /* a panel of A is then 32 KiB: it stays in L1 */
    BLOCK_N = 512,            /* B's block is then 512 KiB: it stays in L2 */
    STEPS = BLOCK_K / STEP,
    PANEL_ELEMS = 2 * STEPS * TILE_ELEMS,
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

/* All eight tiles: 16 rows of 64 bytes. */
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

/* 16 x 16 words of 32 bits. */
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

/* Where an operand's elements lie: line i of it (a row of A, a column of B) and position p of k at data[i *
 * line + p] where k is contiguous, else at data[p * line + i]. */
struct operand {
    const uint16_t *data;
    int64_t line;
    bool k_contiguous;
    bool pairs_across; /* B's tiles hold one pair of k for all lines in a row; A's hold one line */
};

/* `lines` lines (at most 16) from `first` on, k in [k, k + depth) (depth at most 32), the rest zeros. */
static inline void pack_tile(const struct operand *from, int64_t first, int64_t lines, int64_t k,
                             int64_t depth, uint16_t *to) {
    __m512i r[SIDE];
    if (from->k_contiguous) {
        __mmask32 mask = depth >= STEP ? ~0u : (1u << depth) - 1;
        for (int64_t i = 0; i < SIDE; i++)
            r[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, from->data + (first + i) * from->line + k)
                             : _mm512_setzero_si512();
    } else {
        __mmask16 mask = (__mmask16)(lines >= SIDE ? 0xffff : (1 << lines) - 1);
        for (int64_t i = 0; i < SIDE; i++) {
            const uint16_t *even = from->data + (k + 2 * i) * from->line + first;
            __mmask16 has_even = 2 * i < depth ? mask : 0, has_odd = 2 * i + 1 < depth ? mask : 0;
            __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_even, even));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_odd, even + from->line));
            r[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
        }
    }
    if (from->k_contiguous == from->pairs_across)
        transpose(r);
    for (int i = 0; i < SIDE; i++)
        _mm512_store_si512(to + i * STEP, r[i]);
}

/* 32 lines and a block of k, ordered as the kernel reads them: for each step of k, two tiles. */
static void pack_panel(const struct operand *from, int64_t first, int64_t lines, int64_t k, int64_t depth,
                       uint16_t *to) {
    for (int64_t step = 0; step < depth; step += STEP)
        for (int64_t half = 0; half < PANEL; half += SIDE, to += TILE_ELEMS) {
            if (half < lines)
                pack_tile(from, first + half, lines - half, k + step, depth - step, to);
            else
                memset(to, 0, TILE_ELEMS * sizeof *to);
        }
}

/* ---- the kernel ---- */

/* C[32, 32] (+)= A panel times B panel. */
static void multiply_panels(const uint16_t *a, const uint16_t *b, int64_t steps, float *c, int64_t ldc,
                            bool accumulate) {
    size_t stride = (size_t)ldc * sizeof *c;
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
    for (int64_t step = 0; step < steps; step++, a += 2 * TILE_ELEMS, b += 2 * TILE_ELEMS) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE_ELEMS, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE_ELEMS, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + SIDE, stride);
    _tile_stored(2, c + SIDE * ldc, stride);
    _tile_stored(3, c + SIDE * ldc + SIDE, stride);
}

/* The same at the border of C, through a copy. */
static void multiply_border(const uint16_t *a, const uint16_t *b, int64_t steps, float *c, int64_t ldc,
                            bool accumulate, int64_t rows, int64_t cols) {
    _Alignas(64) float copy[PANEL * PANEL];
    for (int64_t i = 0; accumulate && i < rows; i++)
        memcpy(copy + i * PANEL, c + i * ldc, (size_t)cols * sizeof *c);
    multiply_panels(a, b, steps, copy, PANEL, accumulate);
    for (int64_t i = 0; i < rows; i++)
        memcpy(c + i * ldc, copy + i * PANEL, (size_t)cols * sizeof *c);
}

static inline int64_t at_most(int64_t limit, int64_t value) {
    return value < limit ? value : limit;
}

/* ---- products ---- */

int64_t ot_cpu_amx_panel_elems(int64_t k) {
    return (k + STEP - 1) / STEP * 2 * TILE_ELEMS;
}

static struct operand operand_a(const struct ot_cpu_product *p) {
    return (struct operand){p->a, p->lda, !p->trans_a, false};
}

static struct operand operand_b(const struct ot_cpu_product *p) {
    return (struct operand){p->b, p->ldb, p->trans_b, true};
}

void ot_cpu_amx_pack_a(const struct ot_cpu_product *p, int64_t row, uint16_t *panel) {
    struct operand a = operand_a(p);
    pack_panel(&a, row, at_most(PANEL, p->m - row), 0, p->k, panel);
}

void ot_cpu_amx_pack_b(const struct ot_cpu_product *p, int64_t col, uint16_t *panel) {
    struct operand b = operand_b(p);
    pack_panel(&b, col, at_most(PANEL, p->n - col), 0, p->k, panel);
}

/* k in blocks, so that A's panel stays in L1 while all of B's pass it. */
void ot_cpu_amx_multiply(const struct ot_cpu_product *p) {
    const uint16_t *a_panels = p->a, *b_panels = p->b;
    int64_t panel_elems = ot_cpu_amx_panel_elems(p->k);
    configure_tiles();
    for (int64_t k = 0; k < p->k; k += BLOCK_K) {
        int64_t steps = (at_most(BLOCK_K, p->k - k) + STEP - 1) / STEP, skip = k / STEP * 2 * TILE_ELEMS;
        bool accumulate = p->accumulate || k > 0;
        for (int64_t i = 0; i < p->m; i += PANEL)
            for (int64_t j = 0; j < p->n; j += PANEL) {
                const uint16_t *a = a_panels + i / PANEL * panel_elems + skip;
                const uint16_t *b = b_panels + j / PANEL * panel_elems + skip;
                float *c = p->c + i * p->ldc + j;
                int64_t rows = at_most(PANEL, p->m - i), cols = at_most(PANEL, p->n - j);
                if (rows == PANEL && cols == PANEL)
                    multiply_panels(a, b, steps, c, p->ldc, accumulate);
                else
                    multiply_border(a, b, steps, c, p->ldc, accumulate, rows, cols);
            }
    }
    _tile_release();
}

/* One block of k and of columns: B's block is packed first, A panel by panel. */
static void multiply_block(const struct ot_cpu_product *p, int64_t k, int64_t col) {
    static _Thread_local _Alignas(64) uint16_t a_panel[PANEL_ELEMS];
    static _Thread_local _Alignas(64) uint16_t b_block[BLOCK_N / PANEL * PANEL_ELEMS];
    struct operand a = operand_a(p), b = operand_b(p);
    struct ot_cpu_product part = {
        .accumulate = p->accumulate || k > 0, .ldc = p->ldc, .a = a_panel, .b = b_block};
    part.k = at_most(BLOCK_K, p->k - k);
    part.n = at_most(BLOCK_N, p->n - col);
    for (int64_t j = 0; j < part.n; j += PANEL)
        pack_panel(&b, col + j, at_most(PANEL, part.n - j), k, part.k,
                   b_block + j / PANEL * ot_cpu_amx_panel_elems(part.k));
    for (int64_t i = 0; i < p->m; i += PANEL) {
        part.m = at_most(PANEL, p->m - i);
        part.c = p->c + i * p->ldc + col;
        pack_panel(&a, i, part.m, k, part.k, a_panel);
        ot_cpu_amx_multiply(&part);
    }
}

void ot_cpu_amx_product(const struct ot_cpu_product *p) {
    for (int64_t col = 0; col < p->n; col += BLOCK_N)
        for (int64_t k = 0; k < p->k; k += BLOCK_K)
            multiply_block(p, k, col);
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

void ot_cpu_amx_product(const struct ot_cpu_product *p) {
    (void)p;
    abort();
}

#endif
