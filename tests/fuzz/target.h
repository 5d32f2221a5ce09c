/* What the fuzz targets share.
 *
 * A target is one file target_NAME.c with libFuzzer's entry point. With clang and -Dfuzz=true it becomes a
 * libFuzzer program (scripts/fuzz runs them all); in every build it is a test as well, in which replay.c runs
 * the committed corpus (tests/fuzz/corpus/NAME) and a fixed number of mutations of it.
 *
 * A target looks for more than crashes: whatever the bytes, what is refused is refused in one clean line, and
 * what is accepted keeps the promises of its header (it prints, parses again and is the same; it lies within
 * the file). Targets write no files, start no threads and print nothing, so that they are fast.
 */
#ifndef OT_TESTS_FUZZ_TARGET_H
#define OT_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program where a promise is broken. */
#define FUZZ_CHECK(promise)                                                                                  \
    do {                                                                                                     \
        if (!(promise))                                                                                      \
            fuzz_broken(__FILE__, __LINE__, #promise);                                                       \
    } while (0)
_Noreturn void fuzz_broken(const char *file, int line, const char *promise);

/* A call failed, and was allowed to fail with this code alone: its sentence is one line of UTF-8, not empty,
 * with nothing in it that drives a terminal. */
void fuzz_check_refusal(int rc, int code);

/* The path of a file with these bytes, which lies in memory; until the next call. */
const char *fuzz_file(const void *data, size_t size);

#endif
