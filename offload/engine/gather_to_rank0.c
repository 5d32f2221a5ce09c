/* Brings the holdings of a slab together on rank 0.
 *
 * The ranks gather equal pieces of their shares in device memory that holds nothing between steps. Rank 0
 * copies each gathered piece to the host. */
#include <stdlib.h>

#include "offload/comm/comm.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* The most parameters of a share in one gathering: 4 MiB of each rank. More would not be faster. */
enum { MOST_PIECE = 1 << 20 };

struct gathering {
    enum ot_slab_kind kind;
    int slab;
    float *values; /* NULL on ranks other than 0 */
    int64_t share, piece;
    float *own;                    /* [piece]: this rank's, on the host */
    float *staging;                /* [ranks][piece], on the device */
    struct ot_shard_range holding; /* this rank's */
};

/* The ranks may have different plans, so the piece is the largest that fits on every rank. */
static int choose_piece(struct ot_engine *en, struct gathering *c) {
    int64_t all[OT_MAX_RANKS];
    int ranks = ot_shard_ranks(&en->plan.shard);
    int64_t fits = (int64_t)(en->layout.idle_bytes / sizeof(float)) / ranks;
    OT_TRY(ot_comm_all_gather_host(en->comm, &fits, sizeof fits, all));
    c->piece = ot_min(c->share, MOST_PIECE);
    for (int r = 0; r < ranks; r++)
        c->piece = ot_min(all[r], c->piece);
    c->piece -= c->piece % OT_SHARD_ALIGN_PARAMS;
    return c->piece > 0 ? 0 : ot_fail(OT_E_BUDGET, "no device memory to gather the model in");
}

/* Parameters of a share of `held` parameters that are in the piece at `at`. */
static int64_t part_of(const struct gathering *c, int64_t held, int64_t at) {
    int64_t left = held - at;
    return left < 0 ? 0 : ot_min(left, c->piece);
}

/* Copies the parts of all ranks from the staging to their places in `values`. */
static int take_piece(struct ot_engine *en, const struct gathering *c, int64_t at) {
    struct ot_shard shard = en->plan.shard;
    for (shard.rank = 0; shard.rank < ot_shard_ranks(&shard); shard.rank++) {
        struct ot_shard_range held = ot_shard_own(&shard, en->chain.slabs[c->slab].n_params);
        int64_t n = part_of(c, held.n, at);
        if (n > 0)
            ot_lane_copy(en->lane, OT_COPY_D2H, c->values + held.first + at,
                         c->staging + shard.rank * c->piece, (size_t)n * sizeof(float));
    }
    return ot_lane_sync(en->lane);
}

static int gather_piece(struct ot_engine *en, const struct gathering *c, int64_t at) {
    float *place = c->staging + en->plan.shard.rank * c->piece;
    int64_t n = part_of(c, c->holding.n, at);
    if (n > 0) {
        OT_TRY(ot_engine_get(en, c->kind, c->slab, c->holding.first + at, n, c->own));
        ot_lane_copy(en->lane, OT_COPY_H2D, place, c->own, (size_t)n * sizeof(float));
    }
    ot_comm_all_gather(en->comm, en->lane, place, c->staging, (size_t)c->piece * sizeof(float));
    OT_TRY(ot_lane_sync(en->lane));
    OT_TRY(ot_comm_error(en->comm));
    return c->values ? take_piece(en, c, at) : 0;
}

int ot_engine_gather_to_rank0(struct ot_engine *en, enum ot_slab_kind kind, int slab, float *values) {
    int64_t n_params = en->chain.slabs[slab].n_params;
    if (!en->comm || !ot_plan_is_sharded(&en->plan)) /* rank 0 holds everything */
        return values ? ot_engine_get(en, kind, slab, 0, n_params, values) : 0;
    struct gathering c = {.kind = kind,
                          .slab = slab,
                          .values = en->plan.shard.rank == 0 ? values : NULL,
                          .share = ot_shard_share(&en->plan.shard, n_params),
                          .staging = (float *)(void *)(en->tier_memory[OT_TIER_GPU] + en->layout.idle_offset),
                          .holding = ot_slab_holding(&en->chain, &en->plan, slab)};
    OT_TRY(choose_piece(en, &c));
    c.own = malloc((size_t)c.piece * sizeof *c.own);
    if (!c.own)
        return ot_fail(OT_E_BUDGET, "no memory to gather %lld parameters", (long long)c.piece);
    int rc = 0;
    for (int64_t at = 0; rc == 0 && at < c.share; at += c.piece)
        rc = gather_piece(en, &c, at);
    free(c.own);
    return rc;
}
