/* Finds where numbers stop being finite: runs a forward pass and checks the output of each block. */
#include <math.h>
#include <stdlib.h>

#include "offload/comm/comm.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

struct ot_engine_diagnosis {
    int bad_block;         /* -1: none so far */
    struct ot_error error; /* set by the lane's thread */
};

static int64_t count_bad(enum ot_dtype dtype, const void *values, int64_t n) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += !isfinite(ot_dtype_read(dtype, values, i));
    return bad;
}

/* Waits for the lane after each piece, which only a diagnosis may do. The pieces are copied to the host
 * results of odd steps, because a forward pass uses the results of even steps. */
void ot_engine_diagnose_output(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    struct ot_engine_diagnosis *diagnosis = en->diagnosis;
    int to = en->layout.results_host[1];
    size_t one = ot_dtype_bytes(en->chain.dtype);
    int64_t n = en->steps[0].micro_tokens[task->micro] * en->chain.boundary_elems;
    int64_t most = (int64_t)(en->layout.buffers[to].bytes / one), piece;
    const char *from = ot_engine_at(en, task->y);
    for (int64_t i = 0; i < n && diagnosis->bad_block < 0 && diagnosis->error.code == 0; i += piece) {
        piece = ot_min(n - i, most);
        ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at(en, to), from + (size_t)i * one, (size_t)piece * one);
        ot_error_save(&diagnosis->error, ot_lane_sync(lane));
        if (diagnosis->error.code == 0 && count_bad(en->chain.dtype, ot_engine_at(en, to), piece) > 0)
            diagnosis->bad_block = task->block;
    }
}

/* Stages: each rank has seen its own blocks. Takes the first of the blocks that the ranks have found. */
static int join_blocks(const struct ot_engine *en, int *bad_block) {
    int all[OT_MAX_RANKS];
    if (!ot_plan_has_stages(&en->plan))
        return 0;
    OT_TRY(ot_comm_all_gather_host(en->comm, bad_block, sizeof *bad_block, all));
    for (int r = 0; r < en->plan.shard.ranks; r++)
        if (all[r] >= 0 && (*bad_block < 0 || all[r] < *bad_block))
            *bad_block = all[r];
    return 0;
}

static int run_diagnosis(struct ot_engine *en, const struct ot_micro_batch *micro, int *bad_block) {
    struct ot_engine_diagnosis diagnosis = {.bad_block = -1};
    float *losses = malloc((size_t)micro->n_tokens * sizeof *losses);
    if (!losses)
        return ot_fail(OT_E_BUDGET, "no memory for the losses of %lld tokens", (long long)micro->n_tokens);
    en->diagnosis = &diagnosis; /* the engine is drained, so no lane reads en->diagnosis now */
    int rc = ot_engine_eval(en, micro, losses);
    en->diagnosis = NULL;
    if (rc == 0)
        rc = ot_error_load(&diagnosis.error);
    if (rc == 0)
        rc = join_blocks(en, &diagnosis.bad_block);
    if (rc == 0 && diagnosis.bad_block < 0 && count_bad(OT_F32, losses, micro->n_tokens) > 0)
        diagnosis.bad_block = en->chain.n_blocks - 1;
    *bad_block = diagnosis.bad_block;
    free(losses);
    return rc;
}

/* Returns the weight in the storage dtype, for which a finite master may be too large. */
static float as_stored(enum ot_dtype dtype, float master) {
    return dtype == OT_F32    ? master
           : dtype == OT_BF16 ? ot_bf16_to_f32(ot_bf16_from_f32(master))
                              : ot_f16_to_f32(ot_f16_from_f32(master));
}

/* Encoded weights are not checked: the encoder refuses numbers that are not finite. */
static int look_at_weights(struct ot_engine *en, int slab, struct ot_bad_block *out) {
    enum { CHUNK = 1 << 16 };
    if (ot_slab_is_encoded(&en->chain, slab))
        return 0;
    struct ot_shard_range held = ot_slab_holding(&en->chain, &en->plan, slab);
    int64_t n = held.n, bad = 0;
    int rc = 0;
    float *values = malloc(CHUNK * sizeof *values);
    if (!values)
        return ot_fail(OT_E_BUDGET, "no memory to look at %d weights", CHUNK);
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t part = ot_min(n - first, CHUNK);
        OT_TRY_GOTO(ot_engine_get(en, OT_SLAB_MASTER, slab, held.first + first, part, values), rc, out);
        for (int64_t i = 0; i < part; i++)
            bad += !isfinite(as_stored(en->chain.dtype, values[i]));
    }
    if (bad > 0) {
        out->slab = slab;
        out->slab_name = en->chain.slabs[slab].name;
        out->bad_weights = bad;
    }
out:
    free(values);
    return rc;
}

/* Looks at the weights of the slabs in turn, until one has bad weights. With stages the owners look at
 * what they hold, and tell the others. */
static int look_at_slabs(struct ot_engine *en, const int slabs[], int n, struct ot_bad_block *out) {
    for (int i = 0; i < n && out->slab < 0; i++)
        OT_TRY(look_at_weights(en, slabs[i], out));
    if (!ot_plan_has_stages(&en->plan))
        return 0;
    int64_t found[2] = {out->slab, out->bad_weights}, all[2 * OT_MAX_RANKS];
    OT_TRY(ot_comm_all_gather_host(en->comm, found, sizeof found, all));
    out->slab = -1;
    out->bad_weights = 0;
    for (int i = 0; i < n && out->slab < 0; i++)
        for (int r = 0; r < en->plan.shard.ranks; r++)
            if (all[2 * r] == slabs[i]) {
                out->slab = slabs[i];
                out->bad_weights += all[2 * r + 1];
            }
    out->slab_name = out->slab < 0 ? NULL : en->chain.slabs[out->slab].name;
    return 0;
}

int ot_engine_find_bad_block(struct ot_engine *en, const struct ot_micro_batch *micro, int suspect,
                             struct ot_bad_block *out) {
    int slabs[OT_MAX_USES];
    *out = (struct ot_bad_block){.block = -1, .slab = -1};
    OT_TRY(run_diagnosis(en, micro, &out->block));
    if (out->block < 0)
        return suspect < 0 ? 0 : look_at_slabs(en, &suspect, 1, out);
    const struct ot_block_spec *block = &en->chain.blocks[out->block];
    out->block_name = block->name;
    for (int u = 0; u < block->n_uses; u++)
        slabs[u] = block->uses[u].slab;
    return look_at_slabs(en, slabs, block->n_uses, out);
}
