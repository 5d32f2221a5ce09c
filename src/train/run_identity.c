#include "src/train/run_identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/files/model_config.h"
#include "src/session/add_tokens.h"

/* Parses the writer's text and replaces *out. */
static int take(struct ot_json_writer *w, const char *what, struct ot_json **out) {
    char *text;
    size_t bytes;
    OT_TRY(ot_json_writer_take(w, &text, &bytes));
    ot_json_free(*out);
    *out = NULL;
    int rc = ot_json_parse(text, bytes, what, out);
    free(text);
    return rc;
}

/* Adds the tokens of --add-tokens to the model's config: they are part of what the run is. */
static int add_tokens(const struct ot_session *session, struct ot_json **model) {
    struct ot_json_writer w = {.indent = -1};
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    if (session->text.new_tokens.n == 0)
        return 0;
    ot_json_begin_object(&w, NULL);
    while (ot_json_next(*model, &cursor, &key, &value))
        ot_json_put_value(&w, key, value);
    ot_added_tokens_put(session, &w);
    ot_json_end_object(&w);
    return take(&w, "the model's config", model);
}

int ot_run_identity_make(const struct ot_session *session, const struct ot_rows *rows,
                         struct ot_run_identity *out) {
    struct ot_config_file file = {
        .config = session->model.config, .dtype = session->model.stored, .ids = session->text.ids};
    char *text;
    size_t bytes;
    *out = (struct ot_run_identity){.base = session->model.base};
    if (rows && rows->train)
        out->data = ot_rows_fingerprint(rows);
    if (rows && (rows->own_eval || !rows->train))
        out->eval_data = ot_dataset_fingerprint(rows->own_eval ? rows->own_eval : rows->data);
    OT_TRY(ot_model_config_write(&file, &text, &bytes));
    int rc = ot_json_parse(text, bytes, "the model's config", &out->model);
    free(text);
    return rc < 0 ? rc : add_tokens(session, &out->model);
}

int ot_run_identity_take_options(struct ot_run_identity *identity, const struct ot_options *options) {
    struct ot_json_writer values = {.indent = -1}, sources = {.indent = -1};
    ot_options_put_json(options, NULL, &values);
    OT_TRY(take(&values, "the options", &identity->options));
    ot_options_put_sources(options, NULL, &sources);
    return take(&sources, "the sources of the options", &identity->sources);
}

void ot_run_identity_put(const struct ot_run_identity *identity, struct ot_checkpoint_record *record) {
    record->has_base = identity->base.is_known;
    record->base_sample = identity->base.sample;
    record->data = identity->data;
    record->eval_data = identity->eval_data;
    record->options = identity->options;
    record->sources = identity->sources;
    record->model = identity->model;
}

void ot_run_identity_free(struct ot_run_identity *identity) {
    ot_json_free(identity->options);
    ot_json_free(identity->sources);
    ot_json_free(identity->model);
    *identity = (struct ot_run_identity){0};
}

/* ---- agreement ---- */

enum { MOST_OPTIONS = 256, ARITHMETIC_BYTES = 192 };

/* ---- options ---- */

/* Other options that all ranks must share: some change no bit of a run's result, others are not train's. */
static const char joint[] = "shard stages share-weights eval-every save-every no-save save-local generate "
                            "temperature top-p reference";

static bool must_agree(const struct ot_option *option) {
    return ot_words_have(joint, option->name) || option->on_resume == OT_RESUME_SAME ||
           option->on_resume == OT_RESUME_LENGTH || option->on_resume == OT_RESUME_CONVERT;
}

/* The caller frees *text. value NULL: "". */
static int write_value(const struct ot_json *value, char **text) {
    struct ot_json_writer w = {.indent = -1};
    size_t bytes;
    if (!value || ot_json_type(value) == OT_JSON_STRING) {
        *text = strdup(value ? ot_json_string(value, &bytes) : "");
        return *text ? 0 : ot_fail(OT_E_BUDGET, "no memory to compare the options of the ranks");
    }
    ot_json_put_value(&w, NULL, value);
    return ot_json_writer_take(&w, text, &bytes);
}

