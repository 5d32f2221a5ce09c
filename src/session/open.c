#include "src/session/open.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/selection.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/signals.h"
#include "src/base/thread.h"
#include "src/files/adapter_config.h"
#include "src/files/model_dir_tokenizer.h"
#include "src/session/add_tokens.h"
#include "src/session/chat_choice.h"
#include "src/session/device.h"
#include "src/session/forecast.h"
#include "src/session/plan_request.h"
#include "src/session/session.h"
#include "src/session/session_ranks.h"
#include "src/session/weights.h"

/* ---- adapters: of --adapter, or a --model that is a directory of adapters ---- */

/* True if the run resumes: its record says which adapters it has. */
static bool resumes(const struct ot_options *o) {
    return o->lora && o->source[ot_option_find("lora", strlen("lora"), o->command)] == OT_FROM_CHECKPOINT;
}

static int take_lora(struct ot_session *s, const char *path) {
    const struct ot_options *o = s->options;
    bool equal = true;
    OT_TRY(ot_adapter_config_read(path, &s->model.config, o->command == OT_COMMAND_TRAIN && !o->lora,
                                  &s->model.lora));
    if (!o->lora) {
        ot_settings_choose_text(s->settings, "lora", s->model.lora);
        return 0;
    }
    OT_TRY(ot_adapter_config_equal(o->lora, s->model.lora, &s->model.config, &equal));
    return equal ? 0
                 : ot_fail(OT_E_USAGE,
                           "--lora %.200s and --adapter %s contradict each other: these adapters are %.200s; "
                           "leave out --lora, or change only its dropout and lr-ratio",
                           o->lora, o->adapter, s->model.lora);
}

/* The tensors of the base that the directory holds, as patterns of --train. NULL: there are none. */
static int name_modules(struct ot_session *s, const struct ot_model *model) {
    struct ot_string_builder b = {0};
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const char *name = ot_model_tensor(model, i)->name;
        if (ot_model_dir_is_adapted(s->model.dir, name) && !ot_lora_has_tensor(name))
            ot_string_append_format(&b, "%s%s", b.bytes ? "," : "", name);
    }
    s->model.train = b.text;
    return b.failed ? ot_fail(OT_E_BUDGET, "no memory for the names of an adapter's modules") : 0;
}

/* A run that goes on from adapters also goes on to train the modules that they were saved with. */
static int take_modules(struct ot_session *s, const char *path) {
    const struct ot_options *o = s->options;
    const struct ot_selection asked = ot_plan_request_selection(o);
    struct ot_model *model;
    OT_TRY(ot_model_open_selected(&s->model.config, OT_F32, 1, &asked, &model));
    int rc = name_modules(s, model);
    if (rc == 0 && s->model.train && !o->train)
        ot_settings_choose_text(s->settings, "train", s->model.train);
    for (int64_t i = 0; i < ot_model_tensor_count(model) && rc == 0 && o->train != s->model.train; i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (!t->trained && ot_model_dir_is_adapted(s->model.dir, t->name))
            rc =
                ot_fail(OT_E_USAGE,
                        "%s has trained values of %s, which --train leaves out; leave out --train, or add it",
                        path, t->name);
    }
    ot_model_close(model);
    return rc;
}

/* Takes the tokens that the adapters add, or train by themselves. */
static void take_tokens(struct ot_session *s) {
    const struct ot_model_config *config = &ot_model_dir_facts(s->model.dir)->config;
    s->model.config.vocab = config->vocab;
    s->model.config.first_new = config->first_new;
    s->model.config.n_new = config->n_new;
    s->model.config.head_has_new = config->head_has_new;
}

/* A run that resumes has the values of its adapters in the checkpoint. Their directory may be gone if it has
 * no tokens. */
