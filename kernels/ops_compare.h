/* Objectives that compare answers: DPO, IPO, SimPO, ORPO and KTO, as one op.
 *
 * A comparison has two answers to one prompt. Each answer is a row of the micro-batch, and the two rows are
 * adjacent. The log-probability of an answer is the negative sum of its tokens' cross-entropies; tokens
 * without a target have none. The objective gives a comparison a loss, and that loss a derivative with
 * respect to each log-probability. So the gradient of the objective is that of cross-entropy with a weight
 * for each token: the derivative of the loss with respect to the token's cross-entropy. The last block of a
 * chain runs forward, this op computes the weights, and backward multiplies with them (struct
 * ot_cross_entropy).
 *
 * Let l and n be the log-probability and the number of targets of an answer, r = l - reference, and s the
 * logarithm of the sigmoid. Answers: 0 is the chosen one, 1 is the rejected one.
 *
 *     DPO    -(1 - e) s(b d) - e s(-b d), d = r0 - r1, e = smoothing      Rafailov et al., arXiv 2305.18290
 *     IPO    (r0 / n0 - r1 / n1 - 1 / (2 b))^2                            Azar et al., arXiv 2310.12036
 *     SimPO  as DPO with b (l0 / n0 - l1 / n1) - gamma in place of b d    Meng et al., arXiv 2405.14734
 *     ORPO   -l0 / n0 - b s(log(odds 0 / odds 1)), odds = p / (1 - p),    Hong et al., arXiv 2403.07691
 *            p = exp(l / n)
 *     KTO    good: w0 (1 - sigmoid(b (r0 - z))); bad: w1 (1 - sigmoid(b (z - r0)));
 *            answer 1 is an answer to another prompt. z = max(0, mean of  Ethayarajh et al., arXiv 2402.01306
 *            r1 over the micro-batch), without a gradient
 *
 * The loss of a step is the mean over its comparisons.
 *
 * sft_weight adds that multiple of -l0 / n0 (Pang et al., arXiv 2404.19733). The REWARD of an answer is b r;
 * for objectives without a reference it is b l / n. All of it is computed in double: there are few
 * comparisons. Sums over tokens are in the order of the tokens, sums over comparisons in their order.
 *
 * C and CUDA C++ compile this file.
 */
#ifndef OT_KERNELS_OPS_COMPARE_H
#define OT_KERNELS_OPS_COMPARE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops_inline.h"

enum ot_objective_kind {
    OT_OBJECTIVE_SFT, /* cross-entropy: compares nothing */
    OT_OBJECTIVE_DPO,
    OT_OBJECTIVE_IPO,
    OT_OBJECTIVE_SIMPO,
    OT_OBJECTIVE_ORPO,
    OT_OBJECTIVE_KTO,
    OT_OBJECTIVES
};

struct ot_objective {
    enum ot_objective_kind kind;
    double beta, smoothing, gamma, sft_weight;
    double weights[2]; /* KTO: of good and of bad answers */
};

/* "sft", "dpo", ...; in the order of --objective */
static inline const char *ot_objective_name(enum ot_objective_kind kind) {
    static const char *const names[] = {"sft", "dpo", "ipo", "simpo", "orpo", "kto"};
    return names[kind];
}

/* True if the objective compares with the log-probabilities of a reference model. */
static OT_OPS_INLINE bool ot_objective_has_reference(enum ot_objective_kind kind) {
    return kind == OT_OBJECTIVE_DPO || kind == OT_OBJECTIVE_IPO || kind == OT_OBJECTIVE_KTO;
}

/* Tokens [begin, middle) are answer 0 with its prompt, [middle, end) are answer 1 with its prompt. Of an
 * encoder-decoder they are the answers alone. */
struct ot_comparison {
    int32_t begin, middle, end;
    int32_t targets[2]; /* targets of each answer, at least 1 */
    float reference[2]; /* its log-probability by the reference model */
    int32_t good;       /* KTO: answer 0 is a good one */
};

/* The loss of a comparison, its derivatives with respect to l0 and l1, and the rewards. */
struct ot_comparison_loss {
    double loss, slope[2], reward[2];
};

