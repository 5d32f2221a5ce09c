/* The places of the Hugging Face cache by the environment, its commits, links and locks. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "src/hub/cache.h"
#include "src/hub/hub.h"

static char *folder;
static char repository[PATH_MAX];
static const struct ot_hub_name name = {.kind = OT_HUB_MODEL, .id = "org/name", .revision = "main"};

static const char *below(const char *path) {
    static char text[4][PATH_MAX];
    static int next;
    char *to = text[next++ % 4];
    snprintf(to, PATH_MAX, "%s/%s", folder, path);
    return to;
}

static int open_folder(void **state) {
    static const char *const variables[] = {"HF_HUB_CACHE",        "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                            "XDG_CACHE_HOME",      "HF_TOKEN_PATH",         "HF_HUB_OFFLINE",
                                            "TRANSFORMERS_OFFLINE"};
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    folder = make_folder();
    setenv("HOME", folder, 1);
    snprintf(repository, sizeof repository, "%s/repository", folder);
    return 0;
}

static int drop_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

static void check_root(const char *want) {
    char root[PATH_MAX];
    assert_true(ot_hub_cache_root(root));
    assert_string_equal(root, want);
}

static void places(void **state) {
    (void)state;
    char path[PATH_MAX];
    check_root(below(".cache/huggingface/hub"));
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    check_root("/xdg/huggingface/hub");
    setenv("HF_HOME", "~/hf", 1);
    check_root(below("hf/hub"));
    assert_true(ot_hub_token_path(path));
    assert_string_equal(path, below("hf/token"));
    setenv("HF_HOME", "~", 1);
    check_root(below("hub"));
    setenv("HF_HOME", "~other/x$HOME/${HOME}$nothing_of_this_name${HOME", 1);
    char want[PATH_MAX];
    snprintf(want, sizeof want, "~other/x%s/%s$nothing_of_this_name${HOME/hub", folder, folder);
    check_root(want);
    setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
    check_root("/old");
    setenv("HF_HUB_CACHE", "/new", 1);
    check_root("/new");
    setenv("HF_TOKEN_PATH", "/t", 1);
    assert_true(ot_hub_token_path(path));
    assert_string_equal(path, "/t");
    assert_true(ot_hub_cache_repository(&name, path));
    assert_string_equal(path, "/new/models--org--name");
    const struct ot_hub_name rows = {.kind = OT_HUB_DATASET, .id = "org/name"};
    assert_true(ot_hub_cache_repository(&rows, path));
    assert_string_equal(path, "/new/datasets--org--name");
    setenv("HF_HUB_CACHE", "", 1);
    unsetenv("HUGGINGFACE_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_false(ot_hub_cache_root(path));
    assert_false(ot_hub_home(path));
    char *huge = malloc(2 * PATH_MAX);
    memset(huge, 'x', 2 * PATH_MAX - 1);
    huge[2 * PATH_MAX - 1] = '\0';
    setenv("HF_HOME", huge, 1);
    assert_false(ot_hub_cache_root(path));
    free(huge);
}

static void offline(void **state) {
    (void)state;
    static const struct {
        const char *first, *second;
        bool is_offline;
    } cases[] = {{"1", "", true}, {"On", "0", true}, {"yes", "", true}, {"TRUE", "", true}, {"0", "1", false},
                 {"", "1", true}, {"2", "", false},  {"", "", false},   {"", "0", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("HF_HUB_OFFLINE", cases[i].first, 1);
        setenv("TRANSFORMERS_OFFLINE", cases[i].second, 1);
        assert_int_equal(ot_hub_is_offline(), cases[i].is_offline);
    }
}

static void check_commit(const char *revision, enum ot_hub_commit want, const char *commit) {
    struct ot_hub_name asked = name;
    char text[OT_HUB_COMMIT_BYTES];
    snprintf(asked.revision, sizeof asked.revision, "%s", revision);
    assert_int_equal(ot_hub_cache_commit(&asked, repository, text), want);
    if (commit)
        assert_string_equal(text, commit);
}

static void commits(void **state) {
    (void)state;
    static const char one[] = "0123456789abcdef0123456789abcdef01234567";
    check_commit("main", OT_HUB_COMMIT_NONE, NULL);
    check_commit(one, OT_HUB_COMMIT_KNOWN, one);
    write_under(folder, "repository/snapshots/only/x", "");
    check_commit("main", OT_HUB_COMMIT_KNOWN, "only");
    check_commit("v1", OT_HUB_COMMIT_NONE, NULL);
    write_under(folder, "repository/snapshots/other/x", "");
    check_commit("main", OT_HUB_COMMIT_SEVERAL, NULL);
    check_ok(ot_hub_cache_put_ref(repository, "main", one));
    check_ok(ot_hub_cache_put_ref(repository, "main", one));
    check_commit("main", OT_HUB_COMMIT_KNOWN, one);
    check_ok(ot_hub_cache_put_ref(repository, "refs/pr/1", "b"));
    check_ok(ot_hub_cache_put_ref(repository, "refs/pr/1", "c"));
    check_commit("refs/pr/1", OT_HUB_COMMIT_KNOWN, "c");
    check_ok(ot_hub_cache_put_ref(repository, one, one)); /* a commit needs no ref */
    assert_int_equal(access(below("repository/refs/0123456789abcdef0123456789abcdef01234567"), F_OK), -1);
    write_under(folder, "repository/refs/evil", "../../outside");
    check_commit("evil", OT_HUB_COMMIT_NONE, NULL);
}