static int take_tokens_again(struct ot_session *s) {
    char path[PATH_MAX];
    const char *dir = s->model.resolved.adapter;
    if (!dir && ot_adapter_obtain(s->options->adapter, &s->model.resolved) < 0) {
        ot_log(OT_LOG_INFO, "note    the adapters are taken from the checkpoint alone: %.300s",
               ot_error_text());
        return 0;
    }
    dir = s->model.resolved.adapter;
    int n = snprintf(path, sizeof path, "%s/" OT_ADAPTER_CONFIG_NAME, dir);
    if (n >= (int)sizeof path || access(path, F_OK) != 0)
        return 0;
    OT_TRY(ot_model_dir_add_adapter_tokens(s->model.dir, dir));
    take_tokens(s);
    return 0;
}

/* Lays the adapters over session->model.dir, and chooses --adapter, --lora and --train from their files. Does
 * nothing without adapters, and for a run that resumes: its checkpoint has them. Errors: OT_E_INPUT, OT_E_IO,
 * OT_E_BUDGET; OT_E_USAGE if the options contradict the directory. */
static int session_open_adapter(struct ot_session *s) {
    const struct ot_options *o = s->options;
    const char *named = s->model.resolved.adapter;
    if (named && o->adapter && strcmp(o->adapter, named) != 0)
        return ot_fail(OT_E_USAGE,
                       "--model %s is a directory of adapters, so --adapter %s cannot be used with it", named,
                       o->adapter);
    if (named && !o->adapter)
        ot_settings_choose_text(s->settings, "adapter", named);
    if (!o->adapter)
        return 0;
    if (resumes(o))
        return take_tokens_again(s);
    if (!s->model.dir || o->init == OT_CHOICE_INIT_RANDOM)
        return ot_fail(OT_E_USAGE, "--adapter %s needs the weights of its base, and --init random has none",
                       o->adapter);
    if (!named)
        OT_TRY(ot_adapter_obtain(o->adapter, &s->model.resolved));
    const char *dir = s->model.resolved.adapter;
    OT_TRY(ot_model_dir_add_adapter(s->model.dir, dir));
    if (o->command == OT_COMMAND_TRAIN || o->command == OT_COMMAND_EXPORT)
        OT_TRY(ot_model_dir_check_base_layers(s->model.dir));
    take_tokens(s);
    OT_TRY(ot_adapter_config_check_saved(dir, s->model.dir));
    OT_TRY(take_lora(s, dir));
    /* An export writes the modules. A base type encodes only tensors that the adapters' run froze, so not the
     * modules. */
    bool needs_modules =
        o->command == OT_COMMAND_TRAIN || o->command == OT_COMMAND_EXPORT || o->base_type != OT_BASE_AUTO;
    return needs_modules ? take_modules(s, dir) : 0;
}

/* ---- the matrices to encode ---- */

/* Chooses the matrices that --base-type encodes in generate and eval: those that the model's run froze.
 *
 * A model that was trained over an encoded base has its trained tensors, and the base's exact weights
 * (weights.h). The run encoded only frozen weights, so only these are encoded to compute the trained model.
 * run.json in the model's directory names them. All matrices of the layers are encoded if there is no
 * run.json, or if the run trained over a plain base: then a person measures the cost of quantising the
 * model. */

/* Chooses --train and --freeze for a command that does not train, after session->text.run was read. Adapters
 * have said it before. Errors: OT_E_INPUT (run.json names no tensor of this model). */
static int base_choice_open(struct ot_session *s) {
    const struct ot_options *o = s->options;
    const char *type = ot_json_string(ot_json_get(s->text.run, "base-type"), NULL);
    const struct ot_selection then = {.train = ot_json_string(ot_json_get(s->text.run, "train"), NULL),
                                      .freeze = ot_json_string(ot_json_get(s->text.run, "freeze"), NULL)};
    int64_t trained;
    bool reads = o->command == OT_COMMAND_GENERATE || o->command == OT_COMMAND_EVAL;
    if (!reads || o->base_type == OT_BASE_AUTO || o->lora || !type || strcmp(type, "auto") == 0)
        return 0;
    if (ot_selection_count(&s->model.config, &then, &trained) < 0)
        return ot_fail(OT_E_INPUT, "%s/run.json does not belong to this model: %s",
                       ot_model_dir_path(s->model.dir), ot_error_text());
    if (then.train)
        ot_settings_choose_text(s->settings, "train", then.train);
    if (then.freeze)
        ot_settings_choose_text(s->settings, "freeze", then.freeze);
    return 0;
}

