/* Matrix products on AMX tiles (cpu_amx.h). All threads pack the operands once; then they multiply the tiles
 * of C from the packed copies. Packing costs as much as multiplying some 100 rows. If each tile packed its
 * own operands, tiles would have to be slow or few. */
#include "kernels/cpu/op_parts.h"

enum {
    PACKED_ELEMS = 4 << 20, /* per operand: 8 MiB of scratch */
    PACKED_SIDE_MIN = 512,  /* rows or columns, also if k is so long that fewer would fill the scratch */
    PACKED_TILE_MAX = 256,  /* 256 KiB of C, which stays in L2 together with its panels */
    PACKED_TILE_MIN = 64,
    PACKED_TILES_WANTED = 32, /* keeps many threads busy until the end */
};

/* One block of C: [row, row + rows) x [col, col + cols). */
struct packed_run {
    const struct ot_gemm *op;
    struct ot_cpu_product whole;
    int64_t row, rows, col, cols;
    int64_t a_panels, panel_elems, tile, tiles_n;
    bool a_in_place; /* rows of A suit AMX as they are: no panels */
    uint16_t *a, *b;
    float *results; /* [threads, tile, tile], used if the sums do not lie in C */
};

/* Packs panels of A, then of B. */
static void packed_pack_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct packed_run *run = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i * OT_CPU_AMX_PANEL, col = (i - run->a_panels) * OT_CPU_AMX_PANEL;
        if (i < run->a_panels)
            ot_cpu_amx_pack_a(&run->whole, run->row + row, run->a + i * run->panel_elems);
        else
            ot_cpu_amx_pack_b(&run->whole, run->col + col, run->b + (i - run->a_panels) * run->panel_elems);
    }
}

static void packed_tile(const struct packed_run *run, int64_t row, int64_t col, float *result) {
    const struct ot_gemm *op = run->op;
    struct gemm_tile tile = {run->row + row, run->col + col, ot_min(run->tile, run->rows - row),
                             ot_min(run->tile, run->cols - col)};
    bool direct = gemm_sums_in_c(op);
    struct ot_cpu_product part = {
        .accumulate = gemm_adds_in_place(op), .m = tile.rows, .n = tile.cols, .k = op->k};
    part.a = run->a_in_place ? at(op->dtype, op->a, tile.row * op->lda)
                             : run->a + row / OT_CPU_AMX_PANEL * run->panel_elems;
    part.lda = run->a_in_place ? op->lda : 0;
    part.b = run->b + col / OT_CPU_AMX_PANEL * run->panel_elems;
    part.c = direct ? (float *)op->c + tile.row * op->ldc + tile.col : result;
    part.ldc = direct ? op->ldc : run->tile;
    show_write(part.c, tile.rows, part.ldc);
    ot_cpu_amx_multiply(&part);
    if (gemm_needs_finish(op))
        WITH_DTYPE(op->c_dtype, gemm_finish, op, &tile, part.c, part.ldc);
}

static void packed_tile_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct packed_run *run = context;
    for (int64_t i = begin; i < end; i++)
        packed_tile(run, i / run->tiles_n * run->tile, i % run->tiles_n * run->tile,
                    run->results + worker * run->tile * run->tile);
}

static int64_t packed_tile_count(const struct packed_run *run) {
    return ot_chunk_count(run->rows, run->tile) * ot_chunk_count(run->cols, run->tile);
}

/* Packs A's rows of this block (and B's columns if this is the first block of rows), then multiplies. */
static void packed_block(struct ot_pool *pool, struct packed_run *run) {
    int64_t b_panels = run->row == 0 ? ot_chunk_count(run->cols, OT_CPU_AMX_PANEL) : 0;
    run->a_panels = run->a_in_place ? 0 : ot_chunk_count(run->rows, OT_CPU_AMX_PANEL);
    run->tile = PACKED_TILE_MAX;
    while (packed_tile_count(run) < PACKED_TILES_WANTED && run->tile > PACKED_TILE_MIN)
        run->tile /= 2;
    run->tiles_n = ot_chunk_count(run->cols, run->tile);
    ot_pool_run(pool, run->a_panels + b_panels, 1, packed_pack_chunk, run);
    ot_pool_run(pool, packed_tile_count(run), 1, packed_tile_chunk, run);
}

static void run_gemm_packed(struct ot_lane *lane, const struct ot_gemm *op) {
    struct ot_pool *pool = ot_cpu_lane_pool(lane);
    int64_t side = ot_max(PACKED_SIDE_MIN, PACKED_ELEMS / op->k / PACKED_SIDE_MIN * PACKED_SIDE_MIN);
    int64_t panel_elems = ot_cpu_amx_panel_elems(op->k);
    struct packed_run run = {.op = op, .panel_elems = panel_elems};
    run.a_in_place = !op->trans_a && op->m % OT_CPU_AMX_PANEL == 0 && op->k % OT_CPU_AMX_PANEL == 0;
    int64_t a_panels = run.a_in_place ? 0 : ot_chunk_count(ot_min(side, op->m), OT_CPU_AMX_PANEL);
    int64_t a_elems = a_panels * panel_elems;
    int64_t b_elems = ot_chunk_count(ot_min(side, op->n), OT_CPU_AMX_PANEL) * panel_elems;
    int64_t result_elems = gemm_sums_in_c(op) ? 0 : PACKED_TILE_MAX * PACKED_TILE_MAX * ot_pool_threads(pool);
    run.whole = (struct ot_cpu_product){.trans_a = op->trans_a,
                                        .trans_b = op->trans_b,
                                        .m = op->m,
                                        .n = op->n,
                                        .k = op->k,
                                        .a = op->a,
                                        .b = op->b,
                                        .lda = op->lda,
                                        .ldb = op->ldb};
    run.a = ot_cpu_lane_scratch(lane, (size_t)(a_elems + b_elems) * sizeof *run.a +
                                          (size_t)result_elems * sizeof(float));
    if (!run.a)
        return;
    run.b = run.a + a_elems;
    run.results = (float *)(void *)(run.b + b_elems);
    show_read(op->dtype, op->a, op->trans_a ? op->k : op->m, op->lda);
    show_read(op->dtype, op->b, op->trans_b ? op->n : op->k, op->ldb);
    for (run.col = 0; run.col < op->n; run.col += side) {
        run.cols = ot_min(side, op->n - run.col);
        for (run.row = 0; run.row < op->m; run.row += side) {
            run.rows = ot_min(side, op->m - run.row);
            packed_block(pool, &run);
        }
    }
}
