#include <signal.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/cli/help.h"

static int run(struct ot_options *options) {
    static int (*const commands[OT_COMMAND_COUNT])(struct ot_options *) = {
        [OT_COMMAND_TRAIN] = ot_command_train,
        [OT_COMMAND_GENERATE] = ot_command_generate,
        [OT_COMMAND_EVAL] = ot_command_eval,
        [OT_COMMAND_TOKENIZE] = ot_command_tokenize,
    };
    if (options->help || options->version) {
        if (options->help)
            ot_help_print(stdout, options->command);
        else
            ot_help_print_version(stdout);
        return 0;
    }
    if (options->quiet)
        ot_log_set_level(OT_LOG_WARN);
    return commands[options->command](options);
}

int main(int argc, char **argv) {
    struct ot_options options;
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error that we report, not the end */
    int rc = ot_options_parse(argc - 1, argv + 1, &options);
    if (rc == 0)
        rc = run(&options);
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        rc = ot_fail(OT_E_IO, "stdout: cannot write the result");
    ot_options_free(&options);
    if (rc < 0)
        fprintf(stderr, "error: %s\n", ot_error_text());
    return -rc;
}