/* ---- tokenizer ---- */

/* Uses a tokenizer.json in memory, which this session closes. */
static int take_file(struct ot_session *s, int fd) {
    s->text.tokenizer_fd = fd;
    s->text.tokenizer_is_in_memory = true;
    return ot_string_format(&s->text.tokenizer_path, "/proc/self/fd/%d", fd);
}

/* The presets of this program have no tokenizer file, so they use a byte-level tokenizer. Its file is kept in
 * memory, so that nothing is left behind however the program ends. */
static int make_byte_tokenizer(struct ot_session *s) {
    int fd = memfd_create("tokenizer.json", MFD_CLOEXEC);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot make a file in memory for the byte-level tokenizer");
    s->text.tokenizer_is_own = true;
    OT_TRY(take_file(s, fd));
    return ot_tokenizer_write_byte_level(s->text.tokenizer_path);
}

/* --tokenizer may name a SentencePiece model. */
static int make_from_model(struct ot_session *s, const char *path) {
    int fd;
    OT_TRY(ot_tokenizer_make(path, &fd));
    return take_file(s, fd);
}

/* The files beside a tokenizer.json may have more added tokens. */
static int take_json(struct ot_session *s, const char *path) {
    int fd;
    OT_TRY(ot_tokenizer_complete(path, &fd));
    if (fd < 0)
        return ot_string_format(&s->text.tokenizer_path, "%s", path);
    OT_TRY(take_file(s, fd));
    return ot_string_format(&s->text.tokenizer_file, "%s", path);
}

static int fail_missing(const struct ot_session *s) {
    const char *reason = ot_model_dir_facts(s->model.dir)->tokenizer_missing;
    return reason ? ot_fail(OT_E_INPUT, "%s; or give another tokenizer with --tokenizer FILE", reason)
                  : ot_fail(OT_E_INPUT, "%s has no tokenizer.json; give one with --tokenizer FILE",
                            ot_model_dir_path(s->model.dir));
}

static int find_tokenizer(struct ot_session *s) {
    const struct ot_preset *preset = s->model.resolved.preset;
    const char *path = s->options->tokenizer;
    if (path && ot_tokenizer_is_model(path))
        return make_from_model(s, path);
    bool is_resized = s->model.dir && ot_model_dir_is_resized(s->model.dir);
    if (!path && s->model.dir && !is_resized)
        path = ot_model_dir_facts(s->model.dir)->tokenizer_path;
    const char *adapter = s->model.resolved.adapter;
    if (!path && s->model.dir && adapter) { /* a base without one was trained with --tokenizer */
        char of_adapter[PATH_MAX];
        int n = snprintf(of_adapter, sizeof of_adapter, "%s/tokenizer.json", adapter);
        s->text.tokenizer_is_of_adapter = n < (int)sizeof of_adapter && access(of_adapter, F_OK) == 0;
        if (s->text.tokenizer_is_of_adapter)
            return take_json(s, of_adapter);
    }
    if (!path && is_resized)
        path = ot_model_dir_facts(s->model.dir)->tokenizer_path;
    if (!path && s->model.dir)
        return fail_missing(s);
    if (!path && preset && !preset->hub_id)
        return make_byte_tokenizer(s);
    if (!path)
        return ot_fail(OT_E_INPUT,
                       "%s has no tokenizer here; give the tokenizer.json of %s with --tokenizer FILE",
                       s->options->model, preset->hub_id);
    if (path == s->options->tokenizer)
        return take_json(s, path);
    const char *file = ot_model_dir_facts(s->model.dir)->tokenizer_file;
    if (file)
        OT_TRY(ot_string_format(&s->text.tokenizer_file, "%s", file));
    return ot_string_format(&s->text.tokenizer_path, "%s", path);
}

static int32_t find_first_token(const struct ot_tokenizer *tokenizer, const char *const *names) {
    int32_t id = -1;
    for (; *names && id < 0; names++)
        id = ot_tokenizer_find(tokenizer, *names, strlen(*names));
    return id;
}

