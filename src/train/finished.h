/* The record of a finished run: OUT/finished.json.
 *
 * The record has the format of a checkpoint's checkpoint.json (src/checkpoint/record.h) and is part of the
 * result: it appears in OUT together with the model, and is removed when another result replaces the model. A
 * command that finds the record of its own run trains nothing: it verifies the result and reports that.
 */
#ifndef OT_TRAIN_FINISHED_H
#define OT_TRAIN_FINISHED_H

#include <stdbool.h>

#include "src/checkpoint/record.h"

struct ot_options;
struct ot_run_log;

#define OT_FINISHED_NAME "finished.json"

/* Reads DIR/finished.json. *is_there is false if DIR has none. Errors: OT_E_INPUT (damaged), OT_E_IO,
 * OT_E_BUDGET. If *is_there, the caller frees `out` with ot_checkpoint_record_free. */
int ot_finished_read(const char *dir, struct ot_checkpoint_record *out, bool *is_there);
/* For a command whose run is finished already: reads the whole result, and reports in a log line and an event
 * that it is undamaged. steps: the number of steps that the command asks for. Errors: OT_E_INPUT (the result
 * is damaged), OT_E_USAGE (the command asks for more steps than the result has), OT_E_BUDGET, OT_E_IO (the
 * log). */
int ot_finished_confirm(const struct ot_options *options, const struct ot_checkpoint_record *record,
                        int64_t steps, struct ot_run_log *log);

/* Refuses a command that asks for more steps than the finished run had. Errors: OT_E_USAGE. */
int ot_finished_check_length(const struct ot_options *options, int64_t finished, int64_t steps);

/* A new run begins in the output of a finished run: renames the finished run's log to OUT/log.old.jsonl until
 * the new run has its own result. Errors: OT_E_IO. */
int ot_finished_keep_log(const char *out);
int ot_finished_drop_log(const char *out);
/* The new run has no result, so OUT still holds the finished run's result: gives its log back. Errors:
 * OT_E_IO. */
int ot_finished_restore_log(const char *out);

#endif
