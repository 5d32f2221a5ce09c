/* A model name leads to a directory, a preset or a hub id. If nothing is found, the error names a cure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/text.h"
#include "src/files/resolve.h"
#include "tests/files/fixture.h"

static int open_folder(void **state) {
    *state = make_folder();
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    setenv("HF_HUB_OFFLINE", "1", 1);
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("OFFLOAD_MODELS");
    setenv("HOME", *state, 1);
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

/* Makes FOLDER/PATH and every directory above it. */
static const char *make_path(const char *folder, const char *path) {
    char at[1024];
    const char *whole = in_folder(folder, path);
    for (const char *c = whole + strlen(folder); *c; c++)
        if (c[1] == '/' || !c[1]) {
            snprintf(at, sizeof at, "%.*s", (int)(c + 1 - whole), whole);
            mkdir(at, 0777);
        }
    return whole;
}

static const char *make_model(const char *folder, const char *path) {
    const char *whole = make_path(folder, path);
    write_text(whole, "config.json", "{}");
    write_text(whole, "model.safetensors", "");
    return whole;
}

static void check_found(const char *name, const char *path, const char *words) {
    struct ot_resolved found;
    check_ok(ot_model_resolve(name, &found));
    if (!found.path)
        fail_msg("%s: %s", name, found.missing);
    assert_string_equal(found.path, path);
    assert_non_null(strstr(found.found, words));
    assert_null(found.missing);
    ot_resolved_free(&found);
}

static void test_directories(void **state) {
    struct ot_resolved found;
    check_found(make_model(*state, "mine"), in_folder(*state, "mine"), "(directory)");
    check_fails(ot_model_resolve(make_path(*state, "empty"), &found), OT_E_INPUT,
                "this directory has no config.json");
    write_text(*state, "m.gguf", "GGUF");
    check_found(in_folder(*state, "m.gguf"), in_folder(*state, "m.gguf"), "(GGUF file)");
    write_text(*state, "m.bin", "GGUF");
    check_fails(ot_model_resolve(in_folder(*state, "m.bin"), &found), OT_E_INPUT, "is a file");
    check_fails(ot_model_resolve(in_folder(*state, "nowhere"), &found), OT_E_INPUT,
                "nowhere: no such directory");
    check_fails(ot_model_resolve("../nowhere", &found), OT_E_INPUT, "no such directory");
    check_fails(ot_model_resolve("a/../b", &found), OT_E_INPUT, "no such directory");
    check_fails(ot_model_resolve("", &found), OT_E_INPUT, "no such directory");
}

static void test_offload_models(void **state) {
    const char *root = make_path(*state, "models");
    setenv("OFFLOAD_MODELS", root, 1);
    check_found("own-model", make_model(*state, "models/own-model"), "own-model ($OFFLOAD_MODELS");
    check_found("org/one", make_model(*state, "models/org/one"), "org/one ($OFFLOAD_MODELS");
    const char *last = make_model(*state, "models/Mistral-7B-v0.1");
    check_found("mistral-7b", last, "mistral-7b → mistralai/Mistral-7B-v0.1 ($OFFLOAD_MODELS");
    check_found("mistral-7b", make_model(*state, "models/mistralai/Mistral-7B-v0.1"), "$OFFLOAD_MODELS");
    check_found("mistral-7b", make_model(*state, "models/mistral-7b"), "$OFFLOAD_MODELS");
}

static void make_cached(const char *folder, const char *hub, const char *repository, const char *ref,
                        const char *sha) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s/snapshots/%s", hub, repository, sha);
    make_model(folder, path);
    if (!ref)
        return;
    snprintf(path, sizeof path, "%s/%s/refs", hub, repository);
    write_text(make_path(folder, path), "main", ref);
}