/* Finds the ids by the usual spellings of start and end tokens. Used if no config names them, or if the
 * tokenizer is not the one that the config belongs to. */
static void guess_ids(struct ot_session *s) {
    static const char *const starts[] = {"<s>", "<|begin_of_text|>", "<|bos|>", "<bos>", NULL};
    static const char *const ends[] = {"</s>",  "<|im_end|>", "<|end_of_text|>", "<|eos|>", "<|endoftext|>",
                                       "<eos>", NULL};
    s->text.ids.bos = find_first_token(s->text.tokenizer, starts);
    int32_t end = find_first_token(s->text.tokenizer, ends);
    s->text.ids.n_eos = end >= 0;
    s->text.ids.eos[0] = end;
}

/* Encodes a text with and without special tokens: the difference shows whether the post-processor adds a
 * start token. */
static int find_specials(struct ot_session *s) {
    struct ot_token_list bare = {0}, framed = {0};
    int rc;
    OT_TRY_GOTO(ot_tokenizer_encode(s->text.tokenizer, "a", 1, 0, &bare), rc, out);
    OT_TRY_GOTO(ot_tokenizer_encode(s->text.tokenizer, "a", 1, OT_TOKENIZER_ADD_SPECIAL, &framed), rc, out);
    s->text.specials = (struct ot_special_tokens){.bos_id = s->text.ids.bos};
    if (framed.n > bare.n && (bare.n == 0 || framed.ids[0] != bare.ids[0])) {
        s->text.specials.add_bos = true;
        s->text.specials.bos_id = framed.ids[0];
    }
    for (int i = 0; i < s->text.ids.n_eos && i < OT_SAMPLE_MAX_EOS; i++)
        s->text.specials.eos_ids[s->text.specials.n_eos++] = s->text.ids.eos[i];
out:
    ot_token_list_free(&bare);
    ot_token_list_free(&framed);
    return rc;
}

bool ot_session_has_made_tokenizer(const struct ot_session *s) {
    return s->model.dir && !s->options->tokenizer && ot_model_dir_facts(s->model.dir)->tokenizer_is_made;
}

const char *ot_session_sentencepiece(const struct ot_session *s) {
    const struct ot_model_facts *facts = s->model.dir ? ot_model_dir_facts(s->model.dir) : NULL;
    if (s->options->tokenizer)
        return ot_tokenizer_is_model(s->options->tokenizer) ? s->options->tokenizer : NULL;
    return facts ? facts->sentencepiece : NULL;
}

bool ot_session_is_of_sentencepiece(const struct ot_session *s) {
    if (s->options->tokenizer)
        return ot_tokenizer_is_model(s->options->tokenizer);
    return s->model.dir && ot_model_dir_facts(s->model.dir)->has_made_sentencepiece;
}

static int open_tokenizer(struct ot_session *s) {
    OT_TRY(find_tokenizer(s));
    int rc = ot_tokenizer_open(s->text.tokenizer_path, &s->text.tokenizer);
    if (rc < 0 && ot_session_has_made_tokenizer(s))
        return ot_fail_context(rc, "%s: the tokenizer that its keys describe",
                               ot_model_dir_path(s->model.dir));
    if (rc < 0 && ot_session_is_of_sentencepiece(s))
        return ot_fail_context(rc, "%s: the tokenizer that is made from it", ot_session_sentencepiece(s));
    if (rc < 0 && s->text.tokenizer_file)
        return ot_fail_context(rc, "%s: with the added tokens of the files beside it",
                               s->text.tokenizer_file);
    OT_TRY(rc);
    OT_TRY(ot_session_add_tokens(s));
    if (s->model.dir && !s->options->tokenizer)
        s->text.ids = ot_model_dir_facts(s->model.dir)->ids;
    if (s->text.ids.n_eos == 0)
        guess_ids(s);
    return find_specials(s);
}

/* ---- open ---- */

