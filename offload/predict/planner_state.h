/* Private declarations of the planner. planner_starts.c finds plans to begin with; it makes, simulates and
 * compares one plan. planner_moves.c changes one choice of a plan at a time, or several at once. planner.c
 * puts them together. */
#ifndef OT_OFFLOAD_PREDICT_PLANNER_STATE_H
#define OT_OFFLOAD_PREDICT_PLANNER_STATE_H

#include "offload/predict/planner.h"

/* ---- the constants of the search, each with its reason (planner.h has those that its callers see) ---- */

/* planner.c. The effort of a search, in tasks of simulated plans: about 2 us each, so that planning a 7B
 * model takes one to two seconds. A plan of many tasks still gets FEWEST_TRIES in each phase. */
static const double CLIMB_EFFORT = 600e3, SHAKE_EFFORT = 250e3, LATE_EFFORT = 150e3, MICRO_EFFORT = 100e3,
                    VARIANT_EFFORT = 200e3;
enum { FEWEST_TRIES = 8 };
/* planner_stages.c. The effort for each other shape of a rank. A step of fewer micro-batches for each rank
 * does not fill a pipeline: then half the micro-batch has a search of its own. */
static const double REFINE_EFFORT = 100e3;
enum { FEW_MICRO = 4 };
/* If stages do not fit, so many rounds are the most that are tried. */
enum { MOST_TRIED_ROUNDS = 64 };
/* The most plans from which the search climbs. The first one has the most effort. Plans of all stages take
 * longer, and climbs from further ones gained nothing there. */
enum { SEEDS = 3, STAGE_SEEDS = 2 };
/* The fastest starts on which homes are forced. Such a start may be slower by VARIANT_NEAR than the fastest
 * start: a climb may gain more. */
enum { VARIED_STARTS = 24 };
static const double VARIANT_NEAR = 1.5;
/* The tiles of a plan that is simulated often, and the share of the host that one tile's state may take. */
enum { MOST_SEARCH_TILES = 1024, SLOTS_SHARE = 512 };
/* The most plans, and requests, that are remembered. Later ones may be tried again. */
enum { OT_PLANNER_MOST_SEEN = 1024 };

/* A search with a limit ends early if its best plan would have to gain more than such a share of its step:
 * after the first plan, after the starts, after the climbs, after the forced homes. Later phases gained
 * less in 78 of 80 searches for real machines; a disk is the exception. */
static const double HOPE_FIRST = 0.4, HOPE_STARTS = 0.15, HOPE_CLIMBED = 0.06, HOPE_VARIED = 0.03;

/* planner_starts.c. Up to this many tiles are updated in almost no time, by any engine. */
enum { FEW_TILES = 64 };
/* Each number of rounds is at least a third larger than the last, so 32 reach any step. The starts with the
 * least lower bounds are simulated. */
enum { MOST_ROUNDS = 32, MOST_SIMULATED = 24 };
/* Fewer blocks than 0.75^8, a tenth of them, are not worth slots of their own. */
enum { MOST_QUARTERS = 8 };
/* If the host is too small for all state, so much more of it goes to the device until the rest fits. */
static const double GPU_SHARE_STEP = 0.25;
/* A start that is slower than the best by no more than this share may still lead to the best plan. */
#define OT_PLANNER_NEAR 0.15

/* planner_moves.c. A smaller share of the tiles is no step of the search. */
static const double FINEST_SHARE = 1.0 / 256;
/* A smaller share of the step's time is not worth a try: predictions are not more exact. */
static const double NEGLIGIBLE = 0.001;
/* The smallest tile that is still worth a task. More tiles than ot_plan_make would make take too long to
 * order. */
enum { LEAST_TILE_PARAMS = 1 << 16 };

/* planner_moves.c. The most draws of a search, and the draws without a gain after which it ends. Most draws
 * make no new plan, so the first limit ends the search of a tiny model. */
enum { MOST_DRAWS = 120, IDLE_DRAWS = 60 };

/* planner_starts.c. The cost of making a plan, for each of its slabs, as a number of simulated tasks. */
static const double MAKING_TASKS = 8;

