/* Makes a plan (plan.h) from a model and the budgets of a machine (search.c), or checks fields that a caller
 * has set (check.c). Any thread.
 */
#ifndef OT_OFFLOAD_PLAN_PLAN_SEARCH_H
#define OT_OFFLOAD_PLAN_PLAN_SEARCH_H

#include "offload/plan/plan.h"

enum { OT_KEEP_CHOSEN = -1, OT_SHADOWS_CHOSEN = -1 };

/* The parts of slabs that are fetched (used_parts.h). CHOSEN: in training all parts, unless the planner finds
 * that fetching used parts is faster; in forward-only plans the used parts, if a pass is expected to use at
 * most half of them. */
enum ot_fetch_choice { OT_FETCH_CHOSEN, OT_FETCH_USED_PARTS, OT_FETCH_ALL_PARTS };

/* The machine of a rank. */
struct ot_rank_machine {
    size_t budget_bytes[OT_TIER_COUNT];
    double slowness; /* the time of its compute lane for some work; only ratios between ranks count */
};

struct ot_plan_request {
    const struct ot_chain *chain;
    size_t budget_bytes[OT_TIER_COUNT];
    /* [ranks]: the machines of ranks that are unlike, for plans with stages; not owned. NULL: all ranks have
     * the budgets of the request. The planner reads it; ot_plan_make does not. */
    const struct ot_rank_machine *machines;
    int64_t sequence_tokens; /* tokens of one packed sequence */
    int64_t step_sequences;  /* sum over all ranks */
    int64_t micro_sequences; /* sequences of a micro-batch; 0: chosen to fit the budgets */
    /* Sections of a sequence (slabs.h): 1: sequences are whole; 2 or more: a micro-batch is a section, and
     * micro_sequences is 0 or 1; 0: the fewest that fit. */
    int sections;
    int key_groups;       /* same as in struct ot_plan; 0: 1, or more if a row in sections fits only so */
    bool boundaries_pass; /* same as in struct ot_plan, where they leave the device */
    bool train, clip;
    /* AUTO, or forced for all slabs. sums: gradient sums between rounds. */
    enum ot_home weights, state, grads, sums, activations;
    double fractions[OT_TILE_ENGINES]; /* fractions of the tiles, by engine; all 0: chosen */
    int64_t tile_params;               /* parameters of a tile; 0: chosen */
    int slots;                         /* weight slots of each kind, 1..OT_PLAN_MAX_SLOTS; 0: chosen */
    /* Activations that middle blocks keep for backward. keep: OT_KEEP_CHOSEN, or the level of every block.
     * kept: their home; AUTO: the device if there is room. If the level is chosen: as many blocks as fit keep
     * kept_level on the device (OT_KEEP_NONE: as products), and kept_off is the share of the others that keep
     * it on the host, or on nvme if `kept` says so. */
    int keep;
    enum ot_home kept;
    enum ot_keep_level kept_level;
    double kept_off;
    double kept_on; /* share of the middle blocks that keep on the device before slabs become resident */
    double
        streamed; /* share of the slabs that do not become resident, even if there is room; the last ones */
    /* Share of the tiles that may have a shadow (shadow_updates.h) which get a frame, as far as the host has
     * room and shadow_bytes (0: any number) allows. OT_SHADOWS_CHOSEN: none, unless the planner finds that
     * they help. */
    double shadows;
    size_t shadow_bytes;
    enum ot_fetch_choice fetch;
    int64_t pass_tokens;       /* not for training: tokens of a usual pass; 0: as many as in a micro-batch */
    int texts;                 /* same as in struct ot_plan */
    int64_t cache_rows;        /* same as in struct ot_plan */
    enum ot_home cache;        /* AUTO: the device if there is room, else the host, else nvme */
    int snapshot_slots;        /* same as in struct ot_plan */
    int pinned_contents;       /* same as in struct ot_plan */
    bool is_trial;             /* the caller only wants a plan that fits: out->shortage is not filled in */
    struct ot_plan_memo *memo; /* NULL, or it remembers what plans need; not owned */
    int rounds;                /* rounds of a step (slabs.h); 0: one, or as few as fit */
    struct ot_shard shard;     /* this rank's, like the budgets */
    size_t staging_bytes;      /* same as in struct ot_plan */
    bool crosses;              /* the same, for plans with stages */
    /* Bytes of the budgets that the caller uses itself: scratch of the device's ops; rows in memory. */
    int64_t extra_device_bytes, extra_host_bytes;
};

