/* Runs a model's chain in sections, and in key groups (offload/block.h, SECTIONS, KEY GROUPS). */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "src/base/minmax.h"
#include "tests/models/chain_runner_state.h"
#include "tests/support/check.h"

/* The sections of a batch, whose memory belongs to this pass. */
struct sections {
    struct runner *runner;
    const struct runner_batch *batch;
    int64_t tokens;
    int groups;
    enum ot_keep_level level;
    struct ot_run_row
        row;      /* of the first group; those of the others follow, each array one after the other */
    char **saved; /* [n_blocks]: of all sections, one after the other */
};

static size_t saved_of_section(const struct sections *s, int block) {
    const struct ot_chain *chain = s->runner->chain;
    return chain->saved_bytes(chain->context, block, s->level, s->tokens);
}

static int64_t sections_of(const struct sections *s) {
    return (s->batch->n + s->tokens - 1) / s->tokens;
}

static void open_sections(struct sections *s) {
    struct runner *r = s->runner;
    size_t elems = (size_t)(s->batch->n * r->chain->kv_elems), item = ot_dtype_bytes(r->chain->dtype);
    s->row.k = runner_alloc(r, elems * item, "keys");
    s->row.v = runner_alloc(r, elems * item, "values");
    s->row.dk = runner_alloc(r, elems * sizeof(float), "sums");
    s->row.dv = runner_alloc(r, elems * sizeof(float), "sums");
    s->saved = runner_host_alloc((size_t)r->chain->n_blocks, sizeof *s->saved);
    for (int b = 0; b < r->chain->n_blocks; b++)
        s->saved[b] = runner_alloc(r, (size_t)sections_of(s) * saved_of_section(s, b), "saved");
}

static void close_sections(struct sections *s) {
    void *const rows[] = {s->row.k, s->row.v, s->row.dk, s->row.dv};
    for (int i = 0; i < 4; i++)
        ot_device_free(s->runner->device, rows[i]);
    for (int b = 0; b < s->runner->chain->n_blocks; b++)
        ot_device_free(s->runner->device, s->saved[b]);
    free(s->saved);
}

static void *row_at(const struct runner *r, const void *boundary, int64_t first) {
    size_t bytes = (size_t)(first * r->chain->boundary_elems) * ot_dtype_bytes(r->chain->dtype);
    return boundary ? (char *)boundary + bytes : NULL;
}

/* The run of a block for section number `section`. */
static struct ot_block_run section_run(const struct sections *s, int block, enum ot_pass pass,
                                       int64_t section) {
    struct runner *r = s->runner;
    int64_t first = section * s->tokens;
    struct ot_block_run run = runner_make_run(r, block, pass, s->batch);
    run.batch.n_tokens = ot_min(s->batch->n - first, s->tokens);
    run.batch.tokens += first;
    run.batch.targets += first;
    run.batch.position += first;
    run.batch.row_start += first;
    run.token_loss += first;
    run.x = row_at(r, run.x, first);
    run.y = row_at(r, run.y, first);
    run.saved_level = s->level;
    run.saved = saved_of_section(s, block) > 0
                    ? s->saved[block] + (size_t)section * saved_of_section(s, block)
                    : NULL;
    run.row = s->row;
    run.row.first = first;
    return run;
}

static bool is_middle(const struct sections *s, int block) {
    return block > 0 && block < s->runner->chain->n_blocks - 1;
}

/* The run of a phase, for a group of heads. */
static struct ot_block_run phase_run(const struct sections *s, const struct ot_block_run *run,
                                     enum ot_phase phase, int group) {
    const struct ot_chain *chain = s->runner->chain;
    struct ot_block_run part = *run;
    int64_t before = group * s->batch->n * (chain->kv_elems / s->groups);
    size_t item = ot_dtype_bytes(chain->dtype);
    part.phase = phase;
    part.row.k = (char *)run->row.k + (size_t)before * item;
    part.row.v = (char *)run->row.v + (size_t)before * item;
    part.row.dk = run->row.dk + before;
    part.row.dv = run->row.dv + before;
    part.row.group = group;
    part.row.n_groups = s->groups;
    return part;
}

