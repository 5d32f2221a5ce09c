/* --config FILE: the first byte is the command, the rest is the file. If the file is accepted, the record of
 * the run must repeat the run. */
#include "src/base/error.h"
#include "src/options/options.h"
#include "tests/fuzz/repeats.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct ot_options options;
    if (size == 0)
        return 0;
    const char *command = ot_command_name((enum ot_command)(data[0] % OT_COMMAND_COUNT));
    char *words[] = {(char *)(uintptr_t)command, (char *)(uintptr_t) "--config",
                     (char *)(uintptr_t)fuzz_file(data + 1, size - 1)};
    int rc = ot_options_parse(3, words, &options);
    if (rc < 0)
        fuzz_check_refusal(rc, rc == -OT_E_INPUT ? OT_E_INPUT : OT_E_USAGE);
    else
        fuzz_check_repeats(&options);
    ot_options_free(&options);
    return 0;
}
