/* Before the first step the ranks of a run compare what must be the same on all of them: the options, the
 * model, its weights, the rows. They also check that no two ranks use one GPU. A difference is an error on
 * all ranks, in one sentence that names the ranks and both values. The version of the program is compared
 * when the ranks connect (offload/comm/world.h).
 */
#ifndef OT_TRAIN_AGREEMENT_H
#define OT_TRAIN_AGREEMENT_H

#include "src/train/run_identity.h"

/* Collective; does nothing with one rank. identity: with its options. Ranks whose devices compute with other
 * libraries or instruction sets may differ in the last digits: that is an error with --deterministic world,
 * and else a warning. Errors: OT_E_USAGE (they differ), OT_E_COMM, OT_E_BUDGET. */
int ot_agree_on_run(struct ot_session *session, const struct ot_run_identity *identity);
/* Once the session is started: compares checksums of all weights that it read from files. Before, only a
 * sample of the base was compared, which tells revisions of a model apart before long work. Errors: as
 * ot_agree_on_run. */
int ot_agree_on_weights(const struct ot_session *session);

#endif
