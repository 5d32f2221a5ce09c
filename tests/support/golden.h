/* Golden vectors: small named arrays that scripts/golden made with other programs, such as PyTorch, committed
 * under tests/golden.
 *
 * File: the line "OTGOLD1", one line "NAME DTYPE D0xD1x... OFFSET" per array (DTYPE f32, f64, i32, i64, u8;
 * OFFSET in bytes from the data's start, 8-byte aligned), an empty line, then the data, little-endian.
 * scripts/golden/goldenfile.py writes it.
 */
#ifndef OT_TESTS_GOLDEN_H
#define OT_TESTS_GOLDEN_H

#include <stdbool.h>
#include <stdint.h>

struct ot_golden;

/* Opens tests/golden/NAME, or $OT_TEST_GOLDEN/NAME on a machine without the repository. Fails the test if the
 * file is missing or broken. */
struct ot_golden *golden_open(const char *name);
void golden_close(struct ot_golden *golden);
bool golden_has(const struct ot_golden *golden, const char *array);
/* count may be NULL */
const float *golden_f32(const struct ot_golden *golden, const char *array, int64_t *count);
const double *golden_f64(const struct ot_golden *golden, const char *array, int64_t *count);
const int32_t *golden_i32(const struct ot_golden *golden, const char *array, int64_t *count);
const int64_t *golden_i64(const struct ot_golden *golden, const char *array, int64_t *count);
const char *golden_text(const struct ot_golden *golden, const char *array, int64_t *bytes); /* u8 */
int64_t golden_dim(const struct ot_golden *golden, const char *array, int dim); /* 1 past the last */

#endif
