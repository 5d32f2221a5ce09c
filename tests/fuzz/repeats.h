/* What the targets of options share: a run's record repeats the run. */
#ifndef OT_TESTS_FUZZ_REPEATS_H
#define OT_TESTS_FUZZ_REPEATS_H

struct ot_options;

/* The record of options (ot_options_put_json), as a --config FILE, is accepted, and every option in it has
 * the same value again. */
void fuzz_check_repeats(const struct ot_options *options);

#endif
