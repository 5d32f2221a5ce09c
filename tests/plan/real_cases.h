/* Plans of real cards and models, given as command lines of `plan`: what the planner's tests and its
 * benchmark ask for. No GPU and no weights are needed. */
#ifndef OT_TESTS_REAL_CASES_H
#define OT_TESTS_REAL_CASES_H

#include "src/plan/case.h"

/* 95 cases: cards, models, memory, tokens, ranks, and ways to train. NULL after the last. */
const char *real_case_line(int i);

enum { REAL_CASE_BYTES = 256, REAL_CASE_NAME_BYTES = 80 };
/* A random case. The same number gives the same case. */
void real_case_draw(uint64_t number, char line[REAL_CASE_BYTES]);
/* The same with 2, 4 or 8 GPUs in one host. */
void real_case_draw_ranks(uint64_t number, char line[REAL_CASE_BYTES]);

struct real_case {
    struct ot_options options;
    struct ot_plan_case *plan_case;
    bool without_stages; /* several ranks share slabs */
};
/* Opens the case of "--model M --gpu G ...". Errors: as ot_options_parse and ot_plan_case_open. Close it in
 * either case. */
int real_case_open(const char *line, struct real_case *out);
void real_case_close(struct real_case *real);

/* Chooses the plan of a request of this case, as `plan` does: also the division among ranks. Free
 * result->plan. Errors: as ot_planner_choose_shard. */
int real_case_choose(const struct real_case *real, const struct ot_plan_request *request,
                     struct ot_planner_result *result);

/* Requests that force one choice, as a user can with an option. Sets the name and changes *request. Returns
 * false after the last. */
bool real_case_force(const struct real_case *real, int i, char name[REAL_CASE_NAME_BYTES],
                     struct ot_plan_request *request);

#endif
