/* Settings files of other programs become our options: DeepSpeed's ds_config, the arguments of transformers'
 * Trainer (and of TRL), and the files of LLaMA-Factory and axolotl.
 *
 * A file is read as its program reads it (settings_file.h): HJSON, JSON or YAML. What each of its keys means
 * here is data: maps/PROGRAM.txt (map.h). So a result is a list of rows, one for each key of the file:
 *
 *   used      the key sets an option, which a command line may overrule
 *   ignored   the key changes no result of this program; the row says why
 *   refused   the key would change the result, and nothing here does the same; the row says what to do
 *
 * A key that the other program has a default for, which changes results, has a row too if the file lacks it
 * (`is_default`): a run that leaves out learning_rate is to train with that program's rate, not with ours.
 * "auto" in a ds_config is what the Trainer makes of it: the value of the Trainer's file that is read with
 * it, or else our default.
 *
 * This folder knows options by their names alone. src/options/options.c gives the values to the table, and
 * the command `migrate` prints the rows. The texts of a migration live until it is closed. One thread.
 */
#ifndef OT_MIGRATE_MIGRATE_H
#define OT_MIGRATE_MIGRATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/migrate/program.h"

enum ot_migrate_verdict { OT_MIGRATE_USED, OT_MIGRATE_IGNORED, OT_MIGRATE_REFUSED };

struct ot_migrate_row {
    const char *file, *key; /* "ds_config.json", "optimizer.params.lr" */
    enum ot_migrate_verdict verdict;
    /* used: the option, without dashes, and its value. NULL: the key is part of what other rows say. refused:
     * the option that takes the key's place if the user gives it; NULL: there is none. */
    const char *option, *value;
    const char *text; /* the reason, or a remark; "": none */
    bool is_default;  /* the file lacks the key: this is the other program's default */
    bool differs;     /* used, and its effect here is not quite the same: `text` says where */
    const char
        *overruled; /* what the user says elsewhere instead, as "the command line says --lr 1e-4"; NULL:
                              nothing. Set by the caller, and in memory of the migration */
};

struct ot_migrate_setting {
    const char *option, *value; /* an option that repeats has a setting for each value */
    const char *file, *key;     /* of the first row that says it */
};

struct ot_migration {
    struct ot_arena *arena;
    struct ot_migrate_row *rows;
    size_t n_rows, row_capacity;
    struct ot_migrate_setting *settings;
    size_t n_settings, setting_capacity;
};

struct ot_migrate_request {
    const char *files[OT_PROGRAM_COUNT]; /* paths; of DeepSpeed also base64; NULL: none. At most one is not
                                            DeepSpeed's; it may name a ds_config itself */
    int64_t seq_len;                     /* that the user gives elsewhere; 0: not given */
    int64_t ranks;                       /* of the run; 0: nobody says it elsewhere, so the files may */
};

/* Reads the files. Refused keys are rows, not errors. Call ot_migration_close in any case. Errors: OT_E_INPUT
 * (a file is not what its program reads), OT_E_USAGE (this build cannot read it), OT_E_IO, OT_E_BUDGET. */
int ot_migrate(const struct ot_migrate_request *request, struct ot_migration *out);
void ot_migration_close(struct ot_migration *migration);

/* The program that a file is for, by its keys; *out is OT_PROGRAM_COUNT if none has them. Errors: as
 * ot_migrate. */
int ot_migrate_guess(const char *path, enum ot_program *out);

/* The text of a row about its key: "used as --lr 2e-5", "ignored: ...". Lives as the migration does; "" if
 * there is no memory. */
const char *ot_migrate_row_text(const struct ot_migration *migration, const struct ot_migrate_row *row);
size_t ot_migrate_count(const struct ot_migration *migration, enum ot_migrate_verdict verdict);

#endif
