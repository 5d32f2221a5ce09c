/* A micro-batch whose answers are compared, for the cpu device and for two devices. */
#ifndef OT_TESTS_KERNELS_COMPARE_CASE_H
#define OT_TESTS_KERNELS_COMPARE_CASE_H

#include <string.h>

#include "tests/kernels/ops_fixture.h"

enum { COMPARE_TOKENS = 300, COMPARE_N = 9 };

struct compare_case {
    struct ot_objective objective;
    struct ot_comparison comparisons[COMPARE_N];
    float losses[COMPARE_TOKENS];
};

/* Answers of 2 to 60 tokens, some without a neighbour; about every third token has no target. */
static inline struct compare_case compare_case_make(enum ot_objective_kind kind) {
    struct compare_case c = {
        {.kind = kind, .beta = 0.4, .smoothing = 0.15, .gamma = 0.6, .weights = {1.5, 0.5}}, {{0}}, {0}};
    int32_t at = 3;
    c.objective.sft_weight = kind == OT_OBJECTIVE_DPO || kind == OT_OBJECTIVE_IPO ? 0.3 : 0;
    for (int i = 0; i < COMPARE_N; i++) {
        struct ot_comparison *one = &c.comparisons[i];
        one->begin = at;
        one->middle = at += i == 4 ? 60 : 2 + 7 * i % 11;
        one->end = at += 2 + 5 * i % 13;
        one->good = i % 3 != 1;
        at += i % 2;
        for (int32_t t = one->begin; t < one->end; t++) {
            bool has_target = t == one->begin || t == one->middle || t % 3 != 0;
            c.losses[t] = has_target ? 0.05f * (float)(1 + t * 37 % 61) : 0;
            one->targets[t >= one->middle] += has_target;
        }
        one->reference[0] = -1.25f * (float)one->targets[0] - 0.5f * (float)(i % 4);
        one->reference[1] = -2 * (float)one->targets[1] + 0.25f * (float)(i % 5);
    }
    return c;
}

/* Collects "weights" and "sums", the latter as fp32. */
static inline void compare_case_run(struct ops_fixture *f, const void *argument) {
    const struct compare_case *c = argument;
    double *sums = ops_blank(f, OT_COMPARE_SUMS * sizeof *sums);
    const struct ot_compare op = {
        .objective = c->objective,
        .tokens = COMPARE_TOKENS,
        .n = COMPARE_N,
        .comparisons = (const void *)ops_upload_ids(f, (const void *)c->comparisons,
                                                    COMPARE_N * sizeof(struct ot_comparison) / 4),
        .token_loss = ops_upload(f, OT_F32, c->losses, COMPARE_TOKENS),
        .weights = ops_blank_values(f, OT_F32, COMPARE_TOKENS),
        .answers = ops_blank(f, 2 * COMPARE_N * sizeof(double)),
        .sums = sums};
    f->ops->compare(f->lane, &op);
    ops_collect(f, "weights", OT_F32, op.weights, COMPARE_TOKENS);
    ops_collect(f, "sums", OT_F32, sums, 2 * OT_COMPARE_SUMS); /* the bits */
    ops_collect(f, "answers", OT_F32, op.answers, 4 * COMPARE_N);
}

/* Element i of an array of doubles whose bits were collected. */
static inline double compare_double(const struct ops_fixture *f, const char *name, int i) {
    double value;
    memcpy(&value, ops_result(f, name, NULL) + 2 * i, sizeof value);
    return value;
}

#endif
