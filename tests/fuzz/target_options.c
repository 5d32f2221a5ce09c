/* The command line: words that end with a line feed. If it is accepted, the record of the run must repeat the
 * run. Only lines of UTF-8 are tested, because JSON holds nothing else. */
#include <string.h>

#include "src/base/error.h"
#include "src/base/utf8.h"
#include "src/options/options.h"
#include "tests/fuzz/repeats.h"
#include "tests/fuzz/target.h"

enum { MAX_WORDS = 64, MAX_BYTES = 4096 };

static bool is_utf8(const uint8_t *data, size_t size) {
    size_t length = 1;
    for (size_t i = 0; i < size && length > 0; i += length)
        length = ot_utf8_character((const char *)data + i, size - i);
    return length > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct ot_options options;
    char text[MAX_BYTES + 1], *words[MAX_WORDS];
    int n = 0;
    static const char *const openers[] = {"config", "deepspeed", "hf-args", "hf_args", "llama", "axolotl"};
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++)
        if (size > MAX_BYTES || memmem(data, size, openers[i], strlen(openers[i])))
            return 0; /* these would open any file; target_config.c and target_migrate.c test them */
    memcpy(text, data, size);
    text[size] = '\0';
    char *rest = text, *word;
    while (n < MAX_WORDS && (word = strsep(&rest, "\n")))
        words[n++] = word;
    int rc = ot_options_parse(n, words, &options);
    if (rc < 0)
        fuzz_check_refusal(rc, OT_E_USAGE);
    else if (!options.help && !options.version && is_utf8(data, size))
        fuzz_check_repeats(&options);
    ot_options_free(&options);
    return 0;
}
