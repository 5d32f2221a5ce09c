/* Going on from a checkpoint: which one, what the run takes over from it, and whether it is the same run.
 *
 * FIND. With --resume auto it is the newest one in OUT/checkpoints, unless that run came to its end: then the
 * record of the finished run (finished.h) takes its place in what follows, and nothing is trained. With a
 * directory it is that one, or the newest one in it or in its "checkpoints". A newest one that is damaged is
 * never passed over in silence: hours of training would be repeated, or a disk that fails go unnoticed. It is
 * refused by name, with the option that goes on from the older one, or begins anew.
 *
 * TAKE OVER, before anything is opened: options that fix the bits of the result (ot_option.on_resume) get
 * their recorded values, also those that the program chose then (micro-batch, learning rate, dtype). One
 * that was given and is another now is refused, with all others of the kind. Whatever only says where bytes
 * live, how often something is written or who computes is free.
 *
 * CHECK, once model and rows are read: their recorded fingerprints, and the length of the run. --steps and
 * --epochs may change as long as the run so far is the beginning of the new one: every learning rate up to
 * the checkpoint is what it would have been. And what the bits of products depend on: the device's libraries,
 * their versions and instruction sets.
 *
 * One thread.
 */
#ifndef OT_SAVING_RESUME_H
#define OT_SAVING_RESUME_H

#include "src/checkpoint/reader.h"
#include "src/options/settings.h"
#include "src/run/run_identity.h"
#include "src/run/run_shape.h"

struct ot_resume {
    struct ot_checkpoint *checkpoint;          /* open; NULL: nothing to go on from */
    const struct ot_checkpoint_record *record; /* of the checkpoint or of the finished run; NULL: none */
    const char *dir, *record_name;             /* the directory that the record lies in, and its file there */
    struct ot_checkpoint_record finished;      /* what `record` points to where OUT is a finished run */
    char taken[512]; /* " --pack no": options that were given then and not now, for people */
};

/* --out is known. With tidy, what killed saves left in OUT/checkpoints is cleared first; without it nothing
 * is changed. Errors: OT_E_INPUT (damaged, or --resume DIR has none), OT_E_IO, OT_E_BUDGET. `out` needs
 * ot_resume_close in either case. */
int ot_resume_find(const struct ot_options *options, bool tidy, struct ot_resume *out);
void ot_resume_close(struct ot_resume *resume);
/* Whether OUT has the result of this run already (finished.h). */
bool ot_resume_is_finished(const struct ot_resume *resume);
/* Where it has, says so and goes on as with --resume never: for --dry-run. */
void ot_resume_forget_finished(struct ot_resume *resume);

/* The settings borrow texts from the checkpoint from here on. Does nothing where there is none, as the next
 * two. Errors: OT_E_USAGE (an option is another now), OT_E_INPUT (the record has a value that cannot be). */
int ot_resume_take_over(struct ot_resume *resume, struct ot_settings *settings);
/* Errors: OT_E_INPUT: which key of the model's config, or which rows, and the cure. */
int ot_resume_check(const struct ot_resume *resume, const struct ot_options *options,
                    const struct ot_run_identity *identity);
/* Errors: OT_E_USAGE: the run would be shorter than it is already, or its learning rates would differ. */
int ot_resume_check_length(const struct ot_resume *resume, const struct ot_options *options,
                           const struct ot_run_shape *shape);

/* The device computes with other libraries, versions or instruction sets than the run so far did: a warning,
 * or with --exact an error. arithmetic: ot_device_arithmetic. Errors: OT_E_INPUT. */
int ot_resume_check_arithmetic(const struct ot_resume *resume, const struct ot_options *options,
                               const char *arithmetic);
/* Errors: OT_E_INPUT: the checkpoint's place in the data is not where its step leads. */
int ot_resume_check_position(const struct ot_resume *resume, const struct ot_run_shape *shape);

/* Something has failed with rc. Where the sentence names the checkpoint, adds what to do. Returns rc. */
int ot_resume_advise(const struct ot_resume *resume, int rc);
/* Two lines for people: from where, how far, and what was taken over. Nothing where there is none. */
void ot_resume_print(const struct ot_resume *resume);

/* How much of OUT/log.jsonl is of this run: nothing where the checkpoint lies elsewhere, or there is none. */
int64_t ot_resume_log_bytes(const struct ot_resume *resume, const char *out);
/* Whether the run goes on from one of OUT's own checkpoints. */
bool ot_resume_is_own(const struct ot_resume *resume, const char *out);
/* When the first step is about to run, and the log is held: removes from OUT/checkpoints those that are
 * newer than the one of its own that the run goes on from, so that none of them is ever resumed in its
 * place. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_resume_clear_newer(const struct ot_resume *resume, const char *out);

#endif
