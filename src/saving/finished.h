/* The record of a run that came to its end: OUT/finished.json.
 *
 * It has the format of a checkpoint's checkpoint.json (src/checkpoint/record.h) and is a file of the result:
 * it appears in OUT together with the model and goes when another result takes the model's place. A command
 * that finds the record of its own run trains nothing: it verifies the result and says so.
 */
#ifndef OT_SAVING_FINISHED_H
#define OT_SAVING_FINISHED_H

#include <stdbool.h>

#include "src/checkpoint/record.h"

struct ot_options;
struct ot_run_log;

#define OT_FINISHED_NAME "finished.json"

/* *is_there false: OUT has no such record. Errors: OT_E_INPUT (damaged), OT_E_IO, OT_E_BUDGET. `out` needs
 * ot_checkpoint_record_free where it is there. */
int ot_finished_read(const char *dir, struct ot_checkpoint_record *out, bool *is_there);
/* The command is that of the finished run. Reads all of the result, and says in a line and an event that it
 * is whole. steps: that the command asks for. Errors: OT_E_INPUT (the result is damaged), OT_E_USAGE (the
 * command asks for more steps than the result has), OT_E_BUDGET, OT_E_IO of the log. */
int ot_finished_confirm(const struct ot_options *options, const struct ot_checkpoint_record *record,
                        int64_t steps, struct ot_run_log *log);

/* Another run begins in an output that is a finished run: the log of that one is kept as OUT/log.old.jsonl
 * until the new run has its own result. Errors: OT_E_IO. */
int ot_finished_keep_log(const char *out);
int ot_finished_drop_log(const char *out);
/* The new run came to nothing, so the finished one is what there is: it gets its log back. Errors:
 * OT_E_IO. */
int ot_finished_restore_log(const char *out);

#endif
