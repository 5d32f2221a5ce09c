/* The verdicts of the guard (cuda_guard.h), and the file that keeps them from run to run.
 *
 * A PATH is a kind of op with a fast kernel; it has a number. Its verdict is one character.
 *
 * A check may hang or fault, and then it ends the process before it decides anything. So the file says
 * `pending` before a check begins. A process that finds a pending verdict of a process that is gone knows
 * that this check never ended. It does not check again, because it would end the same way.
 *
 * SEVERAL PROCESSES may share the file: ranks whose GPUs have the same name and number, one home directory on
 * two machines. A process that checks holds a lock (flock) on a second file, FILE.lock, from before it writes
 * `pending` until it has written the verdict. The system drops the lock of a process that dies. So a pending
 * verdict belongs to a living process while the lock is taken, and to a dead one otherwise. A process that
 * wants to check waits for the lock; then it finds the verdict of the other, or checks. Every write happens
 * under the lock, after the file was read again, so no process removes the verdict of another.
 *
 * The wait ends after OT_GUARD_PATIENCE seconds, more than any check takes. A process without the lock then
 * distrusts a path that is pending, checks the others without marking them, and writes nothing. The same
 * holds where the file system has no locks, but without the wait.
 *
 * A user who kills a run within the milliseconds of a check leaves a pending verdict too. Then a slower
 * kernel is used without need; the warning names the file to delete.
 */
#ifndef OT_KERNELS_CUDA_GUARD_VERDICTS_H
#define OT_KERNELS_CUDA_GUARD_VERDICTS_H

/* A kernel that waits for a lost arrival traps after some 8 s (ptx_hopper.cuh). */
enum { OT_GUARD_PATIENCE = 20 };

enum ot_guard_verdict {
    OT_GUARD_UNKNOWN = '?',
    OT_GUARD_TRUSTED = '+',
    OT_GUARD_DISTRUSTED = '-', /* other results than the plain kernel */
    OT_GUARD_PENDING = '!',    /* in the file alone: a check has begun */
    OT_GUARD_UNFINISHED = 'x', /* a check never ended, or the GPU failed in it */
};

struct ot_guard_verdicts {
    char *path, *lock_path; /* NULL: nothing is kept */
    int lock;               /* -1: not held */
    double patience;        /* seconds to wait for the lock; 0 after a wait in vain */
    int n;
    char identity[384]; /* the first line of the file */
    char *of;           /* [n + 1], the second line: one character for each path, then 0 */
};

/* Reads the file of this identity in the folder. folder: NULL: nothing is kept. Errors: OT_E_BUDGET. */
int ot_guard_verdicts_open(struct ot_guard_verdicts *v, int n, const char *identity, const char *folder);
void ot_guard_verdicts_close(struct ot_guard_verdicts *v);

/* Comes before the check of a path whose verdict is unknown. Another process may have decided meanwhile: if
 * the result is not OT_GUARD_UNKNOWN, the caller does not check. Otherwise it checks, and calls
 * ot_guard_verdict_end. */
enum ot_guard_verdict ot_guard_verdict_begin(struct ot_guard_verdicts *v, int path);
/* OT_GUARD_UNKNOWN: the check has decided nothing. If the file cannot be written, the run goes on, and the
 * next run checks again. */
void ot_guard_verdict_end(struct ot_guard_verdicts *v, int path, enum ot_guard_verdict verdict);

#endif
