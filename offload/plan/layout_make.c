#include "offload/plan/layout.h"

#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout_add.h"
#include "offload/plan/shadow_updates.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* Fewer sides: gradients need no old content, because a step that fails while it writes them cannot be
 * continued anyway. Frozen weights are written before the first step alone. */
enum { GRAD_SIDES = 1, FROZEN_SIDES = 1 };
_Static_assert(OT_LEAST_SIDES + OT_PLAN_MAX_PINNED_CONTENTS == OT_STORE_MAX_SIDES, "plan.h");

static size_t weight_bytes(const struct ot_chain *chain, int64_t n_params) {
    return (size_t)n_params * ot_dtype_bytes(chain->dtype);
}

static size_t state_bytes(const struct ot_chain *chain, int64_t n_params) {
    return ot_state_bytes(chain, n_params);
}

/* Adds n parameters of a slab, from `first` on, as one extent per tile. bytes(chain, n): the bytes of n
 * parameters. */
static int add_on_nvme(struct ot_layout_maker *mk, const char *name, int64_t first, int64_t n, int sides,
                       size_t (*bytes)(const struct ot_chain *, int64_t)) {
    int64_t tile = mk->plan->tile_params;
    int n_tiles = (int)((n + tile - 1) / tile);
    int64_t rest = n_tiles > 0 ? n - (n_tiles - 1) * tile : 0; /* the last tile of a slab may be short */
    int buffer = ot_layout_add_extents(mk, name, ot_layout_pages(bytes(mk->chain, tile)),
                                       ot_layout_pages(bytes(mk->chain, rest)), n_tiles, sides);
    if (buffer != OT_NO_BUFFER)
        mk->layout->buffers[buffer].first_param = first;
    return buffer;
}

/* The same for contents that may be pinned. */
static int add_kept_on_nvme(struct ot_layout_maker *mk, const char *name, int64_t first, int64_t n,
                            size_t (*bytes)(const struct ot_chain *, int64_t)) {
    return add_on_nvme(mk, name, first, n, OT_LEAST_SIDES + mk->plan->pinned_contents, bytes);
}

static size_t encoded_bytes(const struct ot_chain *chain, int64_t units) {
    (void)chain;
    return (size_t)units * OT_ENCODED_UNIT;
}

/* Frozen weights are in no checkpoint, so no content of theirs is pinned. */
static int add_weights_on_nvme(struct ot_layout_maker *mk, int s, struct ot_shard_range held) {
    if (!mk->chain->slabs[s].frozen)
        return add_kept_on_nvme(mk, "weights", held.first, held.n, weight_bytes);
    return add_on_nvme(mk, "weights", held.first, held.n, FROZEN_SIDES,
                       ot_slab_is_encoded(mk->chain, s) ? encoded_bytes : weight_bytes);
}

