/* Times of calls on a machine that other programs disturb: each is the median of several short repeats. The
 * repeats of several calls take turns, so that a disturbance meets one repeat of each call and not all of
 * one. Calls whose repeats lie apart are repeated more often, within a limit.
 *
 * The median and not the least: training shares the machine with the same other programs.
 */
#ifndef OT_OFFLOAD_PREDICT_REPEATS_H
#define OT_OFFLOAD_PREDICT_REPEATS_H

enum { OT_REPEATS = 5, OT_REPEATS_MOST = 15 };
/* A larger spread is noise: it alone takes up what a prediction may be wrong by. */
#define OT_REPEATS_NOISY 0.1

struct ot_repeats {
    int n;
    double seconds[OT_REPEATS_MOST]; /* of one call */
};

void ot_repeats_add(struct ot_repeats *repeats, double seconds); /* beyond OT_REPEATS_MOST: nothing */
double ot_repeats_median(const struct ot_repeats *repeats);
/* Half of the distance between the quartiles, as a share of the median: half of the repeats are within it. 0
 * for a single repeat, about which nothing is known. */
double ot_repeats_spread(const struct ot_repeats *repeats);

struct ot_timed_calls {
    int n;
    /* Runs call number `call` count times in a row and sets the seconds of one. A negative result ends the
     * measurement and is returned. */
    int (*time)(void *context, int call, int count, double *seconds);
    void *context;
    double seconds; /* for one call's repeats; twice as much again for those that lie apart */
};
/* Warms each call up, then repeats it OT_REPEATS times or more, fewer (3) where it is a long one; out[n]. */
int ot_repeats_take(const struct ot_timed_calls *calls, struct ot_repeats *out);

#endif
