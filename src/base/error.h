/* Errors.
 *
 * A function that can fail returns an int: 0 (or a non-negative result) on success, -OT_E_* on failure. The
 * sentence for the user is kept in a record of the calling thread: one line that names the file, the place
 * and the cure. The deepest function that knows the reason calls ot_fail(). Callers above it may add context
 * in front with ot_fail_context(). Only main() prints the sentence and turns the code into an exit code. A
 * thread that works for another thread (a lane, a pool worker) copies its record with ot_error_save(); the
 * waiting thread loads it with ot_error_load().
 */
#ifndef OT_BASE_ERROR_H
#define OT_BASE_ERROR_H

/* Each code is also an exit code of the program (`help exit-codes` lists them). */
enum ot_error_code {
    OT_E_INTERNAL = 1,  /* a bug of this program: a broken invariant */
    OT_E_USAGE = 2,     /* unknown or contradictory options; ranks that differ, on all ranks */
    OT_E_INPUT = 3,     /* a file has wrong content: config, weights, tokenizer, data */
    OT_E_BUDGET = 4,    /* does not fit in the memory budgets */
    OT_E_IO = 5,        /* operating-system error: open, read, write, space */
    OT_E_DEVICE = 6,    /* device, driver or library missing or failed */
    OT_E_NUMERIC = 7,   /* training cannot continue: losses or gradients are not finite */
    OT_E_INTERRUPT = 8, /* stopped at once: by a second signal, or in probe or before step 1 by the first */
    OT_E_STALL = 9,     /* a disk, a driver or a device hangs; threads that wait for it may hang too */
    OT_E_STOPPED = 10, /* not a failure: a signal ended the run and its state is saved; main prints nothing */
    OT_E_COMM = 11,    /* another rank, or the network between ranks, failed */
};

/* The cause of a failure, for callers that act on it: the words of a sentence are for people alone. An option
 * of the program may cure most causes. The engine and the kernels know no options: they name the cause, and
 * src/options/options.h names the options. */
enum ot_error_cause {
    OT_CAUSE_UNKNOWN,         /* the sentence is complete; no option is added */
    OT_CAUSE_NO_DRIVER,       /* no driver of a GPU is installed */
    OT_CAUSE_NO_GPU,          /* the driver finds no GPU */
    OT_CAUSE_GPU_BUSY,        /* another program uses the GPU exclusively */
    OT_CAUSE_DEVICE_BUDGET,   /* the plan's device memory is more than the budget */
    OT_CAUSE_DEVICE_MEMORY,   /* the device has less free memory than the budget */
    OT_CAUSE_PINNED_MEMORY,   /* the system refuses to pin more host memory */
    OT_CAUSE_UNCLIPPED,       /* without clipping, a gradient was not finite after some updates were done */
    OT_CAUSE_UNCLIPPED_FP16,  /* training in fp16 without clipping */
    OT_CAUSE_MICRO_BATCHES,   /* too many micro-batches per step */
    OT_CAUSE_STEP_TOKENS,     /* too many tokens per step */
    OT_CAUSE_OPTIMIZER_SHARE, /* an optimizer engine's share is less than one tile */
    OT_CAUSE_WEIGHT_SLOTS,    /* too few weight slots for a block */
    OT_CAUSE_SLOTS_IN_USE,    /* too few slots for the order of the schedule */
    OT_CAUSE_WORLD_RANKS,  /* the same bits for every number of ranks, with an impossible number of ranks */
    OT_CAUSE_SMALL_SHARES, /* a slab is too small for a share on every rank */
    OT_CAUSE_SECTIONS,     /* sequences cannot be cut into so many sections */
    OT_CAUSE_STAGES,       /* a model that cannot be divided into stages */
    OT_CAUSE_STATE_SHARDS, /* weights that are whole on every rank, but not on the device */
    OT_CAUSE_N_CURED,      /* no option cures the causes from here on */
    OT_CAUSE_RANKS_DIFFER = OT_CAUSE_N_CURED, /* the ranks were to agree on something, and do not */
    OT_CAUSE_CHECKPOINT,                      /* a checkpoint is damaged, unreadable or not whole */
    OT_CAUSE_RESCUED, /* any; the sentence names the last checkpoint, or says that there is none */
    OT_CAUSE_COUNT
};

enum { OT_ERROR_TEXT_BYTES = 1024 };

struct ot_error {
    int code; /* 0 or an enum ot_error_code */
    enum ot_error_cause cause;
    int help_bytes; /* at the end of the text: what ot_fail_add_cures added; 0: nothing */
    int cure_bytes; /* at the end of the text: the cures alone */
    char text[OT_ERROR_TEXT_BYTES];
};

/* Records the sentence for the calling thread and returns -code. */
int ot_fail(enum ot_error_code code, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* The same, followed by ": " and strerror(errno_value). */
int ot_fail_errno(enum ot_error_code code, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* ot_fail with a cause, from which src/options/options.h finds the cure. */
int ot_fail_cause(enum ot_error_code code, enum ot_error_cause cause, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* Puts "context: " in front of the calling thread's sentence and keeps the rest of the record. Returns rc, so
 * that a caller can write `return ot_fail_context(rc, ...)`. */
int ot_fail_context(int rc, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Appends `lead` and then the cures that were found for this failure to the calling thread's sentence. Both
 * are short: at most 500 bytes together. Returns rc. */
int ot_fail_add_cures(int rc, const char *lead, const char *cures);

/* The calling thread's last sentence; "" if there is none. Valid until the thread's next ot_fail. */
const char *ot_error_text(void);
enum ot_error_cause ot_error_cause(void); /* the cause of that sentence */
const char *ot_error_cures(void);         /* the cures that were added to that sentence; "": none */
/* The length of that sentence without its additions; -1: it has none. */
int ot_error_reason_bytes(void);
void ot_error_clear(void);
void ot_error_save(struct ot_error *out, int rc); /* rc: the result of the failed call */
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