static void links(void **state) {
    (void)state;
    char target[PATH_MAX] = "";
    write_under(folder, "repository/blobs/abc", "content");
    check_ok(ot_hub_cache_link(repository, "c", "config.json", "abc"));
    check_ok(ot_hub_cache_link(repository, "c", "a/b/rows.txt", "abc"));
    assert_true(readlink(below("repository/snapshots/c/config.json"), target, sizeof target - 1) > 0);
    assert_string_equal(target, "../../blobs/abc");
    assert_int_equal(access(below("repository/snapshots/c/a/b/rows.txt"), R_OK), 0);
    write_under(folder, "repository/blobs/def", "new");
    check_ok(ot_hub_cache_link(repository, "c", "config.json", "def"));
    char *text;
    size_t bytes;
    check_ok(ot_read_file(below("repository/snapshots/c/config.json"), 100, &text, &bytes));
    assert_memory_equal(text, "new", 3);
    free(text);
    write_under(folder, "file", "");
    check_fails(ot_hub_cache_link(below("file"), "c", "x", "abc"), OT_E_IO, "cannot make this folder");
}

/* Weights are whole if all files are there that the index names. */
static void whole_weights(void **state) {
    (void)state;
    const char *snapshot = below("repository/s");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", snapshot);
    assert_false(ot_hub_has_weights(path));
    write_under(folder, "repository/s/pytorch_model.bin", "");
    assert_true(ot_hub_has_weights(path));
    write_under(
        folder, "repository/s/model.safetensors.index.json",
        "{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\", \"z\": \"a.safetensors\"}}");
    assert_false(ot_hub_has_weights(path)); /* the index goes before pytorch_model.bin */
    write_under(folder, "repository/s/a.safetensors", "");
    assert_false(ot_hub_has_weights(path));
    write_under(folder, "repository/s/b.safetensors", "");
    assert_true(ot_hub_has_weights(path));
    write_under(folder, "repository/s/model.safetensors.index.json", "{\"weight_map\": {}}");
    assert_false(ot_hub_has_weights(path));
    write_under(folder, "repository/s/model.safetensors.index.json",
                "{\"weight_map\": {\"x\": \"../s/a.safetensors\"}}");
    assert_false(ot_hub_has_weights(path));
    write_under(folder, "repository/s/model.safetensors", "");
    assert_true(ot_hub_has_weights(path));
}

static void locks(void **state) {
    (void)state;
    int lock = ot_hub_lock(below(".locks/a/b.lock"), "file");
    assert_true(lock >= 0);
    int other = ot_hub_lock(below(".locks/a/c.lock"), "file");
    assert_true(other >= 0);
    pid_t child = fork();
    if (child == 0) { /* waits until the parent's lock ends, although its file was removed meanwhile */
        close(lock);
        _exit(ot_hub_lock(below(".locks/a/b.lock"), "file") < 0);
    }
    usleep(120000);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    unlink(below(".locks/a/b.lock"));
    close(lock);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(access(below(".locks/a/b.lock"), F_OK), 0);
    close(other);
    write_under(folder, "file", "");
    assert_int_equal(ot_hub_lock(below("file/x.lock"), "file"), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(places, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(offline, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(commits, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(links, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(whole_weights, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(locks, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
