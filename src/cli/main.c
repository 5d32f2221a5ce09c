#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/options/cure.h"
#include "src/options/help.h"

static const double slow_reader_seconds =
    5; /* at the end, a reader that takes nothing is waited for as long */

static int run(const struct ot_options *options) {
    static int (*const commands[OT_COMMAND_COUNT])(const struct ot_options *) = {
        [OT_COMMAND_TRAIN] = ot_command_train,   [OT_COMMAND_GENERATE] = ot_command_generate,
        [OT_COMMAND_EVAL] = ot_command_eval,     [OT_COMMAND_TOKENIZE] = ot_command_tokenize,
        [OT_COMMAND_PROBE] = ot_command_probe,   [OT_COMMAND_PLAN] = ot_command_plan,
        [OT_COMMAND_BENCH] = ot_command_bench,   [OT_COMMAND_VERIFY] = ot_command_verify,
        [OT_COMMAND_EXPORT] = ot_command_export,
    };
    if (options->help || options->version) {
        if (options->help)
            ot_help_print(stdout, options->command);
        else
            ot_help_print_version(stdout);
        return 0;
    }
    /* A closed pipe ends a filter, as everywhere; training does not die of a reader that went away. */
    if (options->command == OT_COMMAND_TRAIN)
        signal(SIGPIPE, SIG_IGN);
    /* Writing beyond `ulimit -f` fails then, like any other write, instead of ending the process. */
    signal(SIGXFSZ, SIG_IGN);
    if (options->quiet)
        ot_log_set_level(OT_LOG_WARN);
    if (options->command == OT_COMMAND_TRAIN || options->command == OT_COMMAND_BENCH ||
        options->command == OT_COMMAND_PROBE)
        OT_TRY(ot_log_start()); /* what runs for long waits for nobody who reads its log */
    return commands[options->command](options);
}

/* A standard stream that the caller closed would be the next file that is opened: a line for stderr would
 * land in the model. /dev/null, opened for the other direction, fails where the closed one would have. */
static void hold_standard_streams(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
            return; /* no /dev/null here: nothing better to put there */
}

/* offload-train help [TOPIC]: no command, for it has no options. */
static int help(int n, char **words) {
    if (n > 1)
        return ot_fail(OT_E_USAGE, "help takes one topic or command; '%.60s' is one more", words[1]);
    return ot_help_print_topic(stdout, n ? words[0] : NULL);
}

int main(int argc, char **argv) {
    struct ot_options options = {0};
    hold_standard_streams();
    bool is_help = argc > 1 && strcmp(argv[1], "help") == 0;
    int rc = is_help ? help(argc - 2, argv + 2) : ot_options_parse(argc - 1, argv + 1, &options);
    if (rc == 0 && !is_help)
        rc = run(&options);
    if ((rc == 0 || rc == -OT_E_STOPPED) && (fflush(stdout) != 0 || ferror(stdout)))
        rc = ot_fail(OT_E_IO, "stdout: cannot write the result");
    ot_options_free(&options);
    if (rc < 0 && rc != -OT_E_STOPPED)
        ot_log(OT_LOG_ERROR, "%s", ot_cure_text());
    ot_log_finish(slow_reader_seconds);
    if (rc == -OT_E_STALL) /* exit would wait for what hangs */
        _exit(OT_E_STALL);
    return -rc;
}