static void add_training(struct ot_layout_maker *mk, int s) {
    const struct ot_chain *chain = mk->chain;
    struct ot_slab_buffers *b = &mk->layout->slabs[s];
    struct ot_shard_range held = ot_slab_holding(chain, mk->plan, s);
    struct ot_tile_span on_gpu = ot_slab_engine_tiles(chain, mk->plan, s, OT_TILE_GPU);
    struct ot_tile_span off_gpu = ot_slab_state_off_gpu(chain, mk->plan, s);
    struct ot_tile_span waiting = ot_slab_waiting_on_gpu(chain, mk->plan, s);
    if (on_gpu.n > 0)
        b->state_gpu = ot_layout_add_from(mk, OT_TIER_GPU, "optimizer state", on_gpu.first,
                                          state_bytes(chain, on_gpu.n), 1);
    if (off_gpu.n > 0 && mk->plan->slabs[s].state == OT_HOME_NVME)
        b->state_nvme = add_kept_on_nvme(mk, "optimizer state", off_gpu.first, off_gpu.n, state_bytes);
    else if (off_gpu.n > 0)
        b->state_host = ot_layout_add_from(mk, OT_TIER_HOST, "optimizer state", off_gpu.first,
                                           state_bytes(chain, off_gpu.n), off_gpu.n_tiles);
    if (waiting.n > 0)
        b->grad_gpu = ot_layout_add_from(mk, OT_TIER_GPU, "gradients", waiting.first,
                                         weight_bytes(chain, waiting.n), 1);
    if (mk->plan->slabs[s].grads == OT_HOME_NVME && off_gpu.n > 0)
        b->grad_nvme = add_on_nvme(mk, "gradients", off_gpu.first, off_gpu.n, GRAD_SIDES, weight_bytes);
    else if (waiting.n < held.n && !ot_slab_grads_follow_sum(chain, mk->plan, s)) /* or: add_sums */
        b->grad_host = ot_layout_add_from(mk, OT_TIER_HOST, "gradients", waiting.first + waiting.n,
                                          weight_bytes(chain, held.n - waiting.n), 1);
    if (mk->plan->keep_grads)
        b->kept_grad =
            ot_layout_add_from(mk, OT_TIER_HOST, "kept gradients", held.first, (size_t)held.n * 4, 1);
}

/* The whole slab. */
static int add_one_copy(struct ot_layout_maker *mk, int slab) {
    int64_t share = ot_shard_share(&mk->plan->shard, ot_slab_units(mk->chain, slab));
    return ot_layout_add_shared(mk, "weights", ot_slab_bytes(mk->chain, slab, share),
                                ot_slab_used_tiles(mk->chain, mk->plan, slab));
}

static int add_crossing(struct ot_layout_maker *mk) {
    struct ot_crossing crossing;
    size_t ranks = (size_t)ot_shard_ranks(&mk->plan->shard);
    if (!mk->plan->crosses || mk->rc < 0)
        return OT_NO_BUFFER;
    mk->rc = ot_stages_list_links(mk->chain, mk->plan, &crossing);
    size_t bytes = mk->rc < 0 ? 0 : ot_crossing_bytes(&crossing);
    free(crossing.links);
    return ot_layout_add_shared(mk, "communicator", (bytes + ranks - 1) / ranks, 1);
}

/* Units of a buffer for the shares of all holders: the slab, rounded up to equal shares. */
static int64_t shares_of(const struct ot_layout_maker *mk, int s) {
    const struct ot_shard *shard = &mk->plan->shard;
    int64_t units = ot_slab_units(mk->chain, s);
    if (ot_plan_has_stages(mk->plan) && !ot_plan_exchanges(mk->plan))
        return units;
    return ot_shard_holders(shard) * ot_shard_share(shard, units);
}

static size_t sum_bytes(const struct ot_chain *chain, int64_t n_params) {
    (void)chain;
    return (size_t)n_params * sizeof(float);
}

/* The home of a gradient sum between rounds. */
static int add_sum(struct ot_layout_maker *mk, int slab) {
    if (ot_slab_sum_stays(mk->chain, mk->plan, slab))
        return ot_layout_add(mk, OT_TIER_GPU, "gradient sums", sum_bytes(mk->chain, shares_of(mk, slab)), 1);
    if (mk->plan->slabs[slab].sums == OT_HOME_NVME)
        return add_on_nvme(mk, "gradient sums", 0, mk->chain->slabs[slab].n_params, GRAD_SIDES, sum_bytes);
    return ot_layout_add(mk, OT_TIER_HOST, "gradient sums", sum_bytes(mk->chain, shares_of(mk, slab)), 1);
}

/* Lets the finished gradients of a slab wait where its first sum waited between rounds: the last round has
 * brought the sum to the device before the gradients leave. */
static void let_grads_follow(struct ot_layout_maker *mk, int slab, int sum) {
    int *grads = &mk->layout->slabs[slab].grad_host;
    if (*grads == OT_NO_BUFFER && ot_slab_grads_follow_sum(mk->chain, mk->plan, slab))
        *grads = sum;
}

