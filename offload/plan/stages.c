#include "offload/plan/stages.h"

#include <assert.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

static_assert((int)OT_SHARD_MOST_STAGES == (int)OT_MAX_RANKS, "a rank may be a stage");

bool ot_plan_is_divided(const struct ot_plan *plan) {
    return ot_shard_ranks(&plan->shard) > 1 && plan->shard.mode != OT_SHARD_NONE;
}

/* A slab whose owner is the block's: one that is not shared. */
static int telling_slab(const struct ot_chain *chain, int block) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    int u = 0;
    while (u + 1 < spec->n_uses && chain->slabs[spec->uses[u].slab].shared)
        u++;
    return spec->uses[u].slab;
}

int ot_block_owner(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    return ot_plan_has_stages(plan) ? plan->slabs[telling_slab(chain, block)].owner : 0;
}

bool ot_block_is_own(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    return ot_block_owner(chain, plan, block) == ot_shard_stage(&plan->shard);
}

int ot_plan_middle_blocks(const struct ot_chain *chain, const struct ot_plan *plan, int first) {
    int last = chain->n_blocks - 2, n = 0;
    if (!ot_plan_has_stages(plan))
        return ot_max(last + 1 - first, 0);
    for (int b = first, own = ot_shard_stage(&plan->shard); b <= last; b++)
        n += ot_block_owner(chain, plan, b) == own;
    return n;
}

bool ot_boundary_is_own(const struct ot_chain *chain, const struct ot_plan *plan, int boundary) {
    return ot_block_is_own(chain, plan, boundary + 1);
}

/* ---- shared slabs ---- */

static bool uses_slab(const struct ot_chain *chain, int block, int slab) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    for (int u = 0; u < spec->n_uses; u++)
        if (spec->uses[u].slab == slab)
            return true;
    return false;
}

int ot_slab_first_user(const struct ot_chain *chain, int slab) {
    int b = 0;
    while (b < chain->n_blocks - 1 && !uses_slab(chain, b, slab))
        b++;
    return b;
}

bool ot_slab_is_borrowed(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    if (!chain->slabs[slab].shared || ot_slab_is_own(plan, slab))
        return false;
    for (int b = 0; b < chain->n_blocks; b++)
        if (uses_slab(chain, b, slab) && ot_block_is_own(chain, plan, b))
            return true;
    return false;
}

size_t ot_stages_transfer_bytes(const struct ot_chain *chain, enum ot_transfer_kind kind, int index,
                                int64_t n_tokens) {
    if (kind == OT_TRANSFER_WEIGHTS)
        return (size_t)chain->slabs[index].n_params * ot_dtype_bytes(chain->dtype);
    if (kind == OT_TRANSFER_SUM) {
        const struct ot_block_use *use = &chain->blocks[index / OT_MAX_USES].uses[index % OT_MAX_USES];
        return (size_t)chain->slabs[use->slab].n_params * sizeof(float);
    }
    return ot_chain_boundary_bytes(chain, n_tokens);
}

/* In a tick the weights or one sum of a shared slab cross once, because only one block of all ends its first
 * forward, or its last backward. */
size_t ot_stages_bytes_at_once(const struct ot_chain *chain, const struct ot_plan *plan) {
    size_t bytes =
        OT_STAGE_MOST_AT_ONCE * ot_stages_transfer_bytes(chain, OT_TRANSFER_BOUNDARY, 0, plan->micro_tokens);
    for (int s = 0; s < chain->n_slabs; s++)
        bytes += chain->slabs[s].shared ? (size_t)chain->slabs[s].n_params * sizeof(float) : 0;
    return bytes;
}

/* ---- links ---- */

/* The links by their ranks: [ranks][ranks]. One without slots is not used. */
struct link_table {
    const struct ot_shard *shard;
    struct ot_crossing_link *links;
};

/* Notes that a rank sends bytes to another, with up to `transfers` transfers of a call on the link. */
static void note_link(const struct link_table *t, int from, int to, int transfers, size_t bytes) {
    struct ot_crossing_link *link = &t->links[from * t->shard->ranks + to];
    if (from == to)
        return;
    *link = (struct ot_crossing_link){from, to, ot_max(2 * transfers, link->slots),
                                      ot_max(bytes, link->slot_bytes)};
}

/* The same for two stages, in each replica. */
static void note_stages(const struct link_table *t, int from, int to, int transfers, size_t bytes) {
    for (int holder = 0; holder < ot_shard_holders(t->shard); holder++)
        note_link(t, ot_shard_rank_of(t->shard, holder, from), ot_shard_rank_of(t->shard, holder, to),
                  transfers, bytes);
}

/* The transfers of a unit of the block: a boundary or its gradient, and what it has of shared slabs. */
static int transfers_of(const struct ot_chain *chain, int block) {
    int n = 1;
    for (int u = 0; u < chain->blocks[block].n_uses; u++)
        n += chain->slabs[chain->blocks[block].uses[u].slab].shared;
    return n;
}

