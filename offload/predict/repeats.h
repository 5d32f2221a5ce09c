/* Times calls on a machine that other programs disturb. The time of a call is the median of several short
 * repeats. The repeats of several calls alternate, so that a disturbance meets one repeat of each call
 * instead of all repeats of one call. A call with a large spread is repeated more often, within a limit.
 *
 * The median is used, not the minimum: training will share the machine with the same other programs.
 */
#ifndef OT_OFFLOAD_PREDICT_REPEATS_H
#define OT_OFFLOAD_PREDICT_REPEATS_H

enum { OT_REPEATS = 5, OT_REPEATS_MOST = 15 };
/* A larger spread is noise. Noise alone would then make a prediction as wrong as it is allowed to be. */
#define OT_REPEATS_NOISY 0.1

struct ot_repeats {
    int n;
    double seconds[OT_REPEATS_MOST]; /* seconds of one call, a value for each repeat */
};

/* Does nothing if it holds OT_REPEATS_MOST. */
void ot_repeats_add(struct ot_repeats *repeats, double seconds);
double ot_repeats_median(const struct ot_repeats *repeats);
/* Half of the distance between the quartiles, as a share of the median. Half of the repeats differ from the
 * middle by no more than that. 0 for a single repeat: its spread is unknown. */
double ot_repeats_spread(const struct ot_repeats *repeats);

struct ot_timed_calls {
    int n;
    /* Runs call number `call` count times in a row and sets the seconds of one. A negative result ends the
     * measurement and is returned. */
    int (*time)(void *context, int call, int count, double *seconds);
    void *context;
    double seconds; /* limit for the repeats of one call; a noisy call may take three times as long */
};
/* Runs each call for warm-up, then repeats it OT_REPEATS times; at least 3 times if the call is long, up to
 * OT_REPEATS_MOST times if it is noisy. out: [calls->n]. Errors: OT_E_BUDGET (no memory), or the result of
 * calls->time. */
int ot_repeats_take(const struct ot_timed_calls *calls, struct ot_repeats *out);

#endif
