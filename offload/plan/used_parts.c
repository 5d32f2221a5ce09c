#include "offload/plan/used_parts.h"

#include "offload/plan/slabs.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- parts of a chain ---- */

/* The pieces as the homes of the slab hold them: in encoded units, or in parameters. */
static const struct ot_piece_array *stored_pieces(const struct ot_slab_spec *slab) {
    return slab->encoded_bytes > 0 ? slab->encoded : slab->pieces;
}

static bool are_in_order(const struct ot_slab_spec *slab, const struct ot_piece_array *pieces, int64_t n) {
    int64_t end = 0;
    bool good = true;
    for (int a = 0; a < slab->n_pieces && good; a++) {
        good = pieces[a].each > 0 && pieces[a].first >= end;
        end = pieces[a].first + slab->n_parts * pieces[a].each;
    }
    return good && end <= n;
}

static int check_slab(const struct ot_chain *chain, int slab) {
    const struct ot_slab_spec *s = &chain->slabs[slab];
    int block = ot_slab_block(chain, slab);
    bool good = s->n_pieces >= 1 && s->n_pieces <= OT_MAX_PIECES && ot_slab_uses(chain, slab) == 1 &&
                block > 0 && block < chain->n_blocks - 1 && s->n_parts == ot_block_parts(chain, block) &&
                are_in_order(s, s->pieces, s->n_params) &&
                are_in_order(s, stored_pieces(s), ot_spec_units(s));
    return good ? 0 : ot_fail(OT_E_INTERNAL, "the model describes the parts of '%s' wrongly", s->name);
}

int ot_chain_check_parts(const struct ot_chain *chain) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (chain->slabs[s].n_parts > 0)
            OT_TRY(check_slab(chain, s));
    return 0;
}

int ot_block_parts(const struct ot_chain *chain, int block) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    for (int u = 0; u < spec->n_uses; u++)
        if (chain->slabs[spec->uses[u].slab].n_parts > 0)
            return chain->slabs[spec->uses[u].slab].n_parts;
    return 0;
}

int ot_chain_most_parts(const struct ot_chain *chain) {
    int most = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        most = ot_max(chain->slabs[s].n_parts, most);
    return most;
}

int ot_slab_block(const struct ot_chain *chain, int slab) {
    for (int b = 0; b < chain->n_blocks; b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            if (chain->blocks[b].uses[u].slab == slab)
                return b;
    return -1;
}

static int64_t size_of_part(const struct ot_slab_spec *slab, const struct ot_piece_array *pieces) {
    int64_t size = 0;
    for (int a = 0; a < slab->n_pieces; a++)
        size += pieces[a].each;
    return size;
}

int64_t ot_slab_part_params(const struct ot_slab_spec *slab) {
    return size_of_part(slab, slab->pieces);
}

int64_t ot_slab_part_units(const struct ot_slab_spec *slab) {
    return size_of_part(slab, stored_pieces(slab));
}

double ot_block_used_parts(const struct ot_chain *chain, int block, int64_t n_tokens) {
    return chain->used_parts ? chain->used_parts(chain->context, block, n_tokens)
                             : (double)ot_block_parts(chain, block);
}

/* ---- the rule ---- */

/* True if the block's kept activations of all micro-batches of a round have places at the same time. */
static bool keeps_places(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    struct ot_kept kept = ot_plan_kept(chain, plan, block);
    return !plan->train || kept.level == OT_KEEP_NONE || kept.tier == OT_TIER_GPU ||
           plan->kept_slots >= ot_plan_round_places(plan);
}

/* True if ranks gather the slab for each use. */
static bool is_gathered(const struct ot_plan *plan, int slab) {
    return ot_plan_is_sharded(plan) && plan->shard.mode == OT_SHARD_FULL && !ot_slab_has_one_copy(plan, slab);
}

enum ot_whole_cause ot_slab_whole_cause(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    if (chain->slabs[slab].n_parts == 0)
        return OT_WHOLE_NO_PARTS;
    if (is_gathered(plan, slab))
        return OT_WHOLE_GATHERED;
    if (!ot_slab_is_streamed(plan, slab) && !ot_slab_is_encoded(chain, slab))
        return OT_WHOLE_AT_HOME;
    if (plan->slabs[slab].tiles[OT_TILE_STREAM] > 0)
        return OT_WHOLE_STREAMED;
    if (!keeps_places(chain, plan, ot_slab_block(chain, slab)))
        return OT_WHOLE_KEPT;
    return plan->fetch_used ? OT_WHOLE_NOT : OT_WHOLE_ASKED;
}

enum ot_whole_cause ot_plan_whole_cause(const struct ot_chain *chain, const struct ot_plan *plan) {
    enum ot_whole_cause found = OT_WHOLE_NOT;
    for (int s = 0; s < chain->n_slabs; s++) {
        enum ot_whole_cause cause = ot_slab_whole_cause(chain, plan, s);
        if (cause == OT_WHOLE_NOT)
            return cause;
        if (cause == OT_WHOLE_GATHERED || cause == OT_WHOLE_STREAMED || cause == OT_WHOLE_KEPT)
            found = cause;
    }
    return found;
}

bool ot_slab_takes_used(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return ot_slab_whole_cause(chain, plan, slab) == OT_WHOLE_NOT;
}

bool ot_slab_fetches_used(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return ot_slab_takes_used(chain, plan, slab) && ot_slab_is_streamed(plan, slab);
}

bool ot_block_chooses(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    for (int u = 0; u < spec->n_uses; u++)
        if (ot_slab_takes_used(chain, plan, spec->uses[u].slab))
            return true;
    return false;
}

/* ---- runs ---- */

struct ot_run_walk ot_run_walk(const struct ot_slab_spec *slab, enum ot_fetched fetched,
                               const int32_t *used) {
    return (struct ot_run_walk){.slab = slab, .fetched = fetched, .used = used, .part = -1};
}

static bool is_fetched(const struct ot_run_walk *walk, int part) {
    return ot_fetched_has_used(walk->fetched) && part < walk->slab->n_parts && walk->used[part] != 0;
}

/* The next run of used parts in the present array. */
static bool next_parts(struct ot_run_walk *walk, int64_t *first, int64_t *n) {
    const struct ot_piece_array *array = &stored_pieces(walk->slab)[walk->array];
    int part = walk->part;
    while (part < walk->slab->n_parts && !is_fetched(walk, part))
        part++;
    int end = part;
    while (is_fetched(walk, end))
        end++;
    *first = array->first + part * array->each;
    *n = (end - part) * array->each;
    walk->part = end;
    return end > part;
}

bool ot_run_next(struct ot_run_walk *walk, int64_t *first, int64_t *n) {
    const struct ot_slab_spec *slab = walk->slab;
    int arrays = walk->fetched == OT_FETCH_ALL ? 0 : slab->n_pieces;
    while (walk->array < arrays) {
        const struct ot_piece_array *array = &stored_pieces(slab)[walk->array];
        if (walk->part < 0) {
            walk->part = 0;
            *first = walk->at;
            *n = array->first - walk->at;
            if (*n > 0 && ot_fetched_has_dense(walk->fetched))
                return true;
        }
        if (next_parts(walk, first, n))
            return true;
        walk->at = array->first + slab->n_parts * array->each;
        walk->part = -1;
        walk->array++;
    }
    *first = walk->at;
    *n = ot_spec_units(slab) - walk->at;
    walk->at += *n;
    return *n > 0 && ot_fetched_has_dense(walk->fetched);
}
