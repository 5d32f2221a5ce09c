/* A small decoder trained for some steps under a given plan: what the engine's tests compare bit by bit.
 *
 * The tests of the engine run on the cpu device, and, linked with an emulated or a real cuda device, on the
 * one that OT_TEST_DEVICE in the environment names.
 */
#ifndef OT_TESTS_TINY_RUN_H
#define OT_TESTS_TINY_RUN_H

#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/plan/make.h"

enum { TINY_SEQUENCE = 24, TINY_STEP_SEQUENCES = 6, TINY_STEPS = 4 };

struct tiny_run {
    struct ot_model_config config;
    enum ot_dtype dtype;
    int device_threads, optimizer_threads;
    uint64_t delay_seed; /* random delays in every lane of the device and of the executor */
    int64_t micro_sequences;
    float clip;
    bool tune;                      /* after the second step */
    double shares[OT_TILE_ENGINES]; /* of the optimizer's engines, for tiny_plan; all 0: its choice */
    /* Where the plan has something on nvme: directories (0: one), engine, and the store's other numbers. */
    int stripes;
    enum ot_io_choice io;
    size_t chunk_bytes;
    int io_depth;
    const struct ot_io_calls *io_calls;
    double stall_seconds, stall_limit_seconds;
    double skip_spikes;
    /* Puts the test's own functions into the engine's chain; NULL: the model's do. */
    void (*change_chain)(struct ot_chain *chain);
    struct ot_plan plan; /* made by tiny_plan, then changed at will and finished by ot_plan_finish */
};

struct tiny_result {
    double loss[TINY_STEPS], norm[TINY_STEPS];
    bool skipped[TINY_STEPS];
    struct ot_device_tuning tuning;
    int64_t n_values;
    float *values; /* master, m and v of every slab, end to end */
};

/* Skips the test on another device: what it does reaches inside the cpu device. */
void tiny_needs_cpu(void);
/* In main(): exits 77 with the reason where the device to be tested is not there. */
void tiny_skip_without_device(void);
/* plan_bytes: what the plan takes of device memory; what the device itself needs comes on top. */
void tiny_open_device(size_t plan_bytes, int threads, uint64_t delay_seed, struct ot_device **out);

/* On the emulated GPU a run takes a hundred times longer: the build asks its tests to make fewer. */
bool tiny_is_brief(void);

/* layers >= 1. */
struct ot_model_config tiny_config(int layers, bool tied);
/* As scripts/golden/train.py and curve.py write it: "config" and "config_real". */
struct ot_model_config tiny_golden_config(const int64_t *counts, const double *reals);
/* Defaults: fp32, clip 1.0, two sequences a micro-batch, everything resident. Opens nothing. */
void tiny_defaults(struct tiny_run *run, int layers, bool tied, enum ot_dtype dtype);
/* A plan for the run with the given homes; free it with ot_plan_free. Fails the test if there is none. */
void tiny_plan(struct tiny_run *run, enum ot_home weights, enum ot_home state, enum ot_home activations,
               int slots);
/* Cuts the slabs into tiles of tile_params and each slab's tiles into a part for every engine of the set
 * (bits 1 << enum ot_tile_engine): equal parts, or with a seed parts of any size, none too. Gradients of
 * streamed tiles wait by turns on the device and on the host. The plan is finished again. */
void tiny_deal(struct tiny_run *run, int64_t tile_params, unsigned engines, uint64_t seed);
/* Finishes the plan after it was changed. */
void tiny_finish(struct tiny_run *run);

struct tiny_engine {
    struct ot_model *model;
    struct ot_chain chain; /* the engine's */
    struct ot_device *device;
    struct ot_engine *engine;
    char *folder; /* of the store's directories; NULL without nvme */
};
/* With the run's plan and the weights that every run starts from. */
void tiny_open(const struct tiny_run *run, struct tiny_engine *out);
/* Fails the test where the store has left a file behind. */
void tiny_close(struct tiny_engine *tiny);
/* All parameters and state, into result->values. */
void tiny_read(const struct tiny_engine *tiny, struct tiny_result *result);
/* Steps that the optimizer has taken. */
int64_t tiny_adam_step(const struct ot_engine *engine);
/* What decisions carry on, from one drained engine to another. */
void tiny_hand_over(const struct ot_engine *from, struct ot_engine *to);
/* Steps [first, end) of those, on an engine that has made the ones before; all results are collected. */
void tiny_steps(const struct tiny_run *run, struct ot_engine *engine, int first, int end,
                struct tiny_result *result);
/* Chooses at random, by the seed, what a plan with everything on nvme is free to choose, per slab. */
void tiny_randomise(struct tiny_run *run, uint64_t seed);
/* Trains TINY_STEPS steps; the third is a short one (fewer micro-batches, and a last micro-batch of one
 * sequence). */
void tiny_train(const struct tiny_run *run, struct tiny_result *result);
/* Where the device has something to tune it has done so; the cpu device has not. */
void tiny_check_tuning(const struct ot_device_tuning *tuning);
void tiny_result_free(struct tiny_result *result);
/* Fails the test where the two differ in any bit. */
void tiny_same(const struct tiny_result *a, const struct tiny_result *b, const char *what);

/* One step's input, deterministic in `step`; fields in storage that the caller gives. */
struct tiny_batch {
    int32_t tokens[TINY_STEP_SEQUENCES * TINY_SEQUENCE], targets[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    int32_t position[TINY_STEP_SEQUENCES * TINY_SEQUENCE], row_start[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    struct ot_micro_batch micro[TINY_STEP_SEQUENCES];
    struct ot_step_input input;
};
void tiny_fill_batch(struct tiny_batch *batch, int64_t vocab, int step, int sequences,
                     int64_t micro_sequences);

#endif
