/* Checkpoints for the tests of resuming: one small slab of zeros, and the record of a run. */
#ifndef OT_TRAIN_RESUME_FOLDER_H
#define OT_TRAIN_RESUME_FOLDER_H

#include "tests/options/option_lines.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/hash.h"
#include "src/checkpoint/catalog.h"
#include "src/train/resume.h"

enum { STEPS = 400 };
#define BASE "--model m --data d.jsonl "

struct folder {
    char *root, out[600], checkpoints[640];
};

/* ---- making checkpoints ---- */

static inline struct ot_json *parse_json(const char *text) {
    struct ot_json *json;
    check_ok(ot_json_parse(text, strlen(text), "test", &json));
    return json;
}

/* Records the options of the line as a run would, with the program's choices (micro-batch, dtype). */
static inline struct ot_json *record_options(const char *line) {
    struct ot_options o;
    struct ot_run_identity identity = {0};
    accept(&o, line);
    struct ot_settings settings = {o};
    ot_settings_choose_count(&settings, "micro-batch", 4);
    ot_settings_choose_word(&settings, "dtype", OT_CHOICE_DTYPE_FP32);
    if (!o.steps && !o.epochs)
        ot_settings_choose_count(&settings, "epochs", 3);
    if (!ot_options_given(&o, "lr"))
        ot_settings_choose_real(&settings, "lr", 3e-4);
    check_ok(ot_run_identity_take_options(&identity, &settings.in_effect));
    ot_json_free(identity.sources);
    ot_options_free(&o);
    return identity.options;
}

static const struct ot_data_fingerprint rows_print = {
    .rows = 41000, .tokens = 2121000, .trained_tokens = 9, .crc = 7};

/* Makes PARENT/step-N of a run with these options. NULL: the options of BASE. */
static inline void make_checkpoint_of(const char *parent, int64_t step, int64_t steps, bool lacks_moments,
                                      const char *line) {
    struct ot_json *options = record_options(line ? line : BASE);
    struct ot_json *model = parse_json("{\"hidden_size\": 256, \"torch_dtype\": \"float32\"}");
    struct ot_checkpoint_record record = {.progress = {.step = step, .adam_step = step, .loss_scale = 1},
                                          .steps = steps,
                                          .seconds = 754,
                                          .log_bytes = 1234,
                                          .data = rows_print,
                                          .library = "0.1.0",
                                          .device = "cpu",
                                          .made = "2026-11-21T09:30:00Z",
                                          .options = options,
                                          .model = model};
    int64_t params[] = {16};
    struct ot_manifest_segment segments[] = {
        {.segment = {0, 0, 16, true, true, .lacks_moments = lacks_moments}}};
    struct ot_manifest manifest = {
        .dtype = OT_F32, .n_slabs = 1, .n_segments = 1, .slab_params = params, .segments = segments};
    char *text, *dir;
    unsigned char *bytes;
    size_t n, text_bytes;
    check_ok(ot_checkpoint_record_encode(&record, &text, &text_bytes));
    manifest.record_bytes = (int64_t)text_bytes;
    manifest.record_crc = ot_crc32(0, text, text_bytes);
    check_ok(ot_manifest_encode(&manifest, &bytes, &n));
    check_ok(ot_checkpoint_name(parent, step, &dir));
    assert_true(mkdir(dir, 0777) == 0 || access(dir, F_OK) == 0);
    write_file(dir, OT_RECORD_NAME, text, text_bytes);
    write_file(dir, OT_MANIFEST_NAME, bytes, n);
    free(dir);
    free(text);
    free(bytes);
    ot_json_free(options);
    ot_json_free(model);
}

/* line: options beside those of BASE; NULL: none. */
static inline void make_checkpoint(const char *parent, int64_t step, const char *line) {
    make_checkpoint_of(parent, step, STEPS, false, line);
}

/* The weights of an evaluated state, of a run of `steps` steps. */
static inline void make_best(const struct folder *f, int64_t step, int64_t steps) {
    char best[700];
    snprintf(best, sizeof best, "%s/best", f->checkpoints);
    assert_true(mkdir(best, 0777) == 0 || access(best, F_OK) == 0);
    make_checkpoint_of(best, step, steps, true, NULL);
}

static inline void damage(const char *parent, int64_t step) {
    char *dir;
    check_ok(ot_checkpoint_name(parent, step, &dir));
    write_file(dir, OT_RECORD_NAME, "{}", 2);
    free(dir);
}

static inline int open_folder(void **state) {
    struct folder *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->root = make_folder();
    snprintf(f->out, sizeof f->out, "%s/out", f->root);
    snprintf(f->checkpoints, sizeof f->checkpoints, "%s/checkpoints", f->out);
    assert_int_equal(mkdir(f->out, 0777), 0);
    assert_int_equal(mkdir(f->checkpoints, 0777), 0);
    *state = f;
    return 0;
}

static inline int close_folder(void **state) {
    struct folder *f = *state;
    remove_folder(f->root);
    free(f);
    return 0;
}

/* ---- finding a checkpoint ---- */

static inline int find(const struct folder *f, const char *words, struct ot_resume *resume) {
    static char line[2048];
    struct ot_options o;
    snprintf(line, sizeof line, BASE "--out %s %s", f->out, words);
    accept(&o, line);
    int rc = ot_resume_find(&o, false, resume);
    ot_options_free(&o);
    return rc;
}

/* The step of the checkpoint that is found must be `step`; 0: none. */
static inline void expect_step(const struct folder *f, const char *words, int64_t step) {
    struct ot_resume resume;
    check_ok(find(f, words, &resume));
    assert_int_equal(resume.record ? resume.record->progress.step : 0, step);
    ot_resume_close(&resume);
}

static inline void expect_refusal(const struct folder *f, const char *words, int code, const char *sentence) {
    struct ot_resume resume;
    check_fails(find(f, words, &resume), code, sentence);
    assert_null(resume.checkpoint);
    ot_resume_close(&resume);
}

#endif
