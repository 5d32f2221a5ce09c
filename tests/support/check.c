#include "tests/support/check.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void check_failure(int rc, int code, const char *words, const char *expr, const char *file, int line) {
    if (rc != -code)
        fail_msg("%s:%d: %s returned %d, wanted -%d: %s", file, line, expr, rc, code, ot_error_text());
    if (!strstr(ot_error_text(), words))
        fail_msg("%s:%d: %s failed with \"%s\", which does not contain \"%s\"", file, line, expr,
                 ot_error_text(), words);
    assert_null(strchr(ot_error_text(), '\n'));
}

void check_close(const char *what, const float *got, const float *want, int64_t n, double absolute,
                 double relative) {
    int64_t worst = -1;
    double excess = 0;
    for (int64_t i = 0; i < n; i++) {
        double over = fabs((double)got[i] - want[i]) - (absolute + relative * fabs((double)want[i]));
        if (!(over <= 0) && (worst < 0 || over > excess || isnan(over))) {
            worst = i;
            excess = over;
        }
    }
    if (worst >= 0)
        fail_msg("%s[%lld of %lld] = %.9g, wanted %.9g", what, (long long)worst, (long long)n,
                 (double)got[worst], (double)want[worst]);
}

double relative_error(const float *got, const float *want, int64_t n) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

const char *shared_path(const char *relative) {
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", OT_TEST_SHARED, relative);
    return access(path, R_OK) == 0 ? path : NULL;
}

void skip_without_shared(const char *relative) {
    if (shared_path(relative))
        return;
    fprintf(stderr, "SKIP: real input %s/%s is absent\n", OT_TEST_SHARED, relative);
    exit(77);
}

char *make_folder(void) {
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/offload-train-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(path))
        fail_msg("cannot make a temporary folder from the pattern %s", path);
    char *folder = strdup(path);
    assert_non_null(folder);
    return folder;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info, (void)type, (void)walk;
    return remove(path);
}

void remove_folder(char *folder) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

void write_file(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void write_under(const char *root, const char *path, const char *text) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s/%s", root, path);
    for (char *slash = folder + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(folder, 0777);
        *slash = '/';
    }
    write_file(root, path, text, strlen(text));
}

bool tests_are_brief(void) {
    return getenv("OT_TEST_BRIEF") != NULL;
}

bool tests_are_few(void) {
    return tests_are_brief() && !getenv("OT_TEST_SLOW");
}

bool tests_are_for_races(void) {
#ifdef __SANITIZE_THREAD__
    return tests_are_few();
#else
    return false;
#endif
}

uint64_t mix_bits(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

void *aligned_bytes(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    assert_non_null(memory);
    return memory;
}

void fill_bytes(void *memory, size_t bytes, uint64_t seed) {
    uint64_t *words = memory;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = mix_bits(seed + i);
}

pid_t check_start_child(int (*check)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(check());
    return child;
}

void check_end_child(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

void check_in_child(int (*check)(void)) {
    check_end_child(check_start_child(check));
}