/* ---- the ranks of a pipeline ---- */

/* Stages work and wait together, so a search tries the plans of all ranks at once: those of one request,
 * which differ in the rank alone. `like` has the first rank of the same shape: such ranks have the same
 * choices. */
struct ot_stages {
    int ranks, leader; /* leader: the rank that works most */
    int *like;         /* [ranks] */
    /* [ranks], by the first rank of a shape: the request of a shape that the search leaves as it is; without
     * a chain: none */
    struct ot_plan_request *settled;
    int searched;          /* the rank whose plan the search makes */
    struct ot_plan *plans; /* [ranks]: of the last try */
    struct ot_prediction *predictions;
    const struct ot_costs *costs; /* of the rank of the user's request */
    double *slowness;             /* [ranks]: relative to that rank; NULL: all are alike */
};

/* ---- a search from one plan ---- */

/* out holds the best plan so far and the request that makes it. */
struct ot_search {
    const struct ot_plan_request *given; /* the user's request */
    const struct ot_costs *costs;
    struct ot_planner_result *out;
    struct ot_stages *stages; /* NULL: one rank stands for all */
    int64_t tile_params;      /* tile size of the plans to begin with */
    double effort;            /* remaining effort: tasks of plans that may still be simulated */
    double limit;             /* a plan that is not faster is of no use */
    /* Fingerprints of the plans and of the requests that were tried. Searches from several plans may share
     * them. */
    struct ot_planner_seen {
        int n, n_requests;
        uint64_t plans[OT_PLANNER_MOST_SEEN], requests[OT_PLANNER_MOST_SEEN];
    } * seen;
};

/* An estimate of the tasks of a step. */
double ot_planner_tasks(const struct ot_plan *plan, int n_blocks);
/* Notes the plan. Returns true if it was noted before. */
bool ot_planner_was_seen(struct ot_planner_seen *seen, const struct ot_plan *plan);
/* Makes the plan of the request, and simulates it if it may take less than `limit` seconds a step. Returns 1
 * with the plan and its prediction in *out if it does; free the plan with ot_plan_free. Returns 0 if it does
 * not, if no such plan exists, or if it was tried before; < 0 on errors. Subtracts the cost from s->effort.
 */
int ot_planner_make(struct ot_search *s, const struct ot_plan_request *request, double limit,
                    struct ot_planner_result *out);
/* Simulates a plan of the request, with the plans of all stages. Returns 1 with the prediction if a step
 * takes less than `limit`, 0 if it does not, or if another stage has no plan; < 0 on errors. */
int ot_planner_simulate(struct ot_search *s, const struct ot_plan_request *request,
                        const struct ot_plan *plan, double limit, struct ot_prediction *out);
/* Makes and simulates the plan of a request. The plan becomes the best if it saves more than the share `gain`
 * of the best plan's time. Returns 1 if it does, 0 if it does not or if no such plan exists, < 0 on
 * errors. */
int ot_planner_try(struct ot_search *s, const struct ot_plan_request *request, double gain);

/* Changes one choice at a time until no change gains anything, or until the effort is used up. */
int ot_planner_climb(struct ot_search *s);
/* Changes two or three choices at a time, drawn at random, until the effort is used up. The same request and
 * costs draw the same choices. */
int ot_planner_shake(struct ot_search *s);
/* For a plan that computes no product again: tries to keep all else too, if that takes time. Then weights may
 * leave the device, so it climbs from there. */
int ot_planner_keep_all(struct ot_search *s);
/* Beside a disk, where the weights have one home: the most state that the device has room for leaves the
 * least to the host, and so to nvme. Climbs from there. */
int ot_planner_fill(struct ot_search *s);
/* Like ot_planner_climb, for tiles and shadows, which are worth trying only when the rest is settled. */
int ot_planner_climb_late(struct ot_search *s);
/* The share of tiles to stream, among the tiles whose state is not on the device, so that the device and the
 * CPU pool finish at the same time. */
double ot_planner_balance(const struct ot_search *s);
/* Two numbers describe the engines of the tiles: the device's share of all tiles, and the stream's share of
 * the rest. */
