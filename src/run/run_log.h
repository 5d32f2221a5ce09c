/* The record of a run: one JSON object a line, in OUT/log.jsonl and, with --json, on stdout as well.
 *
 * Each record has "event", which is one of these, and the keys behind it. Times are in seconds, losses in
 * nats, the mean over trained tokens. A key in [brackets] is there only where it has something to say.
 *
 *   run         version, [out], options, sources (who gave each option: src/options/options.h), machine,
 *               model, data, plan, [prediction]: before step 1
 *   resume      step, checkpoint, read_bytes, read_seconds: the steps after this one follow
 *   step        step, epoch, loss, grad_norm, clipped_norm, lr, tokens, trained_tokens, tokens_per_s,
 *               seconds, gpu_bytes, host_bytes (in use), [nvme_read_bytes], [nvme_written_bytes] (since the
 *               step before), [loss_scale] (fp16), [skipped] (why), [spike]
 *   eval        step, loss, perplexity, trained_tokens, rows, seconds
 *   checkpoint  step, dir, written_bytes, referred_bytes, seconds; where a save failed: step, error
 *   sample      step, prompt, text: an answer to a held-out row, at the end
 *   trace       file, steps, left_out, seconds, busy_seconds, exposed_seconds, exposed_host_seconds
 *   done        steps, tokens, seconds, loss, flops_per_s, skipped, spikes, interrupted, [resumed_after],
 *               [checkpoint], [predicted_step_seconds], measured_steps, [measured_step_seconds],
 *               nvme_read_bytes, nvme_written_bytes, gpu_planned_bytes, gpu_used_bytes, host_planned_bytes,
 *               host_used_bytes, nvme_planned_bytes, nvme_used_bytes, process_peak_bytes, [out]
 *
 * Every line is flushed, so that the log of a killed run ends with its last step.
 *
 * A run that goes on from a checkpoint keeps what was logged up to it, and says "run" again, since plan and
 * machine may be others, and "resume". What was logged after the checkpoint is cut: those steps are made
 * again, bit for bit, so that each step is there once.
 *
 * On stdout nothing waits for the reader (src/base/output.h). "step" events are left out where it is slow,
 * and {"event": "left_out", "records": N} stands in their place. The file has every event.
 */
#ifndef OT_RUN_RUN_LOG_H
#define OT_RUN_RUN_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/engine/engine.h"
#include "src/base/json.h"

struct ot_run_log;

/* mirror: also to stdout. No file is open yet. Errors: OT_E_BUDGET, OT_E_IO (no thread can start). */
int ot_run_log_open(bool mirror, struct ot_run_log **out);
/* From here on lines go to DIR/log.jsonl, which is locked until close. The whole lines among its first
 * keep_bytes stay (0: none; it may have become shorter), and every line so far follows. Errors: OT_E_IO,
 * OT_E_INPUT (another run has it, or it is a symbolic link: not followed). */
int ot_run_log_start_file(struct ot_run_log *log, const char *dir, int64_t keep_bytes);
int64_t ot_run_log_bytes(const struct ot_run_log *log); /* of the file; 0: none is open */
/* Whether stdout takes the records so far; a slow reader is not waited for. Errors: OT_E_IO (a write
 * failed). */
int ot_run_log_check(struct ot_run_log *log);
/* Waits until the reader of stdout has every record, but not for a reader that takes nothing. Errors: OT_E_IO
 * (a write to stdout failed). */
int ot_run_log_flush(struct ot_run_log *log);
void ot_run_log_close(struct ot_run_log *log); /* NULL is fine */

/* An event is begun, filled through the writer, and ended; one at a time. The end writes it. Errors: OT_E_IO
 * (the disk is full; an earlier write to stdout failed), OT_E_BUDGET. */
struct ot_json_writer *ot_run_log_begin(struct ot_run_log *log, const char *event);
int ot_run_log_end(struct ot_run_log *log);

/* The steps after this one follow. bytes, seconds: what reading the checkpoint took. */
int ot_run_log_resume(struct ot_run_log *log, int64_t step, const char *checkpoint, int64_t bytes,
                      double seconds);

struct ot_step_record {
    int64_t step, tokens, trained_tokens;
    double epoch; /* passes over the data so far */
    double loss, grad_norm, clipped_norm, lr, seconds;
    size_t gpu_bytes, host_bytes;                /* in use */
    int64_t nvme_read_bytes, nvme_written_bytes; /* since the step before */
    float loss_scale;                            /* 1 where the loss is not scaled */
    enum ot_skip skipped;                        /* written where it was, with why */
    bool spike;
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
