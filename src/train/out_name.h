/* OUT: its default name, the record of a finished run in it, and which ranks share its checkpoints. Without
 * --out it is out/MODEL-DATA (bench: out/MODEL-bench), so that the same command finds its earlier output.
 *
 * TWO MODELS OF ONE NAME. --model v1/my-model and --model v2/my-model have the same MODEL. If out/MODEL-DATA
 * has a run of other weights, a run gets out/MODEL-DATA-PRINT, where PRINT is the fingerprint of its base
 * (src/session/weights.h) in 8 hexadecimal digits. The fingerprint depends on the weights alone, so a
 * moved model keeps its output. A run is found under either name as long as it is there. */
#ifndef OT_TRAIN_OUT_NAME_H
#define OT_TRAIN_OUT_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "offload/comm/world.h"
#include "src/checkpoint/record.h"
#include "src/options/options.h"
#include "src/options/settings.h"

struct ot_world;

/* MODEL is the last component of --model; DATA is the last component of --data up to its first dot. Does
 * nothing if --out was given. Otherwise the options borrow text[bytes]. Errors: OT_E_USAGE (the name is too
 * long). */
int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes);
/* The same for a run that trains, which has no output with --no-save: tells two models of one name apart, and
 * logs that. Rank 0 decides, and all ranks call it. world NULL: one rank. Errors: also OT_E_COMM,
 * OT_E_BUDGET. */
int ot_out_name_find(struct ot_settings *settings, struct ot_world *world, char *text, size_t bytes);

/* ---- finished runs ---- */

/* The record of a finished run: OUT/finished.json.
 *
 * The record has the format of a checkpoint's checkpoint.json (src/checkpoint/record.h) and is part of the
 * result: it appears in OUT together with the model, and is removed when another result replaces the model. A
 * command that finds the record of its own run trains nothing: it verifies the result and reports that.
 */

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

/* ---- directories of ranks ---- */

/* The directories in which the ranks of a run keep checkpoints: one that all share, or one on each host
 * (--save-local).
 *
 * Before anything else is written, ranks find out which of them share a directory: each puts a file with a
 * unique name in its --out, or in the nearest existing ancestor, looks for the files of the others, and
 * removes its file. The first rank of a shared directory leads there: it locks, tidies, makes and removes.
 * Rank 0 leads in its own directory, and decides for all.
 */

struct ot_out_sharing {
    bool is_local; /* the ranks have several directories: each keeps the parts of its own ranks */
    bool leads;    /* this rank is the first of those that share its directory */
    int sharers;   /* ranks that share it, this one too */
    char *hosts;   /* as ot_checkpoint_record has them; NULL: one directory, or not looked for */
};

/* options->out must be set, unless --no-save. world NULL: one rank. All ranks call it. With --no-save and
 * --dry-run nothing is written: then only --save-local decides, and only rank 0 leads. Errors: OT_E_USAGE
 * (hosts do not share the directory and --save-local is not given: names two ranks), OT_E_COMM,
 * OT_E_BUDGET. */
int ot_out_sharing_find(const struct ot_options *options, struct ot_world *world, struct ot_out_sharing *out);
void ot_out_sharing_free(struct ot_out_sharing *sharing);

#endif