/* Calls a function of the chain for a section: at once, or phase by phase. */
static void call(const struct sections *s, int block, const struct ot_block_run *run,
                 void (*function)(const void *, int, const struct ot_block_run *),
                 const enum ot_phase *phases, int n_phases) {
    const struct ot_chain *chain = s->runner->chain;
    if (s->groups == 1 || !is_middle(s, block)) {
        function(chain->context, block, run);
        return;
    }
    for (int i = 0; i < n_phases; i++) {
        bool by_group = phases[i] == OT_PHASE_ATTEND || phases[i] == OT_PHASE_ATTEND_BACK;
        for (int g = 0; g < (by_group ? s->groups : 1); g++) {
            struct ot_block_run part = phase_run(s, run, phases[i], g);
            function(chain->context, block, &part);
        }
    }
}

static void forward_section(const struct sections *s, int block, enum ot_pass pass, int64_t section) {
    static const enum ot_phase phases[] = {OT_PHASE_BEGIN, OT_PHASE_ATTEND, OT_PHASE_END};
    struct ot_block_run run = section_run(s, block, pass, section);
    if (s->groups == 1 || !is_middle(s, block))
        runner_forward(s->runner, block, &run);
    else
        call(s, block, &run, s->runner->chain->forward, phases, 3);
}

/* Attention that is kept is not computed again: ATTEND then does nothing but add keys. */
static void backward_section(const struct sections *s, int block, int64_t section, bool first) {
    static const enum ot_phase phases[] = {OT_PHASE_BEGIN, OT_PHASE_ATTEND, OT_PHASE_MIDDLE,
                                           OT_PHASE_ATTEND_BACK, OT_PHASE_END};
    struct runner *r = s->runner;
    struct ot_block_run run = section_run(s, block, OT_PASS_TRAIN, section);
    memcpy(run.grads, r->grads[block], sizeof run.grads);
    run.first = first;
    run.y = NULL;
    run.dxy = row_at(r, r->dxy, run.row.first);
    call(s, block, &run, r->chain->backward, phases, 5);
}

static void backward_sections(const struct sections *s, int block) {
    struct runner *r = s->runner;
    const struct ot_chain *chain = r->chain;
    size_t elems = (size_t)(s->batch->n * chain->kv_elems), item = ot_dtype_bytes(chain->dtype);
    int64_t last = sections_of(s) - 1;
    static const enum ot_phase phases[] = {OT_PHASE_BEGIN, OT_PHASE_ATTEND};
    runner_spoil(r, s->row.k, elems * item);
    runner_spoil(r, s->row.v, elems * item);
    ot_lane_fill(r->lane, s->row.dk, 0, elems * sizeof(float));
    ot_lane_fill(r->lane, s->row.dv, 0, elems * sizeof(float));
    for (int64_t i = 0; i < last && is_middle(s, block); i++) {
        struct ot_block_run run = section_run(s, block, OT_PASS_TRAIN, i);
        run.saved = NULL;
        run.saved_level = OT_KEEP_NONE;
        call(s, block, &run, chain->keys, phases, 2);
    }
    for (int64_t i = last; i >= 0; i--)
        backward_section(s, block, i, r->first && i == last);
}

void runner_train_sections(struct runner *r, const struct runner_batch *batch, enum ot_keep_level level,
                           int64_t tokens, int groups, float *token_loss) {
    struct sections s = {.runner = r, .batch = batch, .tokens = tokens, .groups = groups, .level = level};
    const struct ot_chain *chain = r->chain;
    open_sections(&s);
    runner_upload_batch(r, batch);
    for (int b = 0; b < chain->n_blocks; b++)
        for (int64_t i = 0; i < sections_of(&s); i++)
            forward_section(&s, b, OT_PASS_TRAIN, i);
    runner_spoil(r, r->dxy, runner_boundary_bytes(r, r->max_tokens));
    for (int b = chain->n_blocks - 1; b >= ot_chain_first_trained(chain); b--)
        backward_sections(&s, b);
    r->first = false;
    check_ok(ot_lane_sync(r->lane));
    runner_download(r, token_loss, r->token_loss, (size_t)batch->n * sizeof(float));
    close_sections(&s);
}

void runner_eval_sections(struct runner *r, const struct runner_batch *batch, int64_t tokens, int groups,
                          float *token_loss) {
    struct sections s = {.runner = r, .batch = batch, .tokens = tokens, .groups = groups};
    open_sections(&s);
    runner_upload_batch(r, batch);
    for (int b = 0; b < r->chain->n_blocks; b++)
        for (int64_t i = 0; i < sections_of(&s); i++)
            forward_section(&s, b, OT_PASS_EVAL, i);
    runner_download(r, token_loss, r->token_loss, (size_t)batch->n * sizeof(float));
    close_sections(&s);
}