/* Says which value the ranks have of the option. */
static int explain_option(struct ot_comm *comm, const struct ot_option *option, const struct ot_json *value) {
    char *text, name[64];
    OT_TRY(write_value(value, &text));
    snprintf(name, sizeof name, "--%s", option->name);
    int rc = ot_comm_agree(comm, name, text);
    free(text);
    return rc;
}

/* Compares a sum of every option's value at once, because each comparison is a round trip. */
static int agree_on_options(struct ot_comm *comm, const struct ot_json *options) {
    uint32_t sums[MOST_OPTIONS] = {0};
    int n = 0, rc = 0;
    const struct ot_option *option;
    for (; (option = ot_option_at(n)); n++) {
        char *text;
        if (n == MOST_OPTIONS)
            return ot_fail(OT_E_INTERNAL, "too many options to compare");
        if (!must_agree(option))
            continue;
        OT_TRY(write_value(ot_json_get(options, option->name), &text));
        sums[n] = ot_crc32(0, text, strlen(text));
        free(text);
    }
    uint32_t *all = calloc((size_t)ot_comm_ranks(comm), sizeof sums);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory to compare the options of the ranks");
    rc = ot_comm_all_gather_host(comm, sums, sizeof sums, all);
    for (int i = 0; rc == 0 && i < n; i++)
        for (int r = 1; rc == 0 && r < ot_comm_ranks(comm); r++)
            if (all[r * MOST_OPTIONS + i] != all[i])
                rc = explain_option(comm, ot_option_at(i), ot_json_get(options, ot_option_at(i)->name));
    free(all);
    return rc;
}

/* ---- model and rows ---- */

static int agree_on_model(struct ot_comm *comm, const struct ot_json *model) {
    char *text;
    OT_TRY(write_value(model, &text));
    int rc = ot_comm_agree(comm, "the model's config", text);
    free(text);
    return rc;
}

static int agree_on_rows(struct ot_comm *comm, const char *what, const struct ot_data_fingerprint *f) {
    char text[160];
    snprintf(text, sizeof text,
             "%" PRId64 " rows with %" PRId64 " tokens, %" PRId64 " of them trained, sum %08" PRIx32, f->rows,
             f->tokens, f->trained_tokens, f->crc);
    return ot_comm_agree(comm, what, text);
}

/* ---- weights ---- */

struct weights { /* that a rank has read */
    uint32_t crcs[2];
    char path[256]; /* may differ between hosts, so it is named, not compared */
};

static int fail_by_weights(const struct ot_session *s, const struct weights *all, uint64_t others,
                           const char *what) {
    int first = __builtin_ctzll(others);
    char list[OT_RANK_LIST_BYTES], root[256];
    snprintf(root, sizeof root, "%s", ot_world_name(s->ranks.world, 0));
    return ot_fail(
        OT_E_USAGE,
        "the weights of --model differ between ranks (%s): %s %s others than rank 0. %s reads %s, "
        "%s reads %s. Copy the model of one host to the others, or give all ranks the same revision",
        what, ot_rank_list(others, list), others & (others - 1) ? "have" : "has", root, all[0].path,
        ot_world_name(s->ranks.world, first), all[first].path);
}

/* Compares checksums of the weights that the ranks read. what: names the checked weights in the error. */
static int agree_on_weights(const struct ot_session *s, uint32_t a, uint32_t b, const char *what) {
    struct weights mine = {.crcs = {a, b}}, all[OT_MAX_RANKS];
    uint64_t others = 0;
    snprintf(mine.path, sizeof mine.path, "%s", s->model.dir ? ot_model_dir_path(s->model.dir) : "no file");
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, &mine, sizeof mine, all));
    for (int r = 1; r < ot_comm_ranks(s->ranks.comm); r++)
        if (memcmp(all[r].crcs, all[0].crcs, sizeof all[0].crcs) != 0)
            others |= (uint64_t)1 << r;
    return others ? fail_by_weights(s, all, others, what) : 0;
}

