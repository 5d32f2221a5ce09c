/* Helpers for the fuzz targets.
 *
 * A target is a file target_NAME.c with libFuzzer's entry point. With clang and -Dfuzz=true it becomes a
 * libFuzzer program (scripts/fuzz runs them all). In every build it is a test too: replay.c runs the
 * committed corpus (tests/fuzz/corpus/NAME) and a fixed number of mutations of it.
 *
 * A target finds more than crashes. For any bytes, a refusal must be one clean line, and accepted input must
 * keep the promises of its header: it prints, parses again and is the same, or it lies within the file.
 * Targets write no files, start no threads and print nothing, so that they are fast. */
#ifndef OT_TESTS_FUZZ_TARGET_H
#define OT_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program if the promise is broken. */
#define FUZZ_CHECK(promise)                                                                                  \
    do {                                                                                                     \
        if (!(promise))                                                                                      \
            fuzz_broken(__FILE__, __LINE__, #promise);                                                       \
    } while (0)
_Noreturn void fuzz_broken(const char *file, int line, const char *promise);

/* Checks the error of a call that may fail with this code alone: one line of UTF-8, not empty, without
 * control characters of a terminal. */
void fuzz_check_refusal(int rc, int code);

/* The path of a file in memory with these bytes. Valid until the next call. */
const char *fuzz_file(const void *data, size_t size);

#endif