void ot_planner_get_fractions(const struct ot_search *s, double *gpu, double *stream_of_rest);
void ot_planner_set_fractions(const struct ot_search *s, double gpu, double stream_of_rest,
                              struct ot_plan_request *request);
/* True if the user has left the engines of the tiles to the planner. */
bool ot_planner_may_split(const struct ot_search *s);
/* True if compute waits for other lanes, or computes activations again. */
bool ot_planner_may_gain(const struct ot_search *s);

/* Plans to begin with: the same micro-batch, with the numbers of rounds and the ways to keep activations that
 * lie far apart. The fastest come first. */
struct ot_planner_starts {
    int n, all; /* those near the best; with the others behind them, which are slower or were not simulated */
    struct ot_planner_start {
        struct ot_plan_request request;
        int number, turn; /* number: order of discovery; turn: order within its way */
        int way;          /* the way to keep activations */
        double least;     /* the lower bound of its step (costs.h) */
        double seconds;
    } * list; /* owned; free with free */
};
/* micro: sequences of a micro-batch; 0: as ot_plan_make chooses. Lists the starts that take less than `limit`
 * seconds a step, or that are within OT_PLANNER_NEAR of the best of them. */
int ot_planner_find_starts(struct ot_search *s, int64_t micro, double limit, struct ot_planner_starts *out);
/* Same as ot_planner_choose. start: NULL, or a request that was good on another machine; its choices are
 * tried first. limit: a plan that is not faster is of no use, so the search may end early with any plan. */
int ot_planner_choose_from(const struct ot_plan_request *request, const struct ot_costs *costs,
                           const struct ot_plan_request *start, double limit, struct ot_planner_result *out);
/* The same for the ranks of a pipeline, or for one rank (stages NULL). */
int ot_planner_search(const struct ot_plan_request *request, const struct ot_costs *costs,
                      const struct ot_plan_request *start, struct ot_stages *stages, double limit,
                      struct ot_planner_result *out);

/* ---- planner_machines.c ---- */

/* The machine of a stage: the least of its holders. Without request->machines: the request's budgets. */
struct ot_rank_machine ot_stages_machine(const struct ot_plan_request *request, int stage);
/* Makes the request one of another stage: the rank that has it in the first replica, and its budgets. */
void ot_stages_move(struct ot_plan_request *request, int stage);
/* Divide the layers among ranks that are unlike: by their speeds alone; or also by the layers for which they
 * have room. The second returns false if that divides them as before, or if they have no room for all. Do
 * nothing without request->machines. */
void ot_stages_deal_by_speed(struct ot_plan_request *request);
bool ot_stages_deal_by_room(struct ot_plan_request *request);

/* ---- planner_stages.c ---- */

/* Same as ot_planner_choose_from, for the rank of request->shard, with the division of request->shard. */
int ot_stages_choose(const struct ot_plan_request *request, const struct ot_costs *costs, double limit,
                     struct ot_planner_result *out);
/* Sets the largest micro-batch, and the fewest rounds, that all ranks have room for. short_of: of a rank that
 * has no plan. */
int ot_stages_settle(const struct ot_stages *stages, struct ot_plan_request *request,
                     struct ot_plan *short_of);
/* Makes the plans of all ranks beside the plan of the request. False: a rank has none, or needs `limit`
 * seconds a step. */
bool ot_stages_make(struct ot_stages *stages, const struct ot_plan_request *request,
                    const struct ot_plan *plan, double limit);
/* A hash of these plans; their tasks, estimated. */
uint64_t ot_stages_print(const struct ot_stages *stages);
double ot_stages_tasks(const struct ot_stages *stages, const struct ot_chain *chain);
/* Simulates these plans. As ot_simulate_ranks; *out is of the searched rank, but a lane is exposed as long
 * as on the rank that waits most for it. */
int ot_stages_simulate(struct ot_stages *stages, const struct ot_chain *chain, double limit,
                       struct ot_prediction *out);
/* Changes the plans of the other shapes, one shape at a time. */
int ot_stages_refine(struct ot_search *s);

#endif