int ot_agree_on_weights(const struct ot_session *s) {
    return s->ranks.comm
               ? agree_on_weights(s, s->model.frozen_crc, s->model.trained_crc, "a checksum of all values")
               : 0;
}

/* ---- devices ---- */

struct place { /* of a rank's GPU */
    char host[64], bus_id[OT_BUS_ID_BYTES];
};

/* Names the host by its kernel, because containers on one host have different names. */
static void find_place(const struct ot_session *s, struct place *out) {
    const struct ot_device_choice *device = &s->options->device;
    *out = (struct place){0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(out->host, sizeof out->host, file) || device->kind != OT_DEVICE_CUDA ||
        !ot_device_bus_id("cuda", device->index, out->bus_id))
        *out = (struct place){0}; /* not known, or no GPU */
    if (file)
        (void)fclose(file);
}

static int check_gpus(struct ot_session *s) {
    struct place mine, all[OT_MAX_RANKS];
    find_place(s, &mine);
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, &mine, sizeof mine, all));
    for (int a = 0; a < ot_comm_ranks(s->ranks.comm); a++)
        for (int b = a + 1; b < ot_comm_ranks(s->ranks.comm); b++)
            if (*all[a].bus_id && memcmp(&all[a], &all[b], sizeof all[a]) == 0)
                return ot_fail(OT_E_USAGE,
                               "ranks %d and %d use the same GPU (%s); each rank needs one of its own", a, b,
                               all[a].bus_id);
    return 0;
}

static int agree_on_arithmetic(struct ot_session *s) {
    char mine[ARITHMETIC_BYTES] = "", all[OT_MAX_RANKS][ARITHMETIC_BYTES];
    snprintf(mine, sizeof mine, "%s", ot_device_arithmetic(s->machine.device));
    if (s->ranks.shard.world)
        return ot_comm_agree(s->ranks.comm, "the devices' arithmetic (needed with --deterministic world)",
                             mine);
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, mine, sizeof mine, all));
    for (int r = 1; r < ot_comm_ranks(s->ranks.comm); r++)
        if (strcmp(all[r], all[0]) != 0) {
            ot_log(
                OT_LOG_WARN,
                "the devices' arithmetic differs: rank 0 has %s, rank %d has %s; so the last digits depend "
                "on which rank has which device",
                all[0], r, all[r]);
            break;
        }
    return 0;
}

int ot_agree_on_run(struct ot_session *s, const struct ot_run_identity *identity) {
    if (!s->ranks.comm)
        return 0;
    OT_TRY(agree_on_options(s->ranks.comm, identity->options));
    OT_TRY(agree_on_model(s->ranks.comm, identity->model));
    OT_TRY(agree_on_weights(s, identity->base.is_known, identity->base.sample, "a checksum of a sample"));
    OT_TRY(agree_on_rows(s->ranks.comm, "the training data", &identity->data));
    OT_TRY(agree_on_rows(s->ranks.comm, "the evaluation data", &identity->eval_data));
    OT_TRY(check_gpus(s));
    return agree_on_arithmetic(s);
}

int ot_agree_on_use(struct ot_session *s, const struct ot_rows *rows) {
    struct ot_run_identity identity;
    int rc;
    if (!s->ranks.comm)
        return 0;
    OT_TRY_GOTO(ot_run_identity_make(s, rows, &identity), rc, out);
    OT_TRY_GOTO(ot_run_identity_take_options(&identity, s->options), rc, out);
    rc = ot_agree_on_run(s, &identity);
out:
    ot_run_identity_free(&identity);
    return rc;
}