static int open_machine(struct ot_settings *settings, struct ot_session *out) {
    const struct ot_options *options = &settings->in_effect;
    struct ot_world *world = out->ranks.world;
    *out = (struct ot_session){
        .settings = settings, .options = options, .text.ids = {.bos = -1}, .ranks.world = world};
    OT_TRY(ot_machine_read("", &out->machine.limits));
    ot_session_ranks_share_machine(world, &out->machine.limits);
    ot_session_ranks_choose_gpu(settings, world);
    if (!options->threads)
        ot_settings_choose_count(settings, "threads", out->machine.limits.cores);
    return ot_pool_open((int)options->threads, "files", &out->machine.pool);
}

int ot_session_scale_rope(const struct ot_options *options, struct ot_model_config *config) {
    bool had_one = config->rope.scaling != OT_ROPE_PLAIN;
    int rc = options->rope_scaling ? ot_model_config_scale_rope(config, options->rope_scaling) : 0;
    if (rc == 0 && options->rope_scaling && had_one)
        ot_log(OT_LOG_INFO, "note    --rope-scaling %s replaces the rope_scaling of the model's config",
               options->rope_scaling);
    return rc < 0 ? ot_fail_context(rc, "--rope-scaling") : 0;
}

/* Before adapters are laid over the base. A run records the fingerprint, and ranks compare it. A run without
 * weights is refused later, with the reason. */
static int take_base_print(struct ot_session *s) {
    bool is_needed = s->options->command == OT_COMMAND_TRAIN || s->ranks.world;
    bool reads = is_needed && s->model.dir && ot_model_dir_facts(s->model.dir)->has_weights &&
                 s->options->init == OT_CHOICE_INIT_FILES;
    return reads ? ot_base_print_take(s->model.dir, &s->model.config, &s->model.base) : 0;
}

static int open_model_files(struct ot_session *s) {
    bool random = s->options->init == OT_CHOICE_INIT_RANDOM;
    OT_TRY(random ? ot_model_resolve(s->options->model, &s->model.resolved)
                  : ot_model_obtain(s->options->model, true, &s->model.resolved));
    if (!s->model.resolved.path && !random)
        return ot_fail(OT_E_INPUT, "%s", s->model.resolved.missing);
    if (s->model.resolved.path) {
        OT_TRY(ot_model_dir_open(s->model.resolved.path, &s->model.dir));
        s->model.config = ot_model_dir_facts(s->model.dir)->config;
        s->model.stored = ot_model_dir_facts(s->model.dir)->dtype;
    } else {
        s->model.config = s->model.resolved.preset->config;
    }
    OT_TRY(ot_session_scale_rope(s->options, &s->model.config));
    OT_TRY(take_base_print(s));
    return session_open_adapter(s);
}

static int need_weights(const struct ot_session *s) {
    if (s->options->init == OT_CHOICE_INIT_RANDOM || ot_model_dir_facts(s->model.dir)->has_weights)
        return 0;
    const char *missing = ot_model_dir_facts(s->model.dir)->weights_missing;
    return ot_fail(OT_E_INPUT, "%s: %s%s", ot_model_dir_path(s->model.dir), missing,
                   s->options->command == OT_COMMAND_TRAIN ? "; --init random starts from random weights"
                                                           : "");
}

int ot_session_open(struct ot_settings *settings, struct ot_session *out) {
    OT_TRY(open_machine(settings, out));
    OT_TRY(open_model_files(out));
    OT_TRY(need_weights(out));
    OT_TRY(open_tokenizer(out));
    OT_TRY(ot_chat_choice_open(out));
    OT_TRY(base_choice_open(out));
    OT_TRY(ot_session_open_device(out));
    OT_TRY(ot_session_open_store(out));
    OT_TRY(ot_session_ranks_open(out));
    if (!out->model.dir) /* no file says in which format the model is stored */
        out->model.stored = out->model.dtype;
    return 0;
}

int ot_session_open_model(struct ot_settings *settings, struct ot_session *out) {
    ot_settings_choose_word(settings, "init", OT_CHOICE_INIT_RANDOM);
    OT_TRY(open_machine(settings, out));
    OT_TRY(open_model_files(out));
    OT_TRY(ot_session_open_device(out));
    return ot_session_open_store(out);
}

int ot_session_open_machine(struct ot_settings *settings, struct ot_session *out) {
    OT_TRY(open_machine(settings, out));
    OT_TRY(ot_session_open_device(out));
    return ot_session_open_store(out);
}

