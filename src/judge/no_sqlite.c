/* The judge of a build without SQLite. */
#include "src/base/error.h"
#include "src/judge/judge.h"

int ot_judge_open(const char *databases, struct ot_judge **out) {
    (void)databases;
    *out = NULL;
    return ot_fail(OT_E_USAGE, "--metric execution: this build has no SQLite; install libsqlite3-dev "
                               "(scripts/install-packages does), and build again");
}

void ot_judge_close(struct ot_judge *judge) {
    (void)judge;
}

int ot_judge_answer(struct ot_judge *judge, const struct ot_judged_row *row, const char *answer,
                    struct ot_verdict *verdict) {
    (void)judge, (void)row, (void)answer;
    *verdict = (struct ot_verdict){0};
    return ot_fail(OT_E_INTERNAL, "this build has no SQLite");
}