/* The weights of a shared slab come from the user before, its sums go to the owner. */
static void note_shared(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                        const struct link_table *t) {
    size_t bytes = (size_t)chain->slabs[slab].n_params * sizeof(float);
    int before = -1;
    for (int b = 0; b < chain->n_blocks && chain->slabs[slab].shared; b++) {
        if (!uses_slab(chain, b, slab))
            continue;
        int stage = ot_block_owner(chain, plan, b);
        if (before >= 0)
            note_stages(t, ot_block_owner(chain, plan, before), stage, transfers_of(chain, before), bytes);
        if (plan->train)
            note_stages(t, stage, plan->slabs[slab].owner, transfers_of(chain, b), bytes);
        before = b;
    }
}

static void note_links(const struct ot_chain *chain, const struct ot_plan *plan, const struct link_table *t) {
    size_t boundary = ot_stages_transfer_bytes(chain, OT_TRANSFER_BOUNDARY, 0, plan->micro_tokens);
    size_t piece = plan->staging_bytes / (2 * (size_t)t->shard->ranks);
    int holders = ot_shard_holders(t->shard);
    for (int b = 0; b + 1 < chain->n_blocks; b++) {
        int stage = ot_block_owner(chain, plan, b), next = ot_block_owner(chain, plan, b + 1);
        note_stages(t, stage, next, 1, boundary);
        if (plan->train)
            note_stages(t, next, stage, 1, boundary);
    }
    for (int s = 0; s < chain->n_slabs; s++)
        note_shared(chain, plan, s, t);
    for (int a = 0; a < t->shard->ranks && piece > 0; a++)
        for (int b = a - a % holders; b < a - a % holders + holders; b++)
            note_link(t, a, b, 1, piece);
}

int ot_stages_list_links(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_crossing *out) {
    size_t pairs = (size_t)plan->shard.ranks * (size_t)plan->shard.ranks;
    const struct link_table t = {&plan->shard, calloc(pairs, sizeof *t.links)};
    *out = (struct ot_crossing){.links = t.links};
    if (!t.links)
        return ot_fail(OT_E_BUDGET, "no memory for the links of %d ranks", plan->shard.ranks);
    note_links(chain, plan, &t);
    for (size_t i = 0; i < pairs; i++)
        if (t.links[i].slots > 0)
            t.links[out->n_links++] = t.links[i];
    return 0;
}

/* ---- the division ---- */

static bool share_a_slab(const struct ot_block_spec *a, const struct ot_block_spec *b) {
    for (int i = 0; i < a->n_uses; i++)
        for (int j = 0; j < b->n_uses; j++)
            if (a->uses[i].slab == b->uses[j].slab)
                return true;
    return false;
}

static int head_stage(const struct ot_chain *chain, const struct ot_shard *shard) {
    bool tied = share_a_slab(&chain->blocks[0], &chain->blocks[chain->n_blocks - 1]);
    return tied ? 0 : ot_shard_stages(shard) - 1;
}

/* The number of layers of a stage: an equal share of the work, in layers. There is a layer for each stage. */
static int layers_of(const struct ot_chain *chain, const struct ot_shard *shard, int stage) {
    int n = chain->n_blocks - 2, stages = ot_shard_stages(shard), head = head_stage(chain, shard);
    int with_head = (n + shard->head_layers + stages / 2) / stages - shard->head_layers;
    int others = stages - 1;
    with_head = ot_max(with_head, 0);
    if (stage == head)
        return with_head;
    int number = stage - (stage > head), rest = n - with_head;
    return rest / others + (number < rest % others);
}

/* A division by work. speeds, most: as in ot_stages_deal; NULL: the stages are alike. */
struct deal {
    const struct ot_chain *chain;
    const struct ot_shard *shard;
    const int *speeds, *most;
};

/* Gives each stage in its turn as many layers as it computes in the time that the fastest stage needs for
 * `limit` percent of the first layer's work, but at least one, unless the head is its work. False: some stage
 * needs more time than that. counts: [stages]. */
static bool deal_within(const struct deal *deal, int64_t limit, int *counts) {
    const struct ot_shard *shard = deal->shard;
    int n = deal->chain->n_blocks - 2, stages = ot_shard_stages(shard), next = 0;
    int head = shard->head_layers > 0 ? head_stage(deal->chain, shard) : -1;
    for (int stage = 0; stage < stages; stage++) {
        int64_t room = deal->speeds ? limit * deal->speeds[stage] / 100 : limit;
        int64_t work = stage == head ? 100 * shard->head_layers : 0;
        int later = stages - 1 - stage - (head > stage); /* stages that need a layer */
        counts[stage] = 0;
        while (next < n && !(deal->most && counts[stage] == deal->most[stage])) {
            int more = next < n - shard->late_layers ? 100 : shard->late_percent;
            bool must = counts[stage] == 0 && stage != head;
            if (!must && (work + more > room || n - next <= later))
                break;
            work += more;
            counts[stage]++;
            next++;
        }
        if (work > room)
            return false;
    }
    return next == n;
}