int ot_session_open_files(struct ot_settings *settings, enum ot_dtype dtype, struct ot_session *out) {
    OT_TRY(open_machine(settings, out));
    OT_TRY(open_model_files(out));
    OT_TRY(open_tokenizer(out));
    out->model.dtype = dtype;
    if (!out->model.dir)
        out->model.stored = dtype;
    return 0;
}

int ot_session_open_tokenizer(struct ot_settings *settings, struct ot_session *out) {
    OT_TRY(open_machine(settings, out));
    if (out->options->tokenizer) {
        OT_TRY(find_tokenizer(out));
        return ot_tokenizer_open(out->text.tokenizer_path, &out->text.tokenizer);
    }
    OT_TRY(ot_model_obtain(out->options->model, false, &out->model.resolved));
    if (out->model.resolved.path)
        OT_TRY(ot_model_dir_open(out->model.resolved.path, &out->model.dir));
    return open_tokenizer(out);
}

void ot_session_close(struct ot_session *s) {
    if (s->engine && ot_engine_is_stuck(s->engine)) /* the engine's threads still use everything */
        return;
    ot_engine_close(s->engine);
    ot_trace_close(s->trace);
    ot_session_ranks_free_traces(&s->ranks);
    ot_forecast_free(&s->plan.forecast);
    ot_chat_renderer_close(s->text.model_template);
    ot_comm_close(s->ranks.comm);
    ot_device_close(s->machine.device);
    ot_topology_close(s->machine.topology);
    ot_plan_free(&s->plan.chosen);
    ot_model_close(s->model.built);
    ot_tokenizer_close(s->text.tokenizer);
    ot_new_tokens_free(&s->text.new_tokens);
    if (s->text.tokenizer_is_in_memory)
        close(s->text.tokenizer_fd);
    free(s->text.tokenizer_path);
    free(s->text.tokenizer_file);
    free(s->model.lora);
    free(s->model.train);
    ot_json_free(s->text.run);
    ot_model_dir_close(s->model.dir);
    ot_resolved_free(&s->model.resolved);
    ot_pool_close(s->machine.pool);
    *s = (struct ot_session){0};
}

/* ---- start ---- */

/* The most tasks that --trace records, of all ranks. The file is then about 40 MB, which trace viewers open
 * quickly. */
enum { MAX_TRACED_TASKS = 250000 };

int ot_session_start(struct ot_session *s, const struct ot_optimizer_config *optimizer) {
    const struct ot_options *o = s->options;
    OT_TRY(ot_session_ranks_agree(
        s, ot_plan_request_check_fetch(o, ot_model_chain(s->model.built), &s->plan.chosen)));
    int64_t traced = s->traced_tasks ? s->traced_tasks
                     : o->trace      ? MAX_TRACED_TASKS / ot_shard_ranks(&s->ranks.shard)
                                     : 0;
    if (traced)
        OT_TRY(ot_trace_open(ot_model_chain(s->model.built), traced, &s->trace));
    OT_TRY(ot_forecast_again_trace(s));
    struct ot_engine_config engine = {
        .chain = ot_model_chain(s->model.built),
        .device = s->machine.device,
        .plan = &s->plan.chosen,
        .optimizer = optimizer ? *optimizer
                               : (struct ot_optimizer_config){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f},
        .objective = ot_plan_request_objective(o),
        .optimizer_threads = o->optimizer_threads ? (int)o->optimizer_threads : 1,
        .store = s->machine.store.n_dirs ? &s->machine.store : NULL,
        .topology = s->machine.topology,
        .trace = s->trace,
        .stall_limit_seconds = o->stall_limit,
        .skip_spikes = o->skip_spikes,
        .give_up = ot_stop_is_urgent,
        .comm = s->ranks.comm,
        .requests = s->requests,
        .requests_context = s->requests_context,
    };
    OT_TRY(ot_engine_open(&engine, &s->engine));
    if (!s->model.restored)
        return ot_weights_fill(s);
    OT_TRY(ot_weights_fill_frozen(s));
    return ot_session_restore(s);
}
