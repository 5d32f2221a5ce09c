/* The turns of a dialogue with several ranks: rank 0 has the terminal, and hands each prompt to the others.
 * While the user thinks, it sends a sign every second: each wait for a rank has a deadline (--comm-timeout),
 * and a lost rank ends the dialogue soon. With one rank these functions only wait and generate. */
#ifndef OT_CLI_TURNS_H
#define OT_CLI_TURNS_H

#include <signal.h>

#include "src/train/generator.h"

/* On rank 0, before the first turn: stdin then has no buffer that ot_turns_await cannot see. */
void ot_turns_begin(const struct ot_session *session);
/* Waits until stdin has input or its end. open: the mask of signals while it waits; NULL: as it is. Returns
 * 1, or 0 after a signal. Errors: OT_E_IO, OT_E_COMM. */
int ot_turns_await(struct ot_session *session, const sigset_t *open);
/* Generates the answer to a turn, on all ranks. Errors: as ot_generate. */
int ot_turns_generate(struct ot_session *session, const struct ot_generation *generation,
                      struct ot_generated *out);
/* Ends the dialogue on the other ranks. rc: the dialogue's result. A failure (rc < 0) is not told here: the
 * end of the command tells it (ot_launch_leave). Returns rc, or the error of telling them. */
int ot_turns_end(struct ot_session *session, int rc);

/* On every other rank: takes part in all turns until rank 0 ends the dialogue. Errors: as ot_generate. */
int ot_turns_follow(struct ot_session *session);

#endif