/* Homes of the gradient sums between rounds: one for each use, and each depth of its tree. */
static void add_sums(struct ot_layout_maker *mk) {
    const struct ot_chain *chain = mk->chain;
    mk->layout->sums = ot_layout_new_indices(mk, mk->plan->train ? ot_layout_sum(chain->n_blocks, 0, 0) : 0);
    for (int b = 0; mk->layout->sums && b < chain->n_blocks; b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++) {
            int slab = chain->blocks[b].uses[u].slab;
            if (!ot_slab_sum_stays(chain, mk->plan, slab) && !ot_slab_sum_leaves(chain, mk->plan, slab))
                continue;
            int *sums = &mk->layout->sums[ot_layout_sum(b, u, 0)];
            for (int depth = 0; depth < ot_shard_accumulators(&mk->plan->shard); depth++)
                sums[depth] = add_sum(mk, slab);
            let_grads_follow(mk, slab, sums[0]);
        }
}

static void add_slab(struct ot_layout_maker *mk, int s) {
    const struct ot_slab_plan *sp = &mk->plan->slabs[s];
    struct ot_slab_buffers *b = &mk->layout->slabs[s];
    struct ot_shard_range held = ot_slab_holding(mk->chain, mk->plan, s);
    int64_t share = ot_shard_share(&mk->plan->shard, ot_slab_units(mk->chain, s));
    bool frozen = mk->chain->slabs[s].frozen;
    int tiles = ot_slab_tiles(mk->chain, mk->plan, s);
    *b = (struct ot_slab_buffers){frozen, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    if (ot_slab_is_borrowed(mk->chain, mk->plan, s))
        b->weights_gpu = ot_layout_add(mk, OT_TIER_GPU, "weights",
                                       ot_slab_bytes(mk->chain, s, ot_slab_units(mk->chain, s)), 1);
    if (!ot_slab_is_own(mk->plan, s))
        return;
    if (sp->weights == OT_HOME_GPU && !ot_slab_is_streamed(mk->plan, s))
        b->weights_gpu =
            ot_layout_add(mk, OT_TIER_GPU, "weights", ot_slab_bytes(mk->chain, s, shares_of(mk, s)),
                          ot_slab_used_tiles(mk->chain, mk->plan, s));
    else if (sp->weights == OT_HOME_GPU)
        b->weights_gpu = ot_layout_add_from(mk, OT_TIER_GPU, "weights", held.first,
                                            ot_slab_bytes(mk->chain, s, share), tiles);
    if (sp->weights == OT_HOME_NVME)
        b->weights_nvme = add_weights_on_nvme(mk, s, held);
    else if (ot_slab_has_one_copy(mk->plan, s))
        b->weights_host = add_one_copy(mk, s);
    else if (sp->weights == OT_HOME_HOST || (mk->plan->train && sp->tiles[OT_TILE_CPU] > 0))
        b->weights_host = ot_layout_add_from(mk, OT_TIER_HOST, "weights", held.first,
                                             ot_slab_bytes(mk->chain, s, held.n), tiles);
    if (mk->plan->train && !frozen)
        add_training(mk, s);
}

/* Counts the slabs right after s that are layers of the same size in the same homes: they have the same
 * buffers. */
static int count_others(const struct ot_layout_maker *mk, int s) {
    const struct ot_slab_spec *spec = &mk->chain->slabs[s];
    const struct ot_slab_plan *plan = &mk->plan->slabs[s];
    int n = 1;
    for (; s + n < mk->chain->n_slabs && !spec->edge && !spec->shared; n++)
        if (spec[n].edge || spec[n].shared || spec[n].n_params != spec->n_params ||
            spec[n].frozen != spec->frozen || spec[n].encoded_bytes != spec->encoded_bytes ||
            memcmp(&plan[n], plan, sizeof *plan) != 0)
            break;
    return n - 1;
}

/* Parameters of the largest tile among n parameters. */
static int64_t largest_tile(const struct ot_layout_maker *mk, int64_t n) {
    return ot_min(n, mk->plan->tile_params);
}

static void add_state_slots(struct ot_layout_maker *mk) {
    struct ot_layout *layout = mk->layout;
    bool grads = false, weights = false;
    for (int s = 0; mk->plan->train && s < mk->chain->n_slabs; s++) {
        struct ot_tile_span tiles = ot_slab_engine_tiles(mk->chain, mk->plan, s, OT_TILE_STREAM);
        int64_t largest = largest_tile(mk, tiles.n);
        layout->slot_params = ot_max(largest, layout->slot_params);
        grads = grads || (tiles.n > 0 && mk->plan->slabs[s].grads != OT_HOME_GPU);
        weights = weights || (tiles.n > 0 && ot_slab_has_one_copy(mk->plan, s));
    }
    size_t bytes = state_bytes(mk->chain, layout->slot_params) +
                   (size_t)(weights ? 2 : grads) * weight_bytes(mk->chain, layout->slot_params);
    layout->state_slots =
        ot_layout_add_many(mk, OT_TIER_GPU, "optimizer state slots", bytes, mk->plan->state_slots);
}

/* A slot fits the largest tile that passes through it: its state, then its weights, then its gradients. */
static void add_tile_slots(struct ot_layout_maker *mk) {
    struct ot_layout *layout = mk->layout;
    int64_t state = 0, weights = 0, grads = 0;
    for (int s = 0; mk->plan->train && s < mk->chain->n_slabs; s++) {
        int64_t tile = largest_tile(mk, ot_slab_holding(mk->chain, mk->plan, s).n);
        bool off_gpu = ot_slab_state_off_gpu(mk->chain, mk->plan, s).n > 0;
        if (off_gpu && mk->plan->slabs[s].state == OT_HOME_NVME && tile > state)
            state = tile;
        if (ot_slab_weights_pass(mk->plan, s) && !mk->chain->slabs[s].frozen && tile > weights)
            weights = tile;
        if (off_gpu && mk->plan->slabs[s].grads == OT_HOME_NVME && tile > grads)
            grads = tile;
    }
    layout->slot_weights_offset = ot_layout_pages(state_bytes(mk->chain, state));
    layout->slot_grads_offset =
        layout->slot_weights_offset + ot_layout_pages(weight_bytes(mk->chain, weights));
    layout->tile_slots = ot_layout_add_tiled(
        mk, OT_TIER_HOST, "optimizer state slots",
        layout->slot_grads_offset + ot_layout_pages(weight_bytes(mk->chain, grads)), 3, mk->plan->tile_slots);
}

/* A slot fits the gradients of the largest tile, or the largest piece of a sum. */
static void add_host_grad_slots(struct ot_layout_maker *mk) {
    const struct ot_chain *chain = mk->chain;
    size_t bytes = 0, piece;
    for (int s = 0; mk->plan->train && s < chain->n_slabs; s++) {
        const struct ot_slab_plan *sp = &mk->plan->slabs[s];
        bool grads = sp->grads == OT_HOME_NVME && ot_slab_state_off_gpu(chain, mk->plan, s).n > 0;
        piece = weight_bytes(chain, largest_tile(mk, ot_slab_holding(chain, mk->plan, s).n));
        bytes = grads && piece > bytes ? piece : bytes;
        piece = sum_bytes(chain, largest_tile(mk, chain->slabs[s].n_params));
        bool sums = sp->sums == OT_HOME_NVME && ot_slab_sum_leaves(chain, mk->plan, s);
        bytes = sums && piece > bytes ? piece : bytes;
    }
    mk->layout->host_grad_slots = ot_layout_add_many(mk, OT_TIER_HOST, "gradient slots",
                                                     ot_layout_pages(bytes), mk->plan->host_grad_slots);
}

static void add_snapshot(struct ot_layout_maker *mk) {
    struct ot_layout *layout = mk->layout;
    const struct ot_plan *plan = mk->plan;
    size_t slots = (size_t)plan->snapshot_slots * ot_segment_slot_bytes(mk->chain->dtype);
    layout->snapshot_slots = layout->snapshot_tile = OT_NO_BUFFER;
    if (slots == 0)
        return;
    layout->snapshot_slots = ot_layout_add(mk, OT_TIER_HOST, "checkpoint", slots, 1);
    if (layout->slot_grads_offset > 0)
        layout->snapshot_tile = ot_layout_add(mk, OT_TIER_HOST, "checkpoint", layout->slot_grads_offset, 1);
}

/* The largest slabs of a kind of slots. */
struct largest {
    size_t used, encoded, held;  /* bytes: the weights that blocks use; an encoded slab; a holding */
    int64_t params, held_params; /* the shares of all ranks; a holding */
    int tiles;
};

static void note_slab(const struct ot_layout_maker *mk, int s, struct largest *largest) {
    const struct ot_chain *chain = mk->chain;
    int64_t shares = shares_of(mk, s), held = ot_slab_holding(chain, mk->plan, s).n;
    int tiles = ot_slab_used_tiles(chain, mk->plan, s);
    bool encoded = ot_slab_is_encoded(chain, s);
    size_t bytes = ot_slab_bytes(chain, s, shares);
    largest->used = ot_max(largest->used, encoded ? weight_bytes(chain, chain->slabs[s].n_params) : bytes);
    largest->encoded = ot_max(largest->encoded, encoded ? bytes : 0);
    largest->held = ot_max(largest->held, ot_slab_bytes(chain, s, held));
    largest->params = ot_max(shares, largest->params);
    largest->held_params = ot_max(held, largest->held_params);
    largest->tiles = ot_max(tiles, largest->tiles);
}

static void add_slots(struct ot_layout_maker *mk) {
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    struct largest kinds[OT_SLOT_KINDS] = {0};
    for (int s = 0; s < mk->chain->n_slabs; s++)
        if (ot_slab_is_here(mk->chain, mk->plan, s))
            note_slab(mk, s, &kinds[ot_slab_slot_kind(mk->chain, s)]);
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        const struct largest *at = &kinds[k];
        size_t sums = (size_t)at->params * sizeof(float);
        layout->weight_slots[k] =
            ot_layout_add_tiled(mk, OT_TIER_GPU, "weight slots", at->used, at->tiles, plan->weight_slots[k]);
        layout->encoded_slots[k] = ot_layout_add_tiled(mk, OT_TIER_GPU, "encoded weight slots", at->encoded,
                                                       at->tiles, plan->encoded_slots[k]);
        layout->host_weight_slots[k] =
            ot_layout_add_held(mk, OT_TIER_HOST, "weight slots", ot_layout_pages(at->held), at->tiles,
                               plan->host_weight_slots[k]);
        layout->grad_slots[k] =
            ot_layout_add_many(mk, OT_TIER_GPU, "gradient slots", sums, plan->grad_slots[k]);
        layout->grad_out_slots[k] =
            ot_layout_add_held(mk, OT_TIER_GPU, "gradient slots", weight_bytes(mk->chain, at->held_params), 1,
                               plan->grad_out_slots[k]);
        layout->exchange_slots[k] =
            ot_layout_add_many(mk, OT_TIER_GPU, "exchange slots", sums, plan->exchange_slots[k]);
    }
}

