/* One program that holds many tests. `PROGRAM NAME` runs the test NAME in this process; `PROGRAM --list`
 * prints the names. OT_TESTS is X(name) for each test; meson.build compiles each test's main() under the name
 * test_main_NAME.
 *
 * Why: a test program that links a whole device, or that is sent to another machine, takes several MB. One
 * such program is linked and packed instead of twenty. */
#include <stdio.h>
#include <string.h>

#define X(name) int test_main_##name(void);
OT_TESTS
#undef X

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
#define X(name) {#name, test_main_##name},
    OT_TESTS
#undef X
};
enum { N_TESTS = sizeof tests / sizeof *tests };

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (int i = 0; i < N_TESTS; i++)
            puts(tests[i].name);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    for (int i = 0; argc == 2 && i < N_TESTS; i++)
        if (strcmp(argv[1], tests[i].name) == 0)
            return tests[i].run();
    fprintf(stderr, "usage: %s NAME, or %s --list for the names of the tests\n", argv[0], argv[0]);
    return 2;
}