static void test_hugging_face_cache(void **state) {
    make_cached(*state, ".cache/huggingface/hub", "models--huggyllama--llama-7b", "abc123\n", "abc123");
    check_found("llama-7b",
                in_folder(*state, ".cache/huggingface/hub/models--huggyllama--llama-7b/snapshots/abc123"),
                "llama-7b → huggyllama/llama-7b (HF cache");
    check_found("huggyllama/llama-7b",
                in_folder(*state, ".cache/huggingface/hub/models--huggyllama--llama-7b/snapshots/abc123"),
                "HF cache");
    make_cached(*state, "xdg/huggingface/hub", "models--a--b", "1", "1");
    setenv("XDG_CACHE_HOME", in_folder(*state, "xdg"), 1);
    check_found("a/b", in_folder(*state, "xdg/huggingface/hub/models--a--b/snapshots/1"), "HF cache");
    make_cached(*state, "home/hub", "models--a--b", "2", "2");
    setenv("HF_HOME", in_folder(*state, "home"), 1);
    check_found("a/b", in_folder(*state, "home/hub/models--a--b/snapshots/2"), "HF cache");
    make_cached(*state, "cache", "models--a--b", "3", "3");
    setenv("HF_HUB_CACHE", in_folder(*state, "cache"), 1);
    check_found("a/b", in_folder(*state, "cache/models--a--b/snapshots/3"), "HF cache");
    /* The user's own directory takes precedence. */
    make_model(*state, "models/a/b");
    setenv("OFFLOAD_MODELS", in_folder(*state, "models"), 1);
    check_found("a/b", in_folder(*state, "models/a/b"), "$OFFLOAD_MODELS");
}

static void test_snapshots_without_a_ref(void **state) {
    struct ot_resolved found;
    setenv("HF_HUB_CACHE", in_folder(*state, "cache"), 1);
    make_cached(*state, "cache", "models--a--one", NULL, "only");
    check_found("a/one", in_folder(*state, "cache/models--a--one/snapshots/only"), "HF cache");
    make_cached(*state, "cache", "models--a--two", NULL, "first");
    make_cached(*state, "cache", "models--a--two", NULL, "second");
    check_fails(ot_model_resolve("a/two", &found), OT_E_INPUT, "several snapshots and no refs/main");
    make_model(*state, "cache/outside");
    make_cached(*state, "cache", "models--a--evil", "../../outside", "x1");
    make_cached(*state, "cache", "models--a--evil", NULL, "x2");
    check_fails(ot_model_resolve("a/evil", &found), OT_E_INPUT, "several snapshots");
    make_cached(*state, "cache", "models--a--gone", "deleted", "other");
    check_fails(ot_model_resolve("a/gone", &found), OT_E_INPUT, "snapshots/deleted");
    make_path(*state, "cache/models--a--part/snapshots/p");
    write_text(*state, "cache/models--a--part/snapshots/p/config.json", "{}");
    check_fails(ot_model_resolve("a/part", &found), OT_E_INPUT, "incomplete: no model.safetensors");
}

static void test_what_is_not_here(void **state) {
    struct ot_resolved found;
    check_ok(ot_model_resolve("llama-7b", &found));
    assert_null(found.path);
    assert_string_equal(found.preset->name, "llama-7b");
    const char *words[] = {"$OFFLOAD_MODELS (not set)",
                           "models--huggyllama--llama-7b",
                           "offload-train download huggyllama/llama-7b",
                           "HF_HUB_OFFLINE is set",
                           "--init random",
                           *state};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_non_null(strstr(found.missing, words[i]));
    ot_resolved_free(&found);
    check_ok(ot_model_resolve("tiny-sql", &found));
    assert_null(found.path);
    assert_non_null(strstr(found.missing, "--init random"));
    assert_null(strstr(found.missing, "download"));
    ot_resolved_free(&found);
    check_ok(ot_model_resolve("Llama7B", &found)); /* another spelling of the preset */
    assert_string_equal(found.preset->name, "llama-7b");
    assert_non_null(strstr(found.missing, "offload-train download huggyllama/llama-7b"));
    ot_resolved_free(&found);
    check_ok(ot_model_resolve("Qwen/Qwen3-8B", &found));
    assert_string_equal(found.preset->name, "qwen3-8b");
    assert_non_null(strstr(found.missing, "offload-train download Qwen/Qwen3-8B"));
    ot_resolved_free(&found);
    check_fails(ot_model_resolve("Qwen/Qwen3-8B-Instruct", &found), OT_E_INPUT, "not found in");
    check_fails(ot_model_resolve("some/model", &found), OT_E_INPUT, "offload-train download some/model");
    check_fails(ot_model_resolve("lama-7b", &found), OT_E_INPUT, "presets: llama-7b, llama-13b");
}

