/* Chooses the next token from logits. A pure function of its arguments: equal logits go to the lowest id. */
#ifndef OT_TRAIN_SAMPLER_H
#define OT_TRAIN_SAMPLER_H

#include <stdint.h>

struct ot_sampler; /* scratch for one vocabulary; one thread */

/* Errors: OT_E_BUDGET. */
int ot_sampler_open(int64_t vocab, struct ot_sampler **out);
void ot_sampler_close(struct ot_sampler *sampler); /* NULL is fine */

/* temperature 0: the largest logit. Otherwise draws with `unit`, uniform in [0, 1), from the softmax of
 * logits / temperature, limited to the most likely tokens that together reach top_p (at least one). Errors:
 * OT_E_NUMERIC (a logit is not a number). */
int ot_sampler_pick(struct ot_sampler *sampler, const float *logits, double temperature, double top_p,
                    double unit, int32_t *id);

#endif
