/* How far the planner is from the best known plan, and how long it searches.
 *
 *     bench_planner [FIRST [LAST [PAIRS]]]
 *     bench_planner "--model MODEL --gpu CARD ..." [PAIRS]
 *     bench_planner chosen [FIRST [LAST]]
 *     bench_planner chosen "--model MODEL --gpu CARD ..."
 *
 * For the given case, or for each of the 95 of tests/plan/real_cases.c: the plan that the planner chooses,
 * and the best plan of a slow reference search. The reference runs the planner again with each single choice
 * forced (rounds, what is computed again, homes, engines, slots), and from the best of these with a second
 * choice forced, PAIRS times. Each of these runs starts elsewhere, so together they are many restarts.
 * Another micro-batch gives other bits and must gain OT_PLANNER_MARGIN, so those runs are not compared. The
 * ratio is the time of the chosen step to that of the best known one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "tests/plan/real_cases.h"

/* Runs the planner for the request; replaces *best if the step is faster with the same micro-batch. */
static void try_request(const struct real_case *real, const struct ot_plan_request *request,
                        int64_t micro_tokens, const char *name, double *best, char best_name[160],
                        struct ot_plan_request *best_request) {
    struct ot_planner_result result;
    if (real_case_choose(real, request, &result) < 0)
        return;
    if (result.prediction.step_seconds < *best && result.plan.micro_tokens == micro_tokens) {
        *best = result.prediction.step_seconds;
        snprintf(best_name, 160, "%s", name);
        *best_request = *request;
    }
    ot_plan_free(&result.plan);
}

/* Takes what `one` forces over into *request, where the case forces nothing. */
static void add_force(const struct ot_plan_request *given, const struct ot_plan_request *one,
                      struct ot_plan_request *request) {
    request->rounds = one->rounds != given->rounds ? one->rounds : request->rounds;
    request->keep = one->keep != given->keep ? one->keep : request->keep;
    request->slots = one->slots != given->slots ? one->slots : request->slots;
    request->weights = one->weights != given->weights ? one->weights : request->weights;
    request->state = one->state != given->state ? one->state : request->state;
    request->activations = one->activations != given->activations ? one->activations : request->activations;
    request->kept = one->kept != given->kept ? one->kept : request->kept;
    request->grads = one->grads != given->grads ? one->grads : request->grads;
    request->sums = one->sums != given->sums ? one->sums : request->sums;
    if (memcmp(one->fractions, given->fractions, sizeof one->fractions) != 0)
        memcpy(request->fractions, one->fractions, sizeof request->fractions);
}

/* Prints the chosen plan alone, so that two programs can be compared in a short time: seconds of the step,
 * CPU seconds of the search, and plans tried. */
static void choose_only(const char *line) {
    struct real_case real;
    struct ot_planner_result chosen = {0};
    int rc = real_case_open(line, &real);
    clock_t since = clock();
    if (rc >= 0)
        rc = real_case_choose(&real, &real.plan_case->request, &chosen);
    double cpu = (double)(clock() - since) / CLOCKS_PER_SEC;
    printf("%-95s %12.6f %7.3f %5d\n", line, rc < 0 ? 0 : chosen.prediction.step_seconds, cpu, chosen.tried);
    fflush(stdout);
    ot_plan_free(&chosen.plan);
    real_case_close(&real);
}

/* Returns the ratio; 0: no plan. */
static double measure(const char *line, int pairs, double *search_seconds) {
    struct real_case real;
    struct ot_planner_result chosen = {0};
    char name[REAL_CASE_NAME_BYTES], best_name[160] = "chosen", both[160];
    double ratio = 0;
    int rc = real_case_open(line, &real);
    double since = ot_clock_seconds();
    if (rc >= 0)
        rc = real_case_choose(&real, &real.plan_case->request, &chosen);
    *search_seconds = ot_clock_seconds() - since;
    if (rc < 0) {
        printf("%-95s %s\n", line, ot_error_text());
        goto out;
    }
    double seconds = chosen.prediction.step_seconds, best = seconds;
    struct ot_plan_request forced, best_request = real.plan_case->request;
    for (int i = 0; real_case_force(&real, i, name, &forced); i++)
        if (forced.micro_sequences == real.plan_case->request.micro_sequences)
            try_request(&real, &forced, chosen.plan.micro_tokens, name, &best, best_name, &best_request);
    struct ot_plan_request first = best_request;
    for (int i = 0; i < pairs && real_case_force(&real, i, name, &forced); i++) {
        struct ot_plan_request two = first;
        add_force(&real.plan_case->request, &forced, &two);
        snprintf(both, sizeof both, "%.70s %s", best_name, name);
        try_request(&real, &two, chosen.plan.micro_tokens, both, &best, best_name, &best_request);
    }
    ratio = seconds / best;
    printf("%-95s %8.3f s %8.3f s %7.4f %6.2f s  %s\n", line, seconds, best, ratio, *search_seconds,
           best_name);
    ot_plan_free(&chosen.plan);
out:
    fflush(stdout);
    real_case_close(&real);
    return ratio;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    enum { MOST = 200 };
    double ratios[MOST], longest = 0;
    if (argc > 1 && strcmp(argv[1], "chosen") == 0) {
        if (argc > 2 && argv[2][0] == '-') {
            choose_only(argv[2]);
            return 0;
        }
        int from = argc > 2 ? atoi(argv[2]) : 0, to = argc > 3 ? atoi(argv[3]) : MOST - 1;
        for (int i = from; i <= to && real_case_line(i); i++)
            choose_only(real_case_line(i));
        return 0;
    }
    if (argc > 1 && argv[1][0] == '-')
        return measure(argv[1], argc > 2 ? atoi(argv[2]) : 0, &longest) > 0 ? 0 : 1;
    int first = argc > 1 ? atoi(argv[1]) : 0, last = argc > 2 ? atoi(argv[2]) : MOST - 1, n = 0;
    for (int i = first; i <= last && real_case_line(i) && n < MOST; i++) {
        double seconds;
        ratios[n] = measure(real_case_line(i), argc > 3 ? atoi(argv[3]) : 0, &seconds);
        longest = fmax(longest, seconds);
        n += ratios[n] > 0;
    }
    if (n == 0)
        return 1;
    qsort(ratios, (size_t)n, sizeof *ratios, ascending);
    printf("%d plans: ratio to the best known: median %.4f, worst %.4f; longest search %.2f s\n", n,
           ratios[n / 2], ratios[n - 1], longest);
    return 0;
}
