/* The parts of generation that generator.c and generator_ranks.c know of each other. */
#ifndef OT_TRAIN_GENERATOR_STATE_H
#define OT_TRAIN_GENERATOR_STATE_H

#include "src/train/generator.h"

/* The meetings of ranks that generate texts of their own, at different speeds (generator_ranks.c). */
struct ot_meetings {
    struct ot_session *session;
    int passes; /* that this rank has made */
};
/* Call it after each pass. Returns 1 if another rank has failed, so that this one need not go on, else 0.
 * Errors: OT_E_COMM. */
int ot_meetings_pass(struct ot_meetings *meetings);

/* Continues n prompts in groups (ot_generate_all). meetings: NULL: no rank waits for this one's texts.
 * Returns 1 if another rank has failed. */
int ot_generate_groups(struct ot_session *session, const struct ot_generation *generations, int n,
                       struct ot_meetings *meetings, struct ot_generated *out);
/* Collective, for ranks whose passes need no other rank: rank r continues every W-th prompt, from prompt r
 * on. All ranks get all texts. */
int ot_generate_shared(struct ot_session *session, const struct ot_generation *generations, int n,
                       struct ot_generated *out);

/* Hands a finished text to the generation's `finished`. */
int ot_generated_finish(const struct ot_generation *generation, const struct ot_generated *generated);

#endif
