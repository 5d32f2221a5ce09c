/* A small model of random weights and a saver, for the tests of this folder. No step is trained: a checkpoint
 * of a new step has the same weights. */
#ifndef OT_TRAIN_SAVER_RUN_H
#define OT_TRAIN_SAVER_RUN_H

#include "tests/options/option_lines.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/train/out_name.h"
#include "src/train/saver_state.h"

enum { SEQ_LEN = 64, MODEL_BYTES = 3 << 20 };

struct run {
    char *root, out[500], parent[600], best[620], aside[620];
    struct ot_options options;
    struct ot_settings settings;
    struct ot_session session;
    struct ot_out_sharing sharing;
    struct ot_run_log *log;
    struct ot_saver_config config;
    struct ot_saver *saver;
};

/* ---- a run that saves ---- */

static inline int open_folder(void **state) {
    struct run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->root = make_folder();
    snprintf(r->out, sizeof r->out, "%s/out", r->root);
    snprintf(r->parent, sizeof r->parent, "%s/checkpoints", r->out);
    assert_int_equal(mkdir(r->out, 0777), 0);
    snprintf(r->best, sizeof r->best, "%s/best", r->parent);
    snprintf(r->aside, sizeof r->aside, "%s.old", r->parent);
    r->sharing = (struct ot_out_sharing){.leads = true, .sharers = 1};
    *state = r;
    return 0;
}

static inline int close_run(void **state) {
    struct run *r = *state;
    ot_saver_close(r->saver);
    ot_session_close(&r->session);
    ot_run_log_close(r->log);
    ot_options_free(&r->options);
    remove_folder(r->root);
    free(r);
    return 0;
}

static const struct ot_run_shape epochs_of_7 = {.sequences = 7, .step_sequences = 1, .steps_per_epoch = 7};

/* Makes the session's plan. "NVME" in `words` stands for words that put everything on nvme. */
static inline void plan(struct run *r, const char *words) {
    char line[1400], nvme[700] = "";
    if (strstr(words, "NVME"))
        snprintf(nvme, sizeof nvme, "--home nvme --nvme %s:64M", r->root);
    snprintf(line, sizeof line,
             "--model tiny-test --data d.jsonl --device cpu --threads 1 --gpu-mem 256M --out %s %s %s",
             r->out, nvme, words + (*nvme ? strlen("NVME") : 0));
    accept(&r->options, line);
    r->settings = (struct ot_settings){r->options};
    check_ok(ot_session_open_model(&r->settings, &r->session));
    ot_settings_choose_count(&r->settings, "optimizer-threads", 1);
    struct ot_session_need need = {.max_position = SEQ_LEN,
                                   .sequence_tokens = SEQ_LEN,
                                   .step_sequences = 2,
                                   .micro_sequences = 1,
                                   .train = true,
                                   .clip = true,
                                   .snapshot_slots = 2,
                                   .pinned_contents = ot_saver_pinned_contents(&r->session, r->parent)};
    check_ok(ot_session_plan(&r->session, &need));
    check_ok(ot_run_log_open(false, &r->log));
    r->config = (struct ot_saver_config){.session = &r->session,
                                         .log = r->log,
                                         .parent = r->parent,
                                         .shape = &epochs_of_7,
                                         .model_bytes = MODEL_BYTES,
                                         .evaluates = r->config.evaluates,
                                         .sharing = &r->sharing};
}

static inline void open_saver(struct run *r, const char *words) {
    struct ot_optimizer_config optimizer = {.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .clip = 1};
    plan(r, words);
    check_ok(ot_session_start(&r->session, &optimizer));
    check_ok(ot_saver_open(&r->config, &r->saver));
}

/* The run goes on in another process, from its checkpoint of this step. */
static inline void reopen(struct run *r, int64_t step) {
    char *dir;
    ot_saver_close(r->saver);
    check_ok(ot_checkpoint_name(r->parent, step, &dir));
    r->config.step = step;
    r->config.resumed = dir;
    r->config.is_own = true;
    check_ok(ot_saver_open(&r->config, &r->saver));
    free(dir);
}

/* eval: the loss of an evaluation of this state; NaN: none was made. */
static inline struct ot_checkpoint_record record_of(int64_t step, double eval) {
    return (struct ot_checkpoint_record){
        .progress = {.step = step, .adam_step = step, .loss_scale = 1},
        .steps = 400,
        .ranks = 1,
        .evals = {.has_any = !isnan(eval),
                  .last_step = isnan(eval) ? 0 : step,
                  .best_step = isnan(eval) ? 0 : step,
                  .first = {eval, NAN},
                  .last = {eval, NAN},
                  .best = {eval, NAN}},
        .data = {.rows = 4, .tokens = 9, .trained_tokens = 9, .crc = 7},
        .library = "0.1.0",
        .device = "cpu",
        .made = "2026-11-27T09:30:00Z",
    };
}

static inline void save(struct run *r, int64_t step, double eval) {
    struct ot_checkpoint_record record = record_of(step, eval);
    check_ok(ot_saver_begin(r->saver, &record, 0));
    check_ok(ot_saver_poll(r->saver, true));
    assert_false(ot_saver_is_under_way(r->saver));
}

/* The evaluated state alone. */
static inline void save_best(struct run *r, int64_t step, double eval) {
    struct ot_checkpoint_record record = record_of(step, eval);
    check_ok(ot_saver_begin_best(r->saver, &record, 0));
    check_ok(ot_saver_poll(r->saver, true));
    assert_false(ot_saver_is_under_way(r->saver));
}

/* Steps end at 0. The steps of the checkpoints, newest first, must be these. */
static inline void expect_steps(const char *parent, const int64_t *steps) {
    struct ot_checkpoint_list list;
    check_ok(ot_checkpoint_list_make(parent, &list));
    int n = 0;
    for (; steps[n] && n < list.n; n++)
        assert_int_equal(list.entries[n].step, steps[n]);
    assert_int_equal(list.n, n);
    assert_int_equal(steps[n], 0);
    ot_checkpoint_list_free(&list);
}
#define STEPS(...) ((const int64_t[]){__VA_ARGS__, 0})

/* A file has the name of the directory in which the checkpoint of this step is made. */
static inline void stand_in_the_way(const struct run *r, int64_t step, bool stands) {
    char name[64], path[700];
    snprintf(name, sizeof name, "step-%08d.partial", (int)step);
    snprintf(path, sizeof path, "%s/%s", r->parent, name);
    if (stands)
        write_file(r->parent, name, "", 0);
    else
        assert_int_equal(unlink(path), 0);
}

#endif
