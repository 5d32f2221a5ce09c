/* Helpers for every C test: cmocka with its headers, comparisons that give a reason, real inputs, and
 * temporary folders. */
#ifndef OT_TESTS_CHECK_H
#define OT_TESTS_CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <setjmp.h>
#include <cmocka.h>

#include "src/base/error.h"

/* The call must succeed. If it fails, prints the error record and fails the test. */
#define check_ok(expr)                                                                                       \
    do {                                                                                                     \
        int check_rc_ = (expr);                                                                              \
        if (check_rc_ < 0)                                                                                   \
            fail_msg("%s: %d: %s", #expr, check_rc_, ot_error_text());                                       \
    } while (0)

/* The call must fail with the code `code`, and the error's sentence must contain `words`. */
#define check_fails(expr, code, words) check_failure((expr), (code), (words), #expr, __FILE__, __LINE__)
void check_failure(int rc, int code, const char *words, const char *expr, const char *file, int line);

/* Requires |got - want| <= absolute + relative * |want| for every element. Prints the worst element. NaN
 * fails. */
void check_close(const char *what, const float *got, const float *want, int64_t n, double absolute,
                 double relative);
/* Norm of (got - want) divided by the norm of `want`. For whole tensors whose small entries have no correct
 * digits of their own. */
double relative_error(const float *got, const float *want, int64_t n);

/* Path of a real input ("models/stories260k"). NULL if the folder is absent: then call skip_shared() and
 * return. The string is static; the fourth next call overwrites it. */
const char *shared_path(const char *relative);
/* For main(): if the real inputs are absent, prints the reason and exits with 77 (skipped). */
void skip_without_shared(const char *relative);

/* True if tests should run fewer cases: on the emulated GPU, on which a run takes a hundred times longer
 * (tests/cuda/meson.build), and under sanitizers (scripts/test). */
bool tests_are_brief(void);
/* True if they are brief and OT_TEST_SLOW is not set: then fewer still, because sanitizers look for errors of
 * memory and for races, and the release build compares the bits of all cases. */
bool tests_are_few(void);
/* True if they are few and this build looks for races alone (ThreadSanitizer). Then cases are left out whose
 * threads do what the threads of another case do, such as other formats of numbers: the build with
 * AddressSanitizer runs them. */
bool tests_are_for_races(void);

/* A pseudo-random number that depends on x alone (splitmix64). */
uint64_t mix_bits(uint64_t x);
/* Memory aligned to 4096 bytes, as O_DIRECT needs it. The caller frees it. */
void *aligned_bytes(size_t bytes);
/* Fills the memory with pseudo-random words of 8 bytes that depend on the seed alone. `bytes` is a multiple
 * of 8. */
void fill_bytes(void *memory, size_t bytes, uint64_t seed);

/* Makes an empty temporary folder. The caller passes the string to remove_folder(). */
char *make_folder(void);
void remove_folder(char *folder); /* also frees the string */
void write_file(const char *folder, const char *name, const void *data, size_t bytes);
/* Writes a text file at root/path, and makes the folders of the path. */
void write_under(const char *root, const char *path, const char *text);

/* Runs the check in a child process, so that its resource limits and signal masks do not touch the test.
 * `check` returns 0, or the number of the condition that failed. */
void check_in_child(int (*check)(void));
/* The same for checks that run at the same time: end each child that was started. */
pid_t check_start_child(int (*check)(void));
void check_end_child(pid_t child);

#endif
