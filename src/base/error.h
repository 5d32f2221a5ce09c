/* Errors.
 *
 * A function that can fail returns an int: 0 (or a non-negative result) on success, -OT_E* on failure. The
 * sentence a user reads is kept beside it in a record of the calling thread: one line that names the file,
 * the place and the cure. The deepest caller that knows the reason calls ot_fail(); callers above may put
 * context in front of it with ot_fail_context(). Only main() prints it and turns it into an exit code. A
 * thread that works for another (a lane, a pool worker) copies its record out with ot_error_save() and the
 * waiting thread takes it over with ot_error_load().
 */
#ifndef OT_BASE_ERROR_H
#define OT_BASE_ERROR_H

/* Each is also the exit code of the program (`help exit-codes` lists them). */
enum ot_error_code {
    OT_E_INTERNAL = 1,  /* a broken invariant of ours */
    OT_E_USAGE = 2,     /* unknown or contradictory options */
    OT_E_INPUT = 3,     /* a file says something wrong: config, weights, tokenizer, data */
    OT_E_BUDGET = 4,    /* does not fit in the memory that it may use */
    OT_E_IO = 5,        /* operating-system error: open, read, write, space */
    OT_E_DEVICE = 6,    /* device, driver or library missing or failed */
    OT_E_NUMERIC = 7,   /* training produced numbers that it cannot go on with */
    OT_E_INTERRUPT = 8, /* stopped at once: by a second signal, or by the first of a probe or before step 1 */
    OT_E_STALL = 9,     /* a disk, a driver or a device hangs; so may whatever waits for it */
    OT_E_STOPPED = 10, /* no failure: a signal ended the run, and what it has is saved; main prints nothing */
};

enum { OT_ERROR_TEXT_BYTES = 1024 };

struct ot_error {
    int code; /* 0 or an enum ot_error_code */
    char text[OT_ERROR_TEXT_BYTES];
};

/* Records the sentence for this thread and returns -code. */
int ot_fail(enum ot_error_code code, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* The same with ": " and strerror(errno_value) after it. */
int ot_fail_errno(enum ot_error_code code, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* Puts "context: " in front of this thread's sentence; returns rc unchanged, so that it can end a return. */
int ot_fail_context(int rc, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* This thread's last sentence; "" if there was none. Valid until the thread's next ot_fail. */
const char *ot_error_text(void);
void ot_error_clear(void);
void ot_error_save(struct ot_error *out, int rc); /* rc: what the failing call returned */
int ot_error_load(const struct ot_error *error);  /* returns -error->code */

#define OT_TRY(expr)                                                                                         \
    do {                                                                                                     \
        int ot_try_rc_ = (expr);                                                                             \
        if (ot_try_rc_ < 0)                                                                                  \
            return ot_try_rc_;                                                                               \
    } while (0)

#define OT_TRY_GOTO(expr, rc, label)                                                                         \
    do {                                                                                                     \
        (rc) = (expr);                                                                                       \
        if ((rc) < 0)                                                                                        \
            goto label;                                                                                      \
    } while (0)

#endif