/* Returns the bytes that every middle block saves at a level; 0 if blocks differ. */
static size_t saved_alike(const struct ot_chain *chain, enum ot_keep_level level, int64_t micro_tokens) {
    size_t saved = 0;
    for (int b = 1; b < chain->n_blocks - 1; b++) {
        size_t bytes = chain->saved_bytes(chain->context, b, level, micro_tokens);
        if (b > 1 && bytes != saved)
            return 0;
        saved = bytes;
    }
    return saved;
}

struct ot_workspace ot_plan_workspace(const struct ot_chain *chain, int64_t micro_tokens) {
    struct ot_workspace most = {.tokens = micro_tokens};
    for (enum ot_keep_level l = 0; l < OT_KEEP_LEVELS; l++)
        most.saved[l] = saved_alike(chain, l, micro_tokens);
    for (int b = 0; b < chain->n_blocks; b++) {
        bool edge = b == 0 || b == chain->n_blocks - 1;
        most.scratch = ot_max(most.scratch, chain->scratch_bytes(chain->context, b, micro_tokens));
        for (enum ot_keep_level l = 0; l < (edge ? OT_KEEP_ATTENTION : OT_KEEP_LEVELS); l++) {
            size_t *work = edge ? &most.edge : &most.middle[l];
            *work = ot_max(*work, chain->work_bytes(chain->context, b, l, micro_tokens));
        }
    }
    return most;
}

