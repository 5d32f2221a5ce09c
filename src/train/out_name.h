/* The default output directory of a run without --out: out/MODEL-DATA, or out/MODEL-bench for bench. The name
 * depends on the options, so that the same command finds its earlier output.
 *
 * TWO MODELS OF ONE NAME. --model v1/my-model and --model v2/my-model have the same MODEL. If out/MODEL-DATA
 * has a run of other weights, a run gets out/MODEL-DATA-PRINT, where PRINT is the fingerprint of its base
 * (src/session/base_print.h) in 8 hexadecimal digits. The fingerprint depends on the weights alone, so a
 * moved model keeps its output. A run is found under either name as long as it is there. */
#ifndef OT_TRAIN_OUT_NAME_H
#define OT_TRAIN_OUT_NAME_H

#include <stddef.h>

#include "src/options/settings.h"

struct ot_world;

/* MODEL is the last component of --model; DATA is the last component of --data up to its first dot. Does
 * nothing if --out was given. Otherwise the options borrow text[bytes]. Errors: OT_E_USAGE (the name is too
 * long). */
int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes);
/* The same for a run that trains, which has no output with --no-save: tells two models of one name apart, and
 * logs that. Rank 0 decides, and all ranks call it. world NULL: one rank. Errors: also OT_E_COMM,
 * OT_E_BUDGET. */
int ot_out_name_find(struct ot_settings *settings, struct ot_world *world, char *text, size_t bytes);

#endif
