/* What every test needs: cmocka with its headers, comparisons with a reason, real inputs, and folders to
 * write in. */
#ifndef OT_TESTS_CHECK_H
#define OT_TESTS_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "src/base/error.h"

/* A call that must succeed; prints the error record otherwise. */
#define check_ok(expr)                                                                                       \
    do {                                                                                                     \
        int check_rc_ = (expr);                                                                              \
        if (check_rc_ < 0)                                                                                   \
            fail_msg("%s: %d: %s", #expr, check_rc_, ot_error_text());                                       \
    } while (0)

/* A call that must fail with -code and a sentence that contains `words`. */
#define check_fails(expr, code, words) check_failure((expr), (code), (words), #expr, __FILE__, __LINE__)
void check_failure(int rc, int code, const char *words, const char *expr, const char *file, int line);

/* |got - want| <= absolute + relative * |want| for each; prints the worst. NaN fails. */
void check_close(const char *what, const float *got, const float *want, int64_t n, double absolute,
                 double relative);
/* Norm of the difference over norm of `want`; for whole tensors whose small entries have no digits of their
 * own. */
double relative_error(const float *got, const float *want, int64_t n);

/* Path of a real input ("models/stories260k"), or NULL where the folder is absent: then skip_shared() and
 * return. The string is static, overwritten by the fourth next call. */
const char *shared_path(const char *relative);
/* In main(): exits 77 with the reason, loudly, when the real inputs are absent. */
void skip_without_shared(const char *relative);

/* A number that looks random and follows from x: splitmix64. */
uint64_t mix_bits(uint64_t x);
/* Memory at a multiple of 4096, as direct I/O wants it; the caller frees it. */
void *aligned_bytes(size_t bytes);
/* Fills whole words of 8 bytes with numbers that follow from the seed. */
void fill_bytes(void *memory, size_t bytes, uint64_t seed);

/* An empty folder of the test's own, removed by remove_folder(). The caller frees the string. */
char *make_folder(void);
void remove_folder(char *folder); /* also frees it */
void write_file(const char *folder, const char *name, const void *data, size_t bytes);
/* The same for text at root/path, whose folders are made. */
void write_under(const char *root, const char *path, const char *text);

/* Runs the check in a child, whose limits and masks are its own; what it returns is 0, or the number of what
 * failed in it. */
void check_in_child(int (*check)(void));

#endif