static OT_OPS_INLINE double ot_log_sigmoid(double x) {
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

static OT_OPS_INLINE double ot_sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* 1 - exp(mean). An answer that is certain has probability 1, and no odds: it counts as nearly certain. */
static OT_OPS_INLINE double ot_doubt(double mean) {
    return -expm1(mean < -1e-9 ? mean : -1e-9);
}

static OT_OPS_INLINE double ot_logistic_loss(double x, double smoothing, double *slope) {
    *slope = smoothing * ot_sigmoid(x) - (1 - smoothing) * ot_sigmoid(-x);
    return -(1 - smoothing) * ot_log_sigmoid(x) - smoothing * ot_log_sigmoid(-x);
}

/* l: the log-probabilities of both answers. z: of KTO. */
static OT_OPS_INLINE struct ot_comparison_loss
ot_compare_loss(const struct ot_objective *o, const struct ot_comparison *c, const double l[2], double z) {
    double r0 = l[0] - (double)c->reference[0], r1 = l[1] - (double)c->reference[1];
    double n0 = c->targets[0], n1 = c->targets[1], slope;
    struct ot_comparison_loss out = {0, {0, 0}, {o->beta * r0, o->beta * r1}};
    if (o->kind == OT_OBJECTIVE_DPO) {
        out.loss = ot_logistic_loss(o->beta * (r0 - r1), o->smoothing, &slope);
        out.slope[0] = o->beta * slope;
        out.slope[1] = -o->beta * slope;
    } else if (o->kind == OT_OBJECTIVE_IPO) {
        double off = r0 / n0 - r1 / n1 - 1 / (2 * o->beta);
        out.loss = off * off;
        out.slope[0] = 2 * off / n0;
        out.slope[1] = -2 * off / n1;
    } else if (o->kind == OT_OBJECTIVE_SIMPO) {
        out.reward[0] = o->beta * l[0] / n0;
        out.reward[1] = o->beta * l[1] / n1;
        out.loss = ot_logistic_loss(out.reward[0] - out.reward[1] - o->gamma, o->smoothing, &slope);
        out.slope[0] = o->beta * slope / n0;
        out.slope[1] = -o->beta * slope / n1;
    } else if (o->kind == OT_OBJECTIVE_ORPO) {
        double m0 = l[0] / n0, m1 = l[1] / n1, doubt0 = ot_doubt(m0), doubt1 = ot_doubt(m1);
        double log_ratio = m0 - m1 - (log(doubt0) - log(doubt1));
        out.reward[0] = o->beta * m0;
        out.reward[1] = o->beta * m1;
        out.loss = -m0 + o->beta * ot_logistic_loss(log_ratio, 0, &slope);
        out.slope[0] = (-1 + o->beta * slope / doubt0) / n0;
        out.slope[1] = -o->beta * slope / doubt1 / n1;
    } else if (o->kind == OT_OBJECTIVE_KTO) {
        double sign = c->good ? 1 : -1, weight = c->good ? o->weights[0] : o->weights[1];
        double p = ot_sigmoid(sign * o->beta * (r0 - z));
        out.loss = weight * (1 - p);
        out.slope[0] = -weight * sign * o->beta * p * (1 - p);
    }
    if (o->sft_weight != 0) {
        out.loss -= o->sft_weight * l[0] / n0;
        out.slope[0] -= o->sft_weight / n0;
    }
    return out;
}

/* l: the log-probabilities of both answers, from the losses of the micro-batch's tokens. On the host. */
static inline void ot_compare_answers(const struct ot_comparison *c, const float *token_loss, double l[2]) {
    const int32_t ends[] = {c->begin, c->middle, c->end};
    for (int a = 0; a < 2; a++) {
        double sum = 0;
        for (int32_t t = ends[a]; t < ends[a + 1]; t++)
            sum += (double)token_loss[t];
        l[a] = -sum;
    }
}

/* KTO's z, from the log-probabilities [n][2] of the answers. */
static OT_OPS_INLINE double ot_compare_shift(const struct ot_objective *o, const struct ot_comparison *c,
                                             const double *l, int64_t n) {
    double sum = 0;
    if (o->kind != OT_OBJECTIVE_KTO || n == 0)
        return 0;
    for (int64_t i = 0; i < n; i++)
        sum += l[2 * i + 1] - (double)c[i].reference[1];
    return sum < 0 ? 0 : sum / (double)n; /* NaN stays NaN */
}

/* Sums over comparisons. */
enum ot_compare_sum {
    OT_COMPARE_LOSS,
    OT_COMPARE_CHOSEN,   /* rewards of chosen answers; KTO: of good ones */
    OT_COMPARE_REJECTED, /* rewards of rejected answers; KTO: of bad ones */
    OT_COMPARE_RIGHT,    /* comparisons whose chosen answer has the higher reward; KTO: good answers with a
                          * positive reward, and bad ones with a negative one */
    OT_COMPARE_GOOD,     /* chosen answers; KTO: good ones */
    OT_COMPARE_SUMS
};

static OT_OPS_INLINE void ot_compare_add(const struct ot_objective *o, const struct ot_comparison *c,
                                         const struct ot_comparison_loss *loss,
                                         double sums[OT_COMPARE_SUMS]) {
    bool alone = o->kind == OT_OBJECTIVE_KTO, good = !alone || c->good;
    double reward = loss->reward[0], other = alone ? 0 : loss->reward[1];
    sums[OT_COMPARE_LOSS] += loss->loss;
    sums[OT_COMPARE_CHOSEN] += good ? reward : 0;
    sums[OT_COMPARE_REJECTED] += good ? other : reward;
    sums[OT_COMPARE_RIGHT] += good ? reward > other : reward < other;
    sums[OT_COMPARE_GOOD] += good;
}

/* Means for people: of the rewards of chosen (good) and of rejected (bad) answers, and the share of right
 * comparisons. */
struct ot_compare_means {
    double chosen, rejected, right;
};
/* sums: of n comparisons, or their means with n = 1. */
static OT_OPS_INLINE struct ot_compare_means ot_compare_mean(const struct ot_objective *o,
                                                             const double sums[OT_COMPARE_SUMS], double n) {
    double good = sums[OT_COMPARE_GOOD], bad = o->kind == OT_OBJECTIVE_KTO ? n - good : n;
    struct ot_compare_means means = {good > 0 ? sums[OT_COMPARE_CHOSEN] / good : 0,
                                     bad > 0 ? sums[OT_COMPARE_REJECTED] / bad : 0,
                                     sums[OT_COMPARE_RIGHT] / n};
    return means;
}

/* The op: from the losses of a micro-batch's tokens to their weights. The comparisons are in order and do not
 * overlap; tokens outside of them get the weight 0. */
struct ot_compare {
    struct ot_objective objective;
    int64_t tokens, n; /* tokens of the micro-batch, and comparisons */
    const struct ot_comparison *comparisons;
    const float *token_loss; /* [tokens]; 0 where a token has no target */
    float *weights;          /* [tokens] out */
    double *answers;         /* [n][2] scratch: the log-probabilities */
    double *sums;            /* [OT_COMPARE_SUMS] out */
};

#endif
