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

/* Why it failed, where an option of the program may cure it. The engine and the kernels know no options: they
 * name the cause, and src/options/cure.h words the cure. */
enum ot_error_cause {
    OT_CAUSE_UNKNOWN,         /* the sentence says all there is to say */
    OT_CAUSE_NO_DRIVER,       /* no driver of a GPU is installed */
    OT_CAUSE_NO_GPU,          /* the driver finds no GPU */
    OT_CAUSE_GPU_BUSY,        /* another program has the GPU for itself */
    OT_CAUSE_DEVICE_BUDGET,   /* the plan's device memory is more than the budget */
    OT_CAUSE_DEVICE_MEMORY,   /* the device has less free memory than the budget */
    OT_CAUSE_PINNED_MEMORY,   /* the system pins no more host memory */
    OT_CAUSE_UNCLIPPED,       /* updates did not wait for the norm, and a gradient was not finite */
    OT_CAUSE_UNCLIPPED_FP16,  /* training in fp16 without clipping */
    OT_CAUSE_MICRO_BATCHES,   /* too many micro-batches a step */
    OT_CAUSE_STEP_TOKENS,     /* too many tokens a step */
    OT_CAUSE_OPTIMIZER_SHARE, /* an optimizer engine's share is less than one tile */
    OT_CAUSE_WEIGHT_SLOTS,    /* too few weight slots for a block */
    OT_CAUSE_SLOTS_IN_USE,    /* too few slots for the order of the schedule */
    OT_CAUSE_COUNT
};

enum { OT_ERROR_TEXT_BYTES = 1024 };

struct ot_error {
    int code; /* 0 or an enum ot_error_code */
    enum ot_error_cause cause;
    char text[OT_ERROR_TEXT_BYTES];
};

/* Records the sentence for this thread and returns -code. */
int ot_fail(enum ot_error_code code, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* The same with ": " and strerror(errno_value) after it. */
int ot_fail_errno(enum ot_error_code code, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* ot_fail with the cause, for a caller above that knows a cure. */
int ot_fail_cause(enum ot_error_code code, enum ot_error_cause cause, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* Puts "context: " in front of this thread's sentence and keeps the cause; returns rc unchanged, so that it
 * can end a return. */
int ot_fail_context(int rc, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* This thread's last sentence; "" if there was none. Valid until the thread's next ot_fail. */
const char *ot_error_text(void);
enum ot_error_cause ot_error_cause(void); /* of that sentence */
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
