/* The directories in which the ranks of a run keep checkpoints: one that all share, or one on each host
 * (--save-local).
 *
 * Before anything else is written, ranks find out which of them share a directory: each puts a file with a
 * unique name in its --out, or in the nearest existing ancestor, looks for the files of the others, and
 * removes its file. The first rank of a shared directory leads there: it locks, tidies, makes and removes.
 * Rank 0 leads in its own directory, and decides for all.
 */
#ifndef OT_TRAIN_OUT_SHARING_H
#define OT_TRAIN_OUT_SHARING_H

#include <stdbool.h>

#include "offload/comm/world.h"
#include "src/options/options.h"

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
