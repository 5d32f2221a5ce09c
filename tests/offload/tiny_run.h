/* Trains a small decoder for some steps under a given plan. The engine's tests compare the results bit by
 * bit.
 *
 * The tests of the engine run on the cpu device. Linked with an emulated or a real cuda device, they run on
 * the device that the environment variable OT_TEST_DEVICE names. */
#ifndef OT_TESTS_TINY_RUN_H
#define OT_TESTS_TINY_RUN_H

#include "models/model.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine.h"
#include "offload/plan/plan_search.h"

enum { TINY_SEQUENCE = 24, TINY_STEP_SEQUENCES = 6, TINY_STEPS = 4 };

struct tiny_run {
    struct ot_model_config config;
    enum ot_dtype dtype;
    enum ot_state_format state;
    enum ot_masters masters;
    struct ot_regular regular;
    struct ot_objective objective; /* other than SFT: the rows of each step are compared */
    /* As in struct ot_model_setup. */
    bool (*trains)(const void *context, const struct ot_tensor *tensor);
    const void *trains_context;
    const struct ot_lora *lora;
    enum ot_base_type base;
    /* The frozen weights begin as the values that this base type decodes to. AUTO: as all weights. */
    enum ot_base_type decoded;
    /* All frozen slabs are encoded in a way that the engine does not know (tiny_encode.h). */
    bool encodes;
    bool parts; /* its layers are those of tiny_parts.h. In all plans, parts are fetched by use */
    int device_threads, optimizer_threads;
    uint64_t delay_seed; /* random delays in every lane of the device and the executor */
    int64_t micro_sequences;
    int sections;   /* of a sequence, if micro_sequences is 1; 0: whole */
    int key_groups; /* of the sections; 0: one */
    float clip;
    bool tune; /* tunes the device after the second step */
    /* Shares of the optimizer's engines, for tiny_plan; all 0: tiny_plan chooses. */
    double fractions[OT_TILE_ENGINES];
    /* If the plan has something on nvme: the number of directories (0: one), the I/O engine, and other
     * settings of the store. */
    int stripes;
    enum ot_io_choice io;
    size_t chunk_bytes;
    int io_depth;
    const struct ot_io_calls *io_calls;
    double stall_seconds, stall_limit_seconds;
    double skip_spikes;
    /* The share of the squared norm that each slab is taken to have: 1e30 makes a shadow of every tile that
     * has a frame (engine/shadow.c), in all steps. 0: the engine's own fractions. */
    double shadow_belief;
    struct ot_shard shard; /* tiny_plan takes it over */
    /* Several ranks: opens the communicator of this rank. NULL: one rank. */
    int (*join)(void *context, int rank, struct ot_device *device, struct ot_comm **out);
    void *join_context;
    void *shared_memory; /* see ot_engine_config */
    int64_t cache_rows;  /* generation: tiny_plan takes it over; the cache is on the device */
    bool evals;          /* evaluates a micro-batch after half of the steps */
    /* Replaces functions of the engine's chain. NULL: the model's functions. */
    void (*change_chain)(struct ot_chain *chain);
    struct ot_plan plan; /* made by tiny_plan; the test may change it and then calls ot_plan_finish */
};

struct tiny_result {
    double loss[TINY_STEPS], norm[TINY_STEPS];
    bool skipped[TINY_STEPS];
    float token_loss[TINY_SEQUENCE]; /* of the evaluation; 0 without it */
    struct ot_device_tuning tuning;
    int64_t n_values;
    float *values;    /* master, m and v of every slab, one after the other; 0: it has none */
    float *collected; /* the same, as rank 0 of several ranks collected it; NULL: one rank */
};

bool tiny_is_on_cpu(void);
/* Skips the test on other devices, because it reaches into the cpu device. */
void tiny_needs_cpu(void);
/* For main(): if the device to be tested does not exist, prints the reason and exits with 77 (skipped). */
void tiny_skip_without_device(void);
/* plan_bytes: the device memory of the plan. The device's own memory comes on top. */
void tiny_open_device(size_t plan_bytes, int threads, uint64_t delay_seed, struct ot_device **out);

/* layers must be at least 1. */
struct ot_model_config tiny_config(int layers, bool tied);
/* A T5: two layers of an encoder, three of a decoder. All layers share one slab. Heads x head_dim is not the
 * width. */
struct ot_model_config tiny_pair_config(bool gated);
/* Reads the arrays "config" and "config_real" that scripts/golden/train.py and curve.py write. */
struct ot_model_config tiny_golden_config(const int64_t *counts, const double *reals);
/* Defaults: fp32, clip 1.0, two sequences per micro-batch, everything on the device. Opens nothing. */
void tiny_defaults(struct tiny_run *run, int layers, bool tied, enum ot_dtype dtype);
/* The run's model, with the run's format of the moments. Close it with ot_model_close. */
void tiny_open_model(const struct tiny_run *run, struct ot_model **out);
/* Makes a plan for the run with the given homes. Free it with ot_plan_free. Fails the test if there is no
 * plan. */
void tiny_plan(struct tiny_run *run, enum ot_home weights, enum ot_home state, enum ot_home activations,
               int slots);
