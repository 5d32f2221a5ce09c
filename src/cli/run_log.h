/* The record of a run: one JSON object a line, in OUT/log.jsonl and, with --json, on stdout as well.
 *
 * Events: "run" (version, effective options, machine, model, data, plan), then "step", "eval", "sample", and
 * "done". Every line is flushed, so that the log of a killed run ends with its last step.
 */
#ifndef OT_CLI_RUN_LOG_H
#define OT_CLI_RUN_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/json.h"

struct ot_run_log;

/* mirror: also to stdout. No file is open yet. Errors: OT_E_BUDGET. */
int ot_run_log_open(bool mirror, struct ot_run_log **out);
/* From here on lines go to DIR/log.jsonl, which starts anew with every line so far and is locked until close.
 * Errors: OT_E_IO, OT_E_INPUT (another run has it). */
int ot_run_log_start_file(struct ot_run_log *log, const char *dir);
void ot_run_log_close(struct ot_run_log *log); /* NULL is fine */

/* An event is begun, filled through the writer, and ended; one at a time. The end writes it. Errors: OT_E_IO
 * (the disk is full, stdout is closed), OT_E_BUDGET. */
struct ot_json_writer *ot_run_log_begin(struct ot_run_log *log, const char *event);
int ot_run_log_end(struct ot_run_log *log);

struct ot_step_record {
    int64_t step, tokens, trained_tokens;
    double epoch; /* passes over the data so far */
    double loss, grad_norm, clipped_norm, lr, seconds;
    size_t gpu_bytes, host_bytes;                /* in use */
    int64_t nvme_read_bytes, nvme_written_bytes; /* since the step before */
    float loss_scale;                            /* 1 where the loss is not scaled */
    bool skipped;
};
int ot_run_log_step(struct ot_run_log *log, const struct ot_step_record *record);

struct ot_eval_record {
    int64_t step; /* 0: before the first */
    double loss;
    int64_t trained_tokens, rows;
    double seconds;
};
int ot_run_log_eval(struct ot_run_log *log, const struct ot_eval_record *record);

#endif