size_t ot_plan_saved_bytes(const struct ot_chain *chain, const struct ot_plan *plan, int block,
                           enum ot_keep_level level) {
    const struct ot_workspace *space = &plan->workspace;
    return space->tokens == plan->micro_tokens && space->saved[level] > 0
               ? space->saved[level]
               : chain->saved_bytes(chain->context, block, level, plan->micro_tokens);
}

/* The most work of a block of this plan. */
static size_t most_work(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_workspace *space) {
    bool all_keep = plan->train && ot_chain_first_trained(chain) <= 1 &&
                    ot_plan_kept_blocks(plan, OT_TIER_COUNT) >= ot_plan_middle_blocks(chain, plan, 1);
    bool none = !all_keep || ot_plan_sections(plan) > 1; /* KEYS tasks keep nothing */
    size_t most = none ? ot_max(space->edge, space->middle[OT_KEEP_NONE]) : space->edge;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (plan->kept[t].blocks > 0)
            most = ot_max(most, space->middle[plan->kept[t].level]);
    return most;
}

/* Adds the keys and values of a row in sections: on the device, and with key groups at home on the host. */
static void add_row(struct ot_layout_maker *mk) {
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    const char *name = "keys and values";
    int groups = ot_plan_key_groups(plan), slots = groups > 1 ? OT_KEY_SLOTS : 1;
    size_t elems = 2 * (size_t)ot_plan_row_elems(mk->chain, plan); /* of a group */
    size_t keys = elems * ot_dtype_bytes(mk->chain->dtype), sums = elems * sizeof(float);
    bool sections = ot_plan_sections(plan) > 1, has_sums = sections && plan->train;
    layout->row_keys = layout->row_sums = layout->row_keys_home = layout->row_sums_home = OT_NO_BUFFER;
    if (sections)
        layout->row_keys = ot_layout_add(mk, OT_TIER_GPU, name, (size_t)slots * keys, slots);
    if (has_sums)
        layout->row_sums = ot_layout_add(mk, OT_TIER_GPU, name, (size_t)slots * sums, slots);
    if (sections && groups > 1)
        layout->row_keys_home = ot_layout_add(mk, OT_TIER_HOST, name, (size_t)groups * keys, groups);
    if (has_sums && groups > 1)
        layout->row_sums_home = ot_layout_add(mk, OT_TIER_HOST, name, (size_t)groups * sums, groups);
}