static void check_adapters(const char *name, const char *path, const char *words) {
    struct ot_resolved found = {0};
    check_ok(ot_string_format(&found.found, "the base"));
    check_ok(ot_adapter_obtain(name, &found));
    assert_string_equal(found.adapter, path);
    assert_non_null(strstr(found.found, words));
    assert_non_null(strstr(found.found, "(adapters of the base)"));
    ot_resolved_free(&found);
}

static void test_adapters(void **state) {
    struct ot_resolved found = {0};
    const char *mine = make_path(*state, "mine");
    write_text(mine, "adapter_config.json", "{}");
    check_adapters(mine, mine, "mine (adapters");
    check_fails(ot_adapter_obtain(in_folder(mine, "adapter_config.json"), &found), OT_E_INPUT,
                "this is a file");
    check_fails(ot_adapter_obtain("a/../b", &found), OT_E_INPUT, "a/../b: no such directory");
    check_fails(ot_adapter_obtain("llama-7b", &found), OT_E_INPUT, "looked in $OFFLOAD_MODELS (not set)");
    setenv("OFFLOAD_MODELS", in_folder(*state, "models"), 1);
    const char *part = make_path(*state, "models/a/tuned");
    write_text(part, "adapter_config.json", "{}");
    check_fails(ot_adapter_obtain("a/tuned", &found), OT_E_INPUT,
                "tuned (incomplete: no adapter_model.safetensors)");
    write_text(part, "adapter_model.bin", "");
    check_adapters("a/tuned", part, "a/tuned ($OFFLOAD_MODELS, ");
    check_fails(ot_model_resolve("a/tuned", &found), OT_E_INPUT, "tuned (adapters, which --adapter takes)");
    make_model(*state, "models/a/whole");
    check_fails(ot_adapter_obtain("a/whole", &found), OT_E_INPUT, "whole (a model, not adapters)");
    /* A snapshot of both is what its option says. */
    make_cached(*state, ".cache/huggingface/hub", "models--a--both", "1", "1");
    const char *both = make_path(*state, ".cache/huggingface/hub/models--a--both/snapshots/1");
    write_text(both, "adapter_config.json", "{}");
    write_text(both, "adapter_model.safetensors", "");
    check_adapters("a/both", both, "a/both (HF cache, ");
    check_found("a/both", both, "a/both (HF cache, ");
    check_fails(ot_adapter_obtain("a/absent@v1", &found), OT_E_INPUT,
                "'offload-train download --adapter a/absent@v1'");
    assert_null(found.adapter);
}

/* A caller that needs the shape alone takes what has no weights. */
static void test_the_shape_alone(void **state) {
    struct ot_resolved found;
    setenv("HF_HUB_CACHE", in_folder(*state, "cache"), 1);
    check_ok(ot_model_resolve_shape("meta-llama/Llama-3.1-8B-Instruct", &found));
    assert_string_equal(found.preset->name, "llama-3.1-8b");
    assert_string_equal(found.found, "meta-llama/Llama-3.1-8B-Instruct (preset llama-3.1-8b)");
    assert_null(found.path);
    ot_resolved_free(&found);
    check_ok(ot_model_resolve_shape("llama-7b", &found));
    assert_null(found.found);
    ot_resolved_free(&found);
    check_fails(ot_model_resolve_shape("some/model", &found), OT_E_INPUT,
                "'hf download some/model config.json'");
    check_fails(ot_model_resolve_shape("lama-7b", &found), OT_E_INPUT, "presets: llama-7b, llama-13b");
    check_fails(ot_model_resolve_shape("../nowhere", &found), OT_E_INPUT, "no such directory");
    /* What that command leaves in the cache. */
    make_path(*state, "cache/models--some--model/snapshots/p");
    write_text(*state, "cache/models--some--model/snapshots/p/config.json", "{}");
    check_ok(ot_model_resolve_shape("some/model", &found));
    assert_string_equal(found.path, in_folder(*state, "cache/models--some--model/snapshots/p"));
    ot_resolved_free(&found);
    check_fails(ot_model_resolve("some/model", &found), OT_E_INPUT, "incomplete: no model.safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_directories, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_offload_models, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_hugging_face_cache, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_snapshots_without_a_ref, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_what_is_not_here, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_adapters, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_the_shape_alone, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
