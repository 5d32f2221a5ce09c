/* Every key of config.json, absent and null, against transformers (scripts/golden/config_keys.py): each value
 * that is read, or a refusal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/family.h"
#include "models/rope.h"
#include "src/base/json.h"
#include "tests/support/check.h"

enum { MOST = 64 };

/* ---- facts ---- */

/* A fact of a configuration as a list of numbers. */
struct list {
    size_t n;
    double v[MOST];
};

static void add(struct list *list, double value) {
    assert_true(list->n < MOST);
    list->v[list->n++] = value;
}

static void add_frequencies(struct list *list, const struct ot_model_config *c, int64_t length, bool local) {
    int64_t pairs = c->rotary_dim / 2;
    for (int64_t j = 0; j < 8; j++)
        add(list, ot_rope_frequency(c, length, local, j * (pairs - 1) / 7));
}

static void add_layers(struct list *list, const struct ot_model_config *c,
                       double (*of_layer)(const struct ot_model_config *, int64_t)) {
    for (int64_t l = 0; l < c->n_layers; l++)
        add(list, of_layer(c, l));
}

static double window_of(const struct ot_model_config *c, int64_t layer) {
    return (double)ot_model_layer_window(c, layer);
}

static double rotates(const struct ot_model_config *c, int64_t layer) {
    return ot_model_layer_rotates(c, layer);
}

static double has_experts(const struct ot_model_config *c, int64_t layer) {
    return ot_model_layer_has_experts(c, layer);
}

static double or_one(double value) {
    return value != 0 ? value : 1;
}

/* Facts of one number. */
static const char *const NUMBERS[] = {
    "hidden",    "heads",       "kv_heads", "head_dim", "vocab",    "layers",         "n_params",
    "tied",      "eps",         "init_std", "qkv_bias", "out_bias", "mlp_bias",       "max_position",
    "scale",     "rotary",      "residual", "divisor",  "gated",    "encoder_layers", "attention_factor",
    "norm_topk", "local_factor"};

static void add_number(struct list *list, const struct ot_model_config *c, size_t i) {
    bool scales = c->rope.scaling == OT_ROPE_YARN || c->rope.scaling == OT_ROPE_LONGROPE;
    const double values[] = {
        (double)c->hidden,
        (double)c->n_heads,
        (double)c->n_kv_heads,
        (double)c->head_dim,
        (double)c->vocab,
        (double)c->n_layers,
        (double)ot_model_param_count(c),
        c->tied,
        (double)c->norm_eps,
        c->init_std,
        c->qkv_bias,
        c->out_bias,
        c->mlp_bias,
        (double)c->max_position,
        (double)ot_model_attention_scale(c),
        (double)c->rotary_dim,
        c->residual,
        c->logit_divisor,
        !c->plain_mlp,
        (double)c->n_encoder_layers,
        scales ? c->rope.attention_factor : 1,
        !c->router_over_all,
        1,
    };
    _Static_assert(sizeof values / sizeof *values == sizeof NUMBERS / sizeof *NUMBERS,
                   "a value for each name");
    add(list, values[i]);
}

/* Facts of several numbers. False: this program does not know the name. */
static bool add_several(struct list *list, const struct ot_model_config *c, const char *name) {
    int64_t length = atoi(strchr(name, ' ') ? strchr(name, ' ') : "0");
    if (strncmp(name, "frequencies ", 12) == 0 || strncmp(name, "local ", 6) == 0)
        add_frequencies(list, c, length, name[0] == 'l');
    else if (strcmp(name, "windows") == 0)
        add_layers(list, c, window_of);
    else if (strcmp(name, "rotates") == 0)
        add_layers(list, c, rotates);
    else if (strcmp(name, "expert_layers") == 0)
        add_layers(list, c, has_experts);
    else if (strcmp(name, "experts") == 0)
        add(list, (double)c->n_experts), add(list, (double)c->top_experts);
    else if (strcmp(name, "caps") == 0)
        add(list, (double)c->attention_softcap), add(list, (double)c->logit_softcap);
    else if (strcmp(name, "glu") == 0)
        add(list, (double)c->glu_limit), add(list, (double)c->glu_alpha);
    else if (strcmp(name, "buckets") == 0)
        add(list, (double)c->position_buckets), add(list, (double)c->position_distance);
    else if (strcmp(name, "q_scale") == 0)
        add(list, c->q_scale_beta), add(list, c->rope.original_max_position);
    else if (strcmp(name, "multipliers") == 0)
        add(list, or_one(c->embed_scale)), add(list, or_one(c->residual_scale)),
            add(list, or_one(c->logit_divisor));
    else
        return false;
    return true;
}

static const char *act_of(const struct ot_model_config *c) {
    static const char *const names[] = {"silu", "gelu", "gelu_tanh", "relu"};
    return names[c->act];
}

/* Compares a fact with the golden one. Returns a sentence about the difference; NULL: none. */
static const char *difference(const struct ot_model_config *c, const char *name, const struct ot_json *want) {
    static char text[256];
    struct list got = {0};
    bool known = false;
    if (strcmp(name, "act") == 0) {
        const char *act = ot_json_string(want, NULL);
        snprintf(text, sizeof text, "act is %s, wanted %s", act_of(c), act);
        return strcmp(act, act_of(c)) == 0 ? NULL : text;
    }
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (strcmp(NUMBERS[i], name) == 0) {
            add_number(&got, c, i);
            known = true;
        }
    if (!known && !add_several(&got, c, name))
        fail_msg("the test does not know the fact '%s'", name);
    for (size_t i = 0; i < got.n; i++) {
        const struct ot_json *one = ot_json_type(want) == OT_JSON_ARRAY ? ot_json_at(want, i) : want;
        double wanted = ot_json_type(one) == OT_JSON_BOOL ? ot_json_bool(one, false) : ot_json_real(one, NAN);
        snprintf(text, sizeof text, "%s[%zu] is %.9g, wanted %.9g", name, i, got.v[i], wanted);
        if (!(fabs(got.v[i] - wanted) <= 1e-6 * fabs(wanted)))
            return text;
    }
    return NULL;
}