/* Adds the memory for inner activations that blocks do not keep, and the scratch that all blocks share. Only
 * the compute lane uses them. */
static void add_workspace(struct ot_layout_maker *mk) {
    const struct ot_chain *chain = mk->chain;
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    struct ot_workspace space = plan->workspace;
    if (space.tokens != plan->micro_tokens)
        space = ot_plan_workspace(chain, plan->micro_tokens);
    layout->work = ot_layout_add(mk, OT_TIER_GPU, "workspace", most_work(chain, plan, &space), 1);
    layout->scratch = ot_layout_add(mk, OT_TIER_GPU, "workspace", space.scratch, 1);
    layout->token_loss =
        ot_layout_add(mk, OT_TIER_GPU, "workspace", (size_t)ot_plan_pass_tokens(plan) * sizeof(float), 1);
    add_row(mk);
    size_t logits = (size_t)(chain->vocab * ot_max(plan->texts, 1)) * sizeof(float);
    layout->logits = ot_layout_add(mk, OT_TIER_GPU, "workspace", logits, 1);
    layout->token_weights = layout->answers = OT_NO_BUFFER;
    if (!chain->compares || !plan->train)
        return;
    size_t answers = 2 * (size_t)plan->micro_tokens / OT_COMPARISON_TOKENS * sizeof(double);
    layout->token_weights =
        ot_layout_add(mk, OT_TIER_GPU, "workspace", (size_t)plan->micro_tokens * sizeof(float), 1);
    layout->answers = ot_layout_add(mk, OT_TIER_GPU, "workspace", answers, 1);
}

