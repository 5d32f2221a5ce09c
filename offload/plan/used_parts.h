/* This header says which parts of slabs (block.h) cross the bus, and which parts are decoded.
 *
 * With plan.fetch_used the weights of a block that has parts come to the device in two fetches. The first
 * brings the dense rest, ahead of the block's forward as far as slots allow. Then the block chooses, for all
 * micro-batches of the round. The choice is copied to the host, and the second fetch brings the chosen parts
 * into the same slot. The other parts of the slot hold any bytes. In backward of the same round the choice is
 * known, so one fetch brings both, ahead of the block's backward. A plan without fetch_used fetches whole
 * slabs.
 *
 * An encoded slab is decoded as it is fetched: its dense rest before the choice, the chosen parts after it.
 * An encoded slab that lives on the device is not fetched, but each use decodes it in the same two steps.
 *
 * The second fetch waits for the choice, and its bytes for nothing else. So this pays where tokens choose few
 * parts: one token of generation needs 8 of 128 experts, so a sixteenth of their bytes crosses the bus. A
 * micro-batch of thousands of tokens chooses all parts, and only loses overlap.
 *
 * A slab is fetched (and decoded) whole in spite of fetch_used
 *   - if its weights live on the device and are not encoded (nothing is fetched);
 *   - if the stream engine updates tiles of it, in the slot of its weights;
 *   - in training, if activations that its block keeps leave the device through fewer slots than a round has
 *     micro-batches: all of them are half computed at the same time;
 *   - if several ranks gather it for each use (plan.h, full; not one copy): each rank has another choice,
 *     and all must gather the same parts.
 */
#ifndef OT_OFFLOAD_PLAN_USED_PARTS_H
#define OT_OFFLOAD_PLAN_USED_PARTS_H

#include "offload/plan/plan.h"

/* The content of a fetch of a slab. */
enum ot_fetched {
    OT_FETCH_ALL,            /* the whole span */
    OT_FETCH_DENSE,          /* all but the parts */
    OT_FETCH_USED,           /* the parts that the round has chosen */
    OT_FETCH_DENSE_AND_USED, /* both */
};
static inline bool ot_fetched_has_dense(enum ot_fetched fetched) {
    return fetched != OT_FETCH_USED;
}
static inline bool ot_fetched_has_used(enum ot_fetched fetched) {
    return fetched == OT_FETCH_USED || fetched == OT_FETCH_DENSE_AND_USED;
}

/* Checks that the parts of all slabs are as block.h says. Errors: OT_E_INTERNAL. */
int ot_chain_check_parts(const struct ot_chain *chain);
/* The number of parts of the slabs that a block uses. 0: none has parts. */
int ot_block_parts(const struct ot_chain *chain, int block);
/* The largest of these numbers. */
int ot_chain_most_parts(const struct ot_chain *chain);
/* The block that uses a slab with parts. */
int ot_slab_block(const struct ot_chain *chain, int slab);
/* The size of one part of a slab, over all pieces: in parameters, and in units of its homes (slabs.h, UNITS).
 */
int64_t ot_slab_part_params(const struct ot_slab_spec *slab);
int64_t ot_slab_part_units(const struct ot_slab_spec *slab);

/* The reason why a block gets all parts of a slab. */
enum ot_whole_cause {
    OT_WHOLE_NOT,      /* they come by use: fetched, decoded, or both */
    OT_WHOLE_NO_PARTS, /* the slab has none */
    OT_WHOLE_AT_HOME,  /* they are on the device and not encoded: nothing is fetched */
    OT_WHOLE_GATHERED, /* ranks gather the slab */
    OT_WHOLE_STREAMED, /* the stream engine updates tiles of it */
    OT_WHOLE_KEPT,     /* too few slots for the activations that its block keeps */
    OT_WHOLE_ASKED,    /* the plan has no fetch_used, and nothing else hinders */
    OT_WHOLE_CAUSES
};
enum ot_whole_cause ot_slab_whole_cause(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* GATHERED, STREAMED or KEPT, if this prevents fetches by use for every slab. OT_WHOLE_NOT: nothing does. */
enum ot_whole_cause ot_plan_whole_cause(const struct ot_chain *chain, const struct ot_plan *plan);
/* True if the slab's parts come by use. */
bool ot_slab_takes_used(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* True if the slab's parts are fetched by use. */
bool ot_slab_fetches_used(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* True if a slab of the block takes used parts: then its forward runs in halves. */
bool ot_block_chooses(const struct ot_chain *chain, const struct ot_plan *plan, int block);
/* The number of parts that the tokens are expected to choose in a block. */
double ot_block_used_parts(const struct ot_chain *chain, int block, int64_t n_tokens);

/* Walks over the units that a fetch of a slab copies, in runs that are as long as possible. */
struct ot_run_walk {
    const struct ot_slab_spec *slab;
    enum ot_fetched fetched;
    const int32_t *used; /* [n_parts]; read if `fetched` has used parts */
    /* the next place: before array `array`, or at part `part` of it (-1: before it) */
    int array, part;
    int64_t at; /* the end of the last array */
};
struct ot_run_walk ot_run_walk(const struct ot_slab_spec *slab, enum ot_fetched fetched, const int32_t *used);
/* Returns false at the end. */
bool ot_run_next(struct ot_run_walk *walk, int64_t *first, int64_t *n);

#endif