/* ---- cases ---- */

/* Writes a config.json without the key at `path` ("rope_parameters.factor"), or with null there. */
static void put_changed(struct ot_json_writer *w, const struct ot_json *object, const char *path,
                        bool is_null) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &key, &value)) {
        size_t n = strlen(key);
        bool on_path = strncmp(path, key, n) == 0 && (path[n] == '.' || path[n] == 0);
        if (on_path && path[n] == '.') {
            ot_json_begin_object(w, key);
            put_changed(w, value, path + n + 1, is_null);
            ot_json_end_object(w);
        } else if (!on_path) {
            ot_json_put_value(w, key, value);
        } else if (is_null) {
            ot_json_put_null(w, key);
        }
    }
}

static int read_changed(const struct ot_json *object, const char *path, bool is_null, const char *where,
                        struct ot_model_config *out) {
    struct ot_json_writer w = {.indent = -1};
    struct ot_json *root;
    char *text;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    put_changed(&w, object, path, is_null);
    ot_json_end_object(&w);
    check_ok(ot_json_writer_take(&w, &text, &bytes));
    check_ok(ot_json_parse(text, bytes, where, &root));
    int rc = ot_model_config_read(root, where, out);
    ot_json_free(root);
    free(text);
    return rc;
}

/* Each fact of the golden model, or of the case where it has another value; null: the fact is gone. */
static int count_differences(const char *where, const struct ot_model_config *c, const struct ot_json *facts,
                             const struct ot_json *changed) {
    int n = 0;
    for (int pass = 0; pass < 2; pass++) {
        void *cursor = NULL;
        const char *name;
        struct ot_json *value;
        while (ot_json_next(pass ? changed : facts, &cursor, &name, &value)) {
            bool overridden = !pass && ot_json_has(changed, name);
            const char *text =
                overridden || ot_json_type(value) == OT_JSON_NULL ? NULL : difference(c, name, value);
            if (text)
                print_message("%s: %s\n", where, text);
            n += text != NULL;
        }
    }
    return n;
}

/* Keys that this program requires by name where transformers has a value: sizes that no two models share, and
 * parts of a rope that it would leave out without a word. */
static bool may_be_required(const char *path) {
    static const char *const keys[] = {
        "vocab_size", "hidden_size", "n_embd",         "intermediate_size",       "num_hidden_layers",
        "n_layer",    "n_head",      "n_positions",    "max_position_embeddings", "num_attention_heads",
        "type",       "rope_type",   "rope_parameters"};
    const char *last = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], last) == 0)
            return strstr(ot_error_text(), "is missing") != NULL;
    return false;
}

/* Cases in which transformers' forward pass fails, and the meaning is clear all the same: the value is not
 * used there, or there is one that can be meant. */
static bool may_be_read(const char *where) {
    static const char *const cases[] = {"falcon, new: parallel_attn null", "ministral: head_dim absent",
                                        "t5: decoder_start_token_id absent",
                                        "t5, tied: decoder_start_token_id absent"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i], where) == 0)
            return true;
    return false;
}

static int check_case(const char *name, const struct ot_json *golden, const char *what,
                      const struct ot_json *want) {
    struct ot_model_config config;
    char path[128], where[256];
    const char *end = strchr(what, ' '), *refused = ot_json_string(want, NULL);
    snprintf(path, sizeof path, "%.*s", (int)(end - what), what);
    snprintf(where, sizeof where, "%s: %s", name, what);
    int rc = read_changed(ot_json_get(golden, "config"), path, strcmp(end, " null") == 0, where, &config);
    if (rc == 0 && refused) {
        if (may_be_read(where))
            return 0;
        print_message("%s is read, but transformers refuses it\n", where);
        return 1;
    }
    if (rc < 0 && !refused && !may_be_required(path)) {
        print_message("transformers reads this: %s\n", ot_error_text());
        return 1;
    }
    return rc < 0 ? 0 : count_differences(where, &config, ot_json_get(golden, "facts"), want);
}

static void test_keys(void **state) {
    (void)state;
    struct ot_json *root, *golden, *want;
    void *cursor = NULL;
    const char *name, *what;
    int n_cases = 0, n_wrong = 0;
    bool seen[OT_FAMILY_COUNT] = {false};
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/config_keys.json", 1 << 20, &root));
    while (ot_json_next(root, &cursor, &name, &golden)) {
        struct ot_model_config config;
        void *inner = NULL;
        check_ok(ot_model_config_read(ot_json_get(golden, "config"), name, &config));
        n_wrong += count_differences(name, &config, ot_json_get(golden, "facts"), NULL);
        seen[config.family] = true;
        for (; ot_json_next(ot_json_get(golden, "cases"), &inner, &what, &want); n_cases++)
            n_wrong += check_case(name, golden, what, want);
    }
    ot_json_free(root);
    for (int f = 0; f < OT_FAMILY_COUNT; f++)
        assert_true(seen[f]);
    assert_true(n_cases > 1000);
    if (n_wrong > 0)
        fail_msg("%d of %d cases differ from transformers", n_wrong, n_cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