/* Adds the results of a step. Evaluation and generation use the host's pages for token losses and logits. */
static void add_results(struct ot_layout_maker *mk) {
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t n_slabs = (size_t)mk->chain->n_slabs, ranks = (size_t)ot_shard_ranks(&plan->shard);
    int64_t most = ot_max(mk->chain->vocab * ot_max(plan->texts, 1), ot_plan_pass_tokens(plan));
    layout->norms = ot_shard_norm_ranges(&plan->shard);
    layout->own_norms =
        ot_plan_is_sharded(plan) ? layout->norms / ot_shard_holders(&plan->shard) : layout->norms;
    layout->micro_results = mk->chain->compares ? OT_COMPARE_SUMS : 1;
    layout->own_results = plan->max_micro * layout->micro_results + 1;
    size_t rest = (size_t)layout->own_results, own = n_slabs * (size_t)layout->own_norms + rest;
    bool stages = ot_plan_has_stages(plan);
    size_t norms = n_slabs * (size_t)layout->norms,
           all = stages ? ranks * (norms + rest) : norms + ranks * rest;
    size_t forward = (size_t)most * sizeof(float), bytes = all * sizeof(double);
    const char *name = "batches, results";
    layout->results_gpu =
        ot_layout_add(mk, OT_TIER_GPU, name, stages ? bytes : own * sizeof(double), (int)n_slabs + 1);
    layout->all_results = ranks > 1 && !stages ? ot_layout_add(mk, OT_TIER_GPU, name, bytes, (int)n_slabs + 1)
                                               : layout->results_gpu;
    for (int p = 0; p < 2; p++)
        layout->results_host[p] =
            ot_layout_add(mk, OT_TIER_HOST, name, ot_max(bytes, forward), (int)n_slabs + 1);
}

static void add_used(struct ot_layout_maker *mk) {
    struct ot_layout *layout = mk->layout;
    int blocks = mk->chain->n_blocks;
    bool any = false;
    for (int b = 0; b < blocks; b++)
        any = any || ot_block_chooses(mk->chain, mk->plan, b);
    layout->used_gpu = layout->used_host[0] = layout->used_host[1] = OT_NO_BUFFER;
    if (!any)
        return;
    layout->most_parts = ot_chain_most_parts(mk->chain);
    size_t bytes = (size_t)blocks * (size_t)layout->most_parts * sizeof(int32_t);
    layout->used_gpu = ot_layout_add(mk, OT_TIER_GPU, "batches, results", bytes, blocks);
    for (int p = 0; p < 2; p++)
        layout->used_host[p] = ot_layout_add(mk, OT_TIER_HOST, "batches, results", bytes, blocks);
}

