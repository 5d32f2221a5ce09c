/* One golden model: tests/golden/model_CASE.bin, which scripts/golden/models.py describes, loaded into a
 * runner. */
#ifndef OT_TESTS_GOLDEN_CASE_H
#define OT_TESTS_GOLDEN_CASE_H

#include "tests/models/chain_runner.h"
#include "tests/support/golden.h"

extern const char *const golden_case_names[]; /* ends with NULL */

struct golden_case {
    struct ot_golden *golden;
    struct ot_model_config config;
    struct runner_batch batch; /* points into the golden file; grad_scale = 1 / trained tokens */
    const float *token_loss, *logits;
};

void golden_case_open(const char *name, struct golden_case *out);
void golden_case_close(struct golden_case *golden_case);
/* Opens a runner with the case's weights. */
struct runner *golden_case_runner(const struct golden_case *golden_case, enum ot_dtype dtype, int threads);

#endif
