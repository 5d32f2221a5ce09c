/* The start of the program: reads the options, runs the command, and turns its error into an exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/device.h"
#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/cli/build_facts.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/options/help.h"
#include "src/options/options.h"

/* At the end, the longest wait for a reader of the log that takes nothing. */
static const double slow_reader_seconds = 5;

enum { LEAST_STACK_BYTES = 512 << 10 };

/* The facts of the build, as one object. "cuda" is null if the program has no cuda device. */
static int print_build(void) {
    char build[OT_BUILD_ID_BYTES];
    struct ot_json_writer w = {.indent = 0};
    struct ot_json *libraries;
    static const char text[] = "{" OT_BUILD_LIBRARIES "}";
    OT_TRY(ot_json_parse(text, sizeof text - 1, "the libraries of the build", &libraries));
    ot_build_id(build);
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_json_put_text(&w, "build", build);
    ot_json_put_text(&w, "compiler", OT_BUILD_COMPILER);
    if (ot_device_no_cuda()) {
        ot_json_put_null(&w, "cuda");
    } else {
        ot_json_begin_object(&w, "cuda");
        ot_json_put_text(&w, "toolkit", OT_BUILD_CUDA);
        ot_json_put_text(&w, "gpu_arch", OT_BUILD_GPU_ARCH);
        ot_json_end_object(&w);
    }
    ot_json_put_value(&w, "libraries", libraries);
    ot_json_end_object(&w);
    ot_json_free(libraries);
    return ot_json_print(&w);
}

static void print_version(void) {
    const char *no_cuda = ot_device_no_cuda();
    printf("offload-train %s\n%s\n", OT_VERSION, no_cuda ? no_cuda : "devices: cpu, cuda");
}

static int print_help(const struct ot_options *options) {
    if (strcmp(options->help, "brief") == 0)
        ot_help_print_brief(stdout, options->command);
    else if (strcmp(options->help, "all") == 0)
        ot_help_print_all(stdout, options->command);
    else
        return ot_help_print_topic(stdout, options->help);
    return 0;
}

static int run(const struct ot_options *options, char **argv, int *exit_code) {
    static int (*const commands[OT_COMMAND_COUNT])(const struct ot_options *) = {
        [OT_COMMAND_TRAIN] = ot_command_train,       [OT_COMMAND_GENERATE] = ot_command_generate,
        [OT_COMMAND_EVAL] = ot_command_eval,         [OT_COMMAND_TOKENIZE] = ot_command_tokenize,
        [OT_COMMAND_PROBE] = ot_command_probe,       [OT_COMMAND_PLAN] = ot_command_plan,
        [OT_COMMAND_BENCH] = ot_command_bench,       [OT_COMMAND_VERIFY] = ot_command_verify,
        [OT_COMMAND_EXPORT] = ot_command_export,     [OT_COMMAND_MERGE] = ot_command_merge,
        [OT_COMMAND_QUANTIZE] = ot_command_quantize, [OT_COMMAND_COMM_TEST] = ot_command_comm_test,
        [OT_COMMAND_DOWNLOAD] = ot_command_download, [OT_COMMAND_MIGRATE] = ot_command_migrate,
        [OT_COMMAND_WATCH] = ot_command_watch,       [OT_COMMAND_REPORT] = ot_command_report,
    };
    if (options->help)
        return print_help(options);
    if (options->version && options->json)
        return print_build();
    if (options->version) {
        print_version();
        return 0;
    }
    /* A closed pipe ends the other commands, as usual for filters. A run continues when its reader ends. */
    if (options->command == OT_COMMAND_TRAIN)
        signal(SIGPIPE, SIG_IGN);
    /* A write beyond `ulimit -f` then fails like any other write, instead of ending the process. */
    signal(SIGXFSZ, SIG_IGN);
    if (options->quiet)
        ot_log_set_level(OT_LOG_WARN);
    int launched = ot_launch_command(options, argv, exit_code);
    if (launched != 0)
        return launched < 0 ? launched : 0;
    if (options->command == OT_COMMAND_TRAIN || options->command == OT_COMMAND_BENCH ||
        options->command == OT_COMMAND_PROBE)
        OT_TRY(ot_log_start()); /* long commands must not wait for the reader of their log */
    return commands[options->command](options);
}

/* If the caller closed a standard stream, the next opened file would get its descriptor, and a line for
 * stderr could be written into the model. So /dev/null takes its place. It is opened for the other direction,
 * so that reads and writes fail as on the closed stream. */
static void hold_standard_streams(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
            return; /* there is no /dev/null, and nothing better to open */
}

/* offload-train help [TOPIC]. It is not in the table of commands because it has no options. */
static int help(int n, char **words) {
    if (n > 1)
        return ot_fail(OT_E_USAGE, "help takes one topic or command; remove '%.60s'", words[1]);
    return ot_help_print_topic(stdout, n ? words[0] : NULL);
}

/* With less stack the main thread would end in SIGSEGV, without a word. Other threads have stacks of
 * their own (src/base/thread.h). */
static int check_stack(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) < 0 || limit.rlim_cur >= LEAST_STACK_BYTES)
        return 0;
    return ot_fail(OT_E_BUDGET,
                   "ulimit -s %lld: the stack is limited to less than %d KiB; use ulimit -s 8192",
                   (long long)(limit.rlim_cur >> 10), LEAST_STACK_BYTES >> 10);
}

int main(int argc, char **argv) {
    struct ot_options options = {0};
    int exit_code = 0;
    hold_standard_streams();
    bool is_help = argc > 1 && strcmp(argv[1], "help") == 0;
    int rc = check_stack();
    if (rc == 0)
        rc = is_help ? help(argc - 2, argv + 2)
                     : ot_options_parse_ranked(argc - 1, argv + 1, ot_launch_count, &options);
    bool is_early = rc < 0 && !is_help; /* before the ranks are connected */
    if (rc == 0 && !is_help)
        rc = run(&options, argv, &exit_code);
    if ((rc == 0 || rc == -OT_E_STOPPED) && (fflush(stdout) != 0 || ferror(stdout)))
        rc = ot_fail(OT_E_IO, "stdout: cannot write the result");
    if (rc < 0 && rc != -OT_E_STOPPED)
        ot_log(OT_LOG_ERROR, "%s", ot_cure_text());
    if (is_early)
        ot_launch_tell(argc - 1, argv + 1, &options, rc);
    ot_options_free(&options);
    ot_log_finish(slow_reader_seconds);
    if (rc == -OT_E_STALL) /* exit would wait for the thread that hangs */
        _exit(OT_E_STALL);
    return rc < 0 ? -rc : exit_code;
}
