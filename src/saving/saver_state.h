/* The inside of the saver, shared by saver.c and saver_space.c. */
#ifndef OT_SAVING_SAVER_STATE_H
#define OT_SAVING_SAVER_STATE_H

#include "src/base/error.h"
#include "src/saving/saver.h"

struct ot_saver {
    struct ot_saver_config config;
    char *parent;
    struct ot_checkpoint_writer *writer; /* NULL: nothing is under way */
    struct ot_pins **pins;               /* [n_held]: of complete checkpoints of this run, */
    int64_t *pins_step;                  /* and their steps */
    int n_held, capacity;
    int64_t step_under_way, last_step;
    double eval_under_way, best_eval; /* the last evaluation's loss; NaN: there was none */
    int64_t best_step;                /* of the best checkpoint; -1: none has an evaluation behind it */
    char *last_dir;
    double last_begun, seconds;
    double flush_seconds; /* of a small file, with --grace */
    struct ot_error failure;
    bool keeps_best;
    bool keeps_all; /* the run has failed: nothing older goes, and no space is held */
    bool old_run;   /* OUT/checkpoints.old waits for our first one */
};

/* Holds the space of what is still to come by OUT/checkpoints/reserved. Errors: OT_E_IO (what is missing). */
int ot_saver_hold_space(struct ot_saver *saver);
/* The same before step 1. Where there is no room for the best one beside the newest, it has to do without. */
int ot_saver_hold_first_space(struct ot_saver *saver);
void ot_saver_release_space(const char *parent);

#endif
