/* The lock of an output directory: whoever writes into OUT takes it first and keeps it to the end.
 *
 * The lock is flock(2) on the directory itself, so it leaves nothing behind and two machines' worth of
 * containers that share a volume see one lock. Where OUT is absent there is nothing to lock: the lock is
 * taken as soon as OUT is there. A result that takes OUT's place by rename is locked before it does, so
 * that the name OUT never stands for a directory without its owner's lock.
 *
 * The owner also notices what others do to OUT while it works: whether OUT still is the directory that was
 * locked, and what its marker said in case that is lost. One thread uses a lock.
 */
#ifndef OT_FILES_OUT_LOCK_H
#define OT_FILES_OUT_LOCK_H

#include <stdbool.h>
#include <stddef.h>

/* In OUT: the marker of an output of ours; the directory where files are being written; and the directory
 * where they are complete (out_replace.h). */
#define OT_OUT_MARKER    "offload-train.json"
#define OT_OUT_STAGED    ".offload-train-partial"
#define OT_OUT_REPLACING ".offload-train-replacing"
enum { OT_OUT_MARKER_MAX_BYTES = 1 << 20 };

struct ot_out_lock {
    char *out;    /* without a slash at its end */
    int fd;       /* of the locked directory; -1: OUT was absent */
    bool insists; /* set by the owner once it has something to lose: it waits for others, however long */
    bool is_away; /* OUT no longer is the locked directory, which was said */
    char *marker; /* what OUT's marker said when it was last seen; NULL: there was none */
    size_t marker_bytes;
};

/* Takes the lock where OUT is there. Errors: OT_E_INPUT (another process writes this output), OT_E_BUDGET. */
int ot_out_lock_open(const char *out, struct ot_out_lock **lock);
void ot_out_lock_close(struct ot_out_lock *lock); /* NULL is fine */

/* Before anything is written: takes the lock if OUT is there by now. Where the directory that was locked
 * has been moved away, says so, and another empty or absent OUT takes its place. Errors: OT_E_INPUT
 * (another process writes this output; OUT is another directory, which has something in it). */
int ot_out_lock_take(struct ot_out_lock *lock);
/* The directory of fd, locked already, has taken the place of OUT: the lock has a descriptor of its own
 * from here on. Errors: OT_E_IO. */
int ot_out_lock_move(struct ot_out_lock *lock, int fd);
/* Whether OUT is the locked directory. */
bool ot_out_lock_holds(const struct ot_out_lock *lock);
/* Reads OUT's marker, if it has one, or puts back a lost one. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_out_lock_keep_marker(struct ot_out_lock *lock);

/* flock without waiting, or, where wait is set, for as long as it takes, which is said. 1: another process
 * has it. A file system without locks gives it to everyone. path: for sentences. */
int ot_out_flock(int fd, const char *path, bool wait);
/* Whether a directory has nothing in it but what a cut short save of ours or the file system itself keeps
 * there. Errors: OT_E_IO. */
int ot_out_is_empty(const char *path, bool *empty);

#endif
