/* The default output directory of a run without --out: out/MODEL-DATA, or out/MODEL-bench for bench. The
 * name depends on the options alone, so that the same command finds its earlier output before it opens any
 * file. */
#ifndef OT_SAVING_OUT_NAME_H
#define OT_SAVING_OUT_NAME_H

#include <stddef.h>

#include "src/options/settings.h"

/* MODEL is the last component of --model; DATA is the last component of --data up to its first dot. Does
 * nothing if --out was given. Otherwise the options borrow text[bytes]. Errors: OT_E_USAGE (the name is too
 * long). */
int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes);

#endif