/* Cuts the slabs into tiles of tile_params, and divides each slab's tiles among all engines of the set (bits
 * 1 << enum ot_tile_engine): in equal parts, or with a seed in parts of random size, which may be empty.
 * Gradients of streamed tiles wait on the device and on the host in turns. Finishes the plan again. */
void tiny_deal(struct tiny_run *run, int64_t tile_params, unsigned engines, uint64_t seed);
/* Finishes the plan after the test changed it. */
void tiny_finish(struct tiny_run *run);

struct tiny_engine {
    struct ot_model *model;
    struct ot_chain chain; /* the chain that the engine uses */
    struct ot_device *device;
    struct ot_comm *comm; /* NULL: one rank */
    struct ot_engine *engine;
    char *folder; /* holds the store's directories; NULL without nvme */
};
/* Opens an engine with the run's plan and the weights with which every run begins. */
void tiny_open(const struct tiny_run *run, struct tiny_engine *out);
/* The same, but returns the error of ot_engine_open. Then out->engine is NULL, and tiny_close frees the rest.
 */
int tiny_try_open(const struct tiny_run *run, struct tiny_engine *out);
/* Fails the test if the store has left a file behind. */
void tiny_close(struct tiny_engine *tiny);
/* Reads all parameters and state that the rank holds into result->values. The others are 0. */
void tiny_read(const struct tiny_engine *tiny, struct tiny_result *result);
/* The number of steps that the optimizer has made. */
int64_t tiny_adam_step(const struct ot_engine *engine);
/* Copies the progress that decisions need from one drained engine to another. */
void tiny_hand_over(const struct ot_engine *from, struct ot_engine *to);
/* Makes steps [first, end) on an engine that has made the steps before. Collects all results. */
void tiny_steps(const struct tiny_run *run, struct ot_engine *engine, int first, int end,
                struct tiny_result *result);
/* Cuts the step into rounds at random, and gives each gradient sum a home at random. */
void tiny_random_rounds(struct tiny_run *run, uint64_t seed);
/* Gives waiting gradients and gradient sums of some slabs, at random, a home on nvme. The caller finishes the
 * plan. */
void tiny_random_grads(struct tiny_run *run, uint64_t seed);
/* Stages: gives each block to a rank, at random. Each rank gets at least one. */
void tiny_random_owners(struct tiny_run *run, uint64_t seed);
/* Lets blocks keep activations at random, on the tiers up to `last`. */
void tiny_random_kept(struct tiny_run *run, uint64_t seed, enum ot_tier last);
/* Gives frames for shadows to some of the tiles that may have one, if the run clips. Finishes the plan. */
void tiny_random_shadows(struct tiny_run *run, uint64_t seed);
/* Generation: gives the cache a home, in turn by the seed, and random numbers of slots. Finishes the plan. */
void tiny_random_cache(struct tiny_run *run, uint64_t seed);
/* Chooses by the seed, for each slab, everything that a plan with everything on nvme may choose. */
void tiny_randomise(struct tiny_run *run, uint64_t seed);
/* Stages: chooses everything by the seed (context: a uint64_t), and for each rank in another way, but for
 * what the transfers follow from: owners and rounds. */
void tiny_random_stage(struct tiny_run *run, int rank, void *context);
/* Trains TINY_STEPS steps. The third is short (fewer micro-batches, and a last micro-batch of one
 * sequence). */
void tiny_train(const struct tiny_run *run, struct tiny_result *result);
/* If the device has something to tune, it must have tuned. The cpu device has nothing to tune. */
void tiny_check_tuning(const struct ot_device_tuning *tuning);
void tiny_result_free(struct tiny_result *result);
/* Fails the test if the two differ in any bit. */
void tiny_same(const struct tiny_result *a, const struct tiny_result *b, const char *what);

/* The input of one step, which depends on `step` alone. The fields lie in memory of the caller. */
struct tiny_batch {
    int32_t tokens[TINY_STEP_SEQUENCES * TINY_SEQUENCE], targets[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    int32_t position[TINY_STEP_SEQUENCES * TINY_SEQUENCE], row_start[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    int32_t input_first[TINY_STEP_SEQUENCES * TINY_SEQUENCE], input_end[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    struct ot_comparison comparisons[TINY_STEP_SEQUENCES * TINY_SEQUENCE / OT_COMPARISON_TOKENS];
    struct ot_micro_batch micro[TINY_STEP_SEQUENCES];
    struct ot_step_input input;
};
void tiny_fill_batch(struct tiny_batch *batch, int64_t vocab, int step, int sequences,
                     int64_t micro_sequences);
/* A micro-batch whose rows are no pairs. */
static inline struct ot_micro_batch tiny_micro(int64_t n, const int32_t *tokens, const int32_t *targets,
                                               const int32_t *position, const int32_t *row_start) {
    return (struct ot_micro_batch){
        .n_tokens = n, .tokens = tokens, .targets = targets, .position = position, .row_start = row_start};
}
/* Makes rows of pairs of the tokens of each micro-batch: three, of other lengths. tiny_steps does it for
 * models with pairs. */
void tiny_pair_batch(struct tiny_batch *batch);
/* Compares the rows of each micro-batch, two and two. tiny_steps does it for a run with an objective. */
void tiny_compare_batch(struct tiny_batch *batch);
/* An objective of this kind with some numbers. */
struct ot_objective tiny_objective(enum ot_objective_kind kind);

#endif
