#include "src/base/error.h"
#include "src/cli/command.h"
int ot_command_watch(const struct ot_options *options) {
    (void)options;
    return ot_fail(OT_E_INTERNAL, "not yet");
}
