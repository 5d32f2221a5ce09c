/* The state of the saver, shared by saver.c, saver_open.c, saver_best.c and saver_space.c. */
#ifndef OT_TRAIN_SAVER_STATE_H
#define OT_TRAIN_SAVER_STATE_H

#include "src/base/error.h"
#include "src/train/saver.h"

struct ot_saver {
    struct ot_saver_config config;
    char *parent, *best_parent;          /* OUT/checkpoints, and its directory for the best state */
    struct ot_checkpoint_writer *writer; /* NULL: no checkpoint is being written */
    struct ot_pins **pins;               /* [n_held]: NVMe data of this run's complete checkpoints */
    int64_t *pins_step;                  /* [n_held]: their steps */
    int n_held;
    size_t capacity; /* of both arrays */
    int64_t step_under_way, last_step;
    double cost_under_way, best_cost; /* of that checkpoint's state (eval_history.h); NaN: not evaluated */
    int64_t best_step;                /* of the best state that is saved; -1: none was evaluated */
    char *last_dir;
    double last_begun, seconds;
    double flush_seconds; /* to flush a small file; measured with --grace only */
    struct ot_error failure;
    bool is_rank0;          /* rank 0, or the only rank: it decides and logs */
    bool leads;             /* this rank makes and removes directories, and reserves space, in its --out */
    bool is_local;          /* several ranks lead, each in a directory of its own */
    bool writes;            /* this rank writes parts */
    bool under_way;         /* a checkpoint is, on all ranks */
    bool is_best_under_way; /* and it is the best state alone */
    bool keeps_best;
    bool best_is_whole;  /* a checkpoint has the best state, and no file in best_parent */
    bool keeps_all;      /* the run has failed: no checkpoint is removed, no space is reserved */
    bool removal_failed; /* on some rank, after the last checkpoint: the next save tries again */
    bool old_run;        /* OUT/checkpoints.old exists until this run's first checkpoint */
};

/* Removes all checkpoints and the directory. */
int ot_saver_remove_all(const char *parent);
/* Sets *has if the directory has a checkpoint; else leaves it. */
int ot_saver_find_any(const char *parent, bool *has);
/* Removes what need not stay. Of the best states there are two after a run that was killed in a save. */
int ot_saver_prune(struct ot_saver *saver);
/* Makes a directory, which may exist. */
int ot_saver_make_path(const char *path);
/* Removes the directories of the run that are empty. */
void ot_saver_remove_empty(const struct ot_saver *saver);

/* A state is saved, in a whole checkpoint or by its weights alone: notes whether it is the best so far. */
void ot_saver_rate(struct ot_saver *saver, int64_t step, double cost, bool is_whole);
/* Finds the best state of the run that is resumed. A damaged checkpoint cannot be the best. */
int ot_saver_rate_earlier(struct ot_saver *saver);

/* Bytes that this rank copies and refers to, and bytes that it copies for the best state. */
void ot_saver_own_bytes(const struct ot_session *session, int64_t *copied, int64_t *referred);
int64_t ot_saver_own_best_bytes(const struct ot_session *session);
/* Brings the parts of all ranks to rank 0, which completes the checkpoint. rc: the result of this rank's
 * snapshot. All ranks return the same error. With one rank it returns rc. */
int ot_saver_join(struct ot_saver *saver, int rc);

/* Reserves disk space in OUT/checkpoints/reserved for everything still to come. Errors: OT_E_IO (the message
 * says how much is missing). */
int ot_saver_hold_space(struct ot_saver *saver);
/* The same before step 1. If there is no room for the best state besides the newest checkpoint, the best is
 * not kept. */
int ot_saver_hold_first_space(struct ot_saver *saver);
void ot_saver_release_space(const char *parent);

#endif
