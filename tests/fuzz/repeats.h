/* Shared by the targets of options: the record of a run must repeat the run. */
#ifndef OT_TESTS_FUZZ_REPEATS_H
#define OT_TESTS_FUZZ_REPEATS_H

struct ot_options;

/* The record of options (ot_options_put_json) must be accepted as a --config FILE, and every option must then
 * have the same value again. */
void fuzz_check_repeats(const struct ot_options *options);

#endif