static void add_step_buffers(struct ot_layout_maker *mk) {
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t batch = (size_t)plan->max_micro * (size_t)plan->micro_tokens *
                   (size_t)ot_chain_token_arrays(mk->chain) * sizeof(int32_t);
    layout->constants = ot_layout_add(mk, OT_TIER_GPU, "constants", mk->chain->constant_bytes, 1);
    add_results(mk);
    add_used(mk);
    size_t params = (size_t)mk->chain->n_slabs * sizeof(struct ot_adamw_step);
    layout->params_gpu = ot_layout_add(mk, OT_TIER_GPU, "batches, results", params, mk->chain->n_slabs);
    for (int p = 0; p < 2; p++)
        layout->batch_gpu[p] = ot_layout_add(mk, OT_TIER_GPU, "batches, results", batch, 1);
    for (int p = 0; p < 2; p++)
        layout->batch_host[p] = ot_layout_add(mk, OT_TIER_HOST, "batches, results", batch, 1);
    for (int p = 0; p < 2; p++)
        layout->params_host[p] =
            ot_layout_add(mk, OT_TIER_HOST, "batches, results", params, mk->chain->n_slabs);
    layout->control = ot_layout_add(mk, OT_TIER_HOST, "batches, results", 64, 1);
    layout->staging = plan->staging_bytes > 0
                          ? ot_layout_add(mk, OT_TIER_HOST, "communicator", plan->staging_bytes, 1)
                          : OT_NO_BUFFER;
    layout->crossing = add_crossing(mk);
    layout->meeting = OT_NO_BUFFER;
    if (ot_plan_has_one_copy(plan))
        layout->meeting = ot_layout_add(mk, OT_TIER_GPU, "batches, results",
                                        (size_t)ot_shard_ranks(&plan->shard) * OT_MEETING_BYTES, 1);
    layout->loss_scale = plan->train && mk->chain->dtype == OT_F16
                             ? ot_layout_add(mk, OT_TIER_GPU, "batches, results", 64, 1)
                             : OT_NO_BUFFER;
}

static int make(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_ledger *sizes,
                struct ot_layout *out) {
    struct ot_layout_maker mk = {.chain = chain, .plan = plan, .layout = out, .sizes = sizes};
    memset(out, 0, sizeof *out);
    out->n_blocks = chain->n_blocks;
    out->slabs = calloc((size_t)chain->n_slabs, sizeof *out->slabs);
    if (!out->slabs)
        return ot_fail(OT_E_BUDGET, "no memory for the plan of %d slabs", chain->n_slabs);
    for (int s = 0; s < chain->n_slabs; s += 1 + mk.others) {
        mk.others = sizes ? count_others(&mk, s) : 0;
        add_slab(&mk, s);
    }
    mk.others = 0;
    add_sums(&mk);
    ot_layout_add_cache(&mk);
    out->idle_offset = out->tier_bytes[OT_TIER_GPU];
    add_slots(&mk);
    add_state_slots(&mk);
    add_tile_slots(&mk);
    add_host_grad_slots(&mk);
    add_snapshot(&mk);
    ot_layout_add_boundaries(&mk);
    if (ot_plan_has_shadows(plan))
        out->frame_bytes = ot_plan_frame_bytes(chain, plan);
    ot_layout_add_kept(&mk);
    if (ot_plan_has_shadows(plan))
        ot_layout_add_frames(&mk);
    ot_layout_add_cache_slots(&mk);
    add_workspace(&mk);
    out->idle_bytes = out->tier_bytes[OT_TIER_GPU] - out->idle_offset;
    add_step_buffers(&mk);
    if (mk.rc < 0)
        ot_layout_free(out);
    return mk.rc;
}

int ot_layout_make(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_layout *out) {
    return make(chain, plan, NULL, out);
}

int ot_layout_measure(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_ledger *out) {
    struct ot_layout layout;
    memset(out, 0, sizeof *out);
    OT_TRY(make(chain, plan, out, &layout));
    ot_layout_free(&layout);
    return 0;
}