/* Deals the layers so that the stage that takes longest takes the least. */
static void deal(const struct deal *deal, int *counts) {
    const struct ot_shard *shard = deal->shard;
    int n = deal->chain->n_blocks - 2, late = shard->late_layers;
    int64_t limit =
        (100 * (n - late + shard->head_layers) + shard->late_percent * late) / ot_shard_stages(shard);
    while (!deal_within(deal, limit, counts))
        limit++;
}

static bool has_counts(const struct ot_shard *shard) {
    bool any = false;
    for (int stage = 0; stage < ot_shard_stages(shard); stage++)
        any = any || shard->layers[stage] > 0;
    return any;
}

/* The number of layers of each stage. counts: [OT_MAX_RANKS]. */
static void count_layers(const struct ot_chain *chain, const struct ot_shard *shard, int *counts) {
    int n = chain->n_blocks - 2, stages = ot_shard_stages(shard);
    bool given = has_counts(shard);
    for (int stage = 0; stage < stages; stage++)
        counts[stage] = given ? shard->layers[stage] : layers_of(chain, shard, stage);
    if (!given && shard->late_layers > 0 && shard->turn_blocks == 0 && n >= stages)
        deal(&(struct deal){chain, shard, NULL, NULL}, counts);
}

bool ot_stages_deal(const struct ot_chain *chain, struct ot_shard *shard, const int *speeds,
                    const int *most) {
    int n = chain->n_blocks - 2, stages = ot_shard_stages(shard), counts[OT_MAX_RANKS], room = 0;
    bool all = n >= stages && n <= UINT8_MAX;
    for (int stage = 0; stage < stages; stage++) {
        room += ot_min(most[stage], n);
        all = all && speeds[stage] > 0 && most[stage] > 0;
    }
    if (!all || room < n)
        return false;
    deal(&(struct deal){chain, shard, speeds, most}, counts);
    for (int stage = 0; stage < stages; stage++)
        shard->layers[stage] = (uint8_t)counts[stage];
    return true;
}

/* The stage of layer number i. */
static int layer_stage(const struct ot_chain *chain, const struct ot_shard *shard, const int *counts, int i) {
    int most = shard->turn_blocks > 0 ? shard->turn_blocks : chain->n_blocks;
    for (int turn = 0;; turn++)
        for (int stage = 0; stage < ot_shard_stages(shard); stage++) {
            int left = counts[stage] - turn * most, taken = ot_min(left, most);
            if (taken > 0 && i < taken)
                return stage;
            i -= ot_max(taken, 0);
        }
}

int ot_shard_layers(const struct ot_chain *chain, const struct ot_shard *shard) {
    int counts[OT_MAX_RANKS];
    if (ot_shard_stages(shard) == 1)
        return ot_max(chain->n_blocks - 2, 0);
    count_layers(chain, shard, counts);
    return counts[ot_shard_stage(shard)];
}

/* Gives the block's slabs to a stage. */
static int give(const struct ot_chain *chain, struct ot_plan *plan, int block, int stage) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    for (int u = 0; u < spec->n_uses; u++) {
        const struct ot_slab_spec *used = &chain->slabs[spec->uses[u].slab];
        struct ot_slab_plan *slab = &plan->slabs[spec->uses[u].slab];
        bool shared = used->shared && used->encoded_bytes == 0;
        if (slab->owner >= 0 && shared)
            continue;
        if (slab->owner >= 0 && slab->owner != stage)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STAGES,
                                 "the blocks of several ranks use %s, so the model cannot be divided into "
                                 "stages",
                                 used->name);
        slab->owner = stage;
    }
    return 0;
}

static int check_counts(int n, int stages, const int *counts) {
    int all = 0;
    for (int stage = 0; stage < stages; stage++)
        all += counts[stage];
    return all == n ? 0 : ot_fail(OT_E_INTERNAL, "the stages have %d of the %d layers", all, n);
}

int ot_stages_divide(const struct ot_chain *chain, struct ot_plan *plan) {
    const struct ot_shard *shard = &plan->shard;
    int n = chain->n_blocks - 2, counts[OT_MAX_RANKS];
    if (!ot_plan_has_stages(plan))
        return 0;
    if (n < ot_shard_stages(shard))
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STAGES,
                             "the model has %d layers, too few for a stage on each of %d ranks", n,
                             ot_shard_stages(shard));
    for (int s = 0; s < chain->n_slabs; s++)
        plan->slabs[s].owner = -1;
    count_layers(chain, shard, counts);
    OT_TRY(check_counts(n, ot_shard_stages(shard), counts));
    OT_TRY(give(chain, plan, 0, 0));
    for (int i = 0; i < n; i++)
        OT_TRY(give(chain, plan, i + 1, layer_stage(chain, shard, counts, i)));
    return give(chain, plan, chain->n_blocks - 1, head_stage(chain, shard));
}

int ot_stages_check(const struct ot_chain *chain, const struct ot_shard *shard) {
    struct ot_plan plan = {.n_slabs = chain->n_slabs, .shard = *shard};
    plan.slabs = calloc((size_t)chain->n_slabs, sizeof *plan.slabs);
    int rc = plan.slabs ? ot_stages_divide(chain, &plan) : ot_fail(OT_E_BUDGET, "no memory for a division");
    free(plan.slabs);
    return rc;
}
