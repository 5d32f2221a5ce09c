/* The output directory that a run gets where --out does not say: out/MODEL-DATA, for bench out/MODEL-bench.
 * It depends on the options alone, so that the same command finds what it left there before anything is
 * opened.
 */
#ifndef OT_SAVING_OUT_NAME_H
#define OT_SAVING_OUT_NAME_H

#include <stddef.h>

#include "src/options/settings.h"

/* MODEL is the last part of --model's name or directory, DATA that of --data up to its first dot. Does
 * nothing where --out was given; else text[bytes] is borrowed by the options. Errors: OT_E_USAGE: no name
 * fits. */
int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes);

#endif