/* Sections of fewer tokens are not chosen: products of fewer rows are slow. */
enum { OT_SECTION_LEAST_TOKENS = 4096 };
/* The tokens of a section: the same for all, but for the last, which may be shorter. */
int64_t ot_plan_section_tokens(const struct ot_plan_request *request, int64_t sections);
/* True if the request's sequences can be cut into so many sections; and if a plan may choose so many. */
bool ot_plan_may_cut(const struct ot_plan_request *request, int sections);
bool ot_plan_may_choose_sections(const struct ot_plan_request *request, int64_t sections);
/* Forces micro-batches of so many tokens in a request: of sequences, or of sections of one. */
void ot_plan_force_micro(struct ot_plan_request *request, int64_t micro_tokens);

/* Chooses a plan within the budgets. It takes the first that fits, in this order:
 *
 *   1. Everything lives on the device, with a micro-batch of sound size.
 *   2. Large micro-batches before small ones. For each size, boundary activations on the device before the
 *      host. For each home, enough slots to overlap copies and compute before fewer slots.
 *   3. The same in more than one round: as few rounds as fit.
 *   4. The same with smaller tiles, which need smaller slots.
 *
 * If none fits with whole sequences, sequences are cut into 2, 4, 8 .. sections. If none fits with the cache
 * of generation on the device, its home is the host, or else nvme.
 *
 * Then it uses the room that is left: for resident slabs (slab 0 first, because the next forward waits for
 * its update first), for waiting gradients of streamed tiles, for slots of tiles on nvme, for kept
 * activations, for gradient sums between rounds, for shadows. Weights that do not fit are copied for each
 * use. The CPU pool updates state that does not fit. If the host is full and nvme has a budget, nvme takes
 * the state, then boundary activations, then gradients, then weights, of the last slabs first.
 *
 * Shares count the tiles of the whole chain. gpu gets the first tiles, because the next forward waits for
 * them first. stream and cpu alternate on the others, so that both work on the slabs that are needed next.
 *
 * Deterministic. The caller frees the plan with ot_plan_free. Errors: OT_E_BUDGET: the sentence names the
 * tiers that are short, and out->shortage says how much would be enough; the caller words the cure.
 * OT_E_USAGE: a contradiction in the request. */
int ot_plan_make(const struct ot_plan_request *request, struct ot_plan *out);
/* A memo of what plans need of each tier. It serves requests of one chain and one number of ranks that differ
 * in budgets, tokens a step, shards and choices. It changes no plan. NULL: no memory. One thread at
 * a time. */
struct ot_plan_memo *ot_plan_memo_open(void);
void ot_plan_memo_close(struct ot_plan_memo *memo);
/* A hash of the fields in which the plans for such requests differ. */
uint64_t ot_plan_print(const struct ot_plan *plan);
/* Adds a value to a hash: FNV-1a, a word at a time. */
static inline uint64_t ot_mix(uint64_t hash, int64_t value) {
    return (hash ^ (uint64_t)value) * 0x100000001b3;
}
/* Checks that the fractions add up to 1 and agree with the home of the state. Errors: OT_E_USAGE. */
int ot_plan_check_fractions(const double fractions[OT_TILE_ENGINES], enum ot_home state);
/* Checks the other fields and recomputes the ledger, after a caller has set fields by hand. Errors:
 * OT_E_USAGE when fields contradict each other (a slab lives on the host but there is no slot for it,
 * ...). */
int ot_plan_finish(const struct ot_chain *chain, struct ot_plan *plan);

#endif
