#include "src/hub/hub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/hub/cache.h"
#include "src/hub/download.h"
#include "src/hub/site.h"

enum { MOST_LIST_BYTES = 64 << 20, MOST_INDEX_BYTES = 64 << 20, MOST_SHARDS = 10000 };

static const char config_name[] = "config.json";
static const char weights_name[] = "model.safetensors", weights_index[] = "model.safetensors.index.json";
static const char torch_name[] = "pytorch_model.bin", torch_index[] = "pytorch_model.bin.index.json";
static const char adapter_config[] = "adapter_config.json";
static const char adapter_name[] = "adapter_model.safetensors", adapter_torch[] = "adapter_model.bin";

/* What the program reads of a model besides its weights, in this order. The last one alone is in a folder. */
static const char tool_template[] = "additional_chat_templates/tool_use.jinja";
static const char *const small_names[] = {config_name,
                                          "generation_config.json",
                                          "quantize_config.json",
                                          "run.json",
                                          "tokenizer_config.json",
                                          "special_tokens_map.json",
                                          "added_tokens.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "tokenizer.json",
                                          "tokenizer.model",
                                          "spiece.model",
                                          "vocab.json",
                                          "merges.txt",
                                          tool_template};

/* Names that the struct owns. */
struct list {
    char **names;
    size_t n, capacity;
};

/* A repository of the hub, while something is downloaded from it. */
struct repository {
    const struct ot_hub_name *name;
    struct ot_hub_site *site;
    struct ot_http *http;
    struct ot_http_answer *answer;
    char path[PATH_MAX]; /* its folder in the cache */
    char commit[OT_HUB_COMMIT_BYTES];
    struct ot_json *info; /* what the hub says about the revision; it owns: */
    struct list offered;  /* names, sorted */
    struct ot_download_sum sum;
};

/* ---- lists of names ---- */

static void list_free(struct list *list) {
    for (size_t i = 0; i < list->n; i++)
        free(list->names[i]);
    free(list->names);
    *list = (struct list){0};
}

static int list_add(struct list *list, const char *name) {
    OT_TRY(ot_grow(&list->names, &list->capacity, list->n + 1, sizeof *list->names, "names of files"));
    list->names[list->n] = strdup(name);
    return list->names[list->n] ? (list->n++, 0) : ot_fail(OT_E_BUDGET, "no memory for the name of a file");
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_sort(struct list *list) {
    size_t kept = 0;
    if (list->n > 0)
        qsort(list->names, list->n, sizeof *list->names, by_bytes);
    for (size_t i = 0; i < list->n; i++)
        if (kept > 0 && strcmp(list->names[i], list->names[kept - 1]) == 0)
            free(list->names[i]);
        else
            list->names[kept++] = list->names[i];
    list->n = kept;
}

/* list: sorted */
static bool list_has(const struct list *list, const char *name) {
    return list->n > 0 && bsearch(&name, list->names, list->n, sizeof *list->names, by_bytes);
}

/* ---- weights in several files ---- */

/* The files that an index of weights names, sorted. Errors: OT_E_INPUT: it is no index, or names a path. */
static int read_index(const char *path, struct list *shards) {
    struct ot_json *root;
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    OT_TRY(ot_json_read_file(path, MOST_INDEX_BYTES, &root));
    const struct ot_json *map = ot_json_get(root, "weight_map");
    int rc = ot_json_type(map) == OT_JSON_OBJECT ? 0 : ot_fail(OT_E_INPUT, "%s: has no weight_map", path);
    while (rc == 0 && ot_json_next(map, &cursor, &key, &value)) {
        size_t bytes = 0;
        const char *name = ot_json_string(value, &bytes);
        if (!name || strlen(name) != bytes || !ot_hub_is_file(name))
            rc = ot_fail(OT_E_INPUT, "%s: names a file of weights that is no plain name", path);
        else if (shards->n == 0 || strcmp(shards->names[shards->n - 1], name) != 0)
            rc = list_add(shards, name);
    }
    ot_json_free(root);
    list_sort(shards);
    if (rc == 0 && (shards->n == 0 || shards->n > MOST_SHARDS))
        rc = ot_fail(OT_E_INPUT, "%s: names %zu files of weights", path, shards->n);
    return rc;
}

static bool has_file(const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &info) == 0 &&
           S_ISREG(info.st_mode);
}

static bool has_shards(const char *folder, const char *index) {
    char path[PATH_MAX];
    struct list shards = {0};
    bool has = has_file(folder, index) &&
               snprintf(path, sizeof path, "%s/%s", folder, index) < (int)sizeof path &&
               read_index(path, &shards) == 0;
    for (size_t i = 0; i < shards.n && has; i++)
        has = has_file(folder, shards.names[i]);
    list_free(&shards);
    return has;
}

bool ot_hub_has_weights(const char *snapshot) {
    if (has_file(snapshot, weights_name) || has_file(snapshot, weights_index))
        return has_file(snapshot, weights_name) || has_shards(snapshot, weights_index);
    return has_file(snapshot, torch_name) || has_shards(snapshot, torch_index);
}

/* ---- the repository ---- */

static int repository_open(const struct ot_hub_name *name, struct repository *r) {
    *r = (struct repository){.name = name};
    if (!ot_hub_cache_repository(name, r->path))
        return ot_fail(OT_E_IO, "%s: there is no place for the Hugging Face cache; set HF_HOME to a folder",
                       name->id);
    r->site = calloc(1, sizeof *r->site);
    r->answer = calloc(1, sizeof *r->answer);
    if (!r->site || !r->answer)
        return ot_fail(OT_E_BUDGET, "no memory for a connection");
    OT_TRY(ot_hub_site_open(r->site));
    return ot_http_open(&r->site->http, &r->http);
}

static void repository_close(struct repository *r) {
    ot_http_close(r->http);
    ot_json_free(r->info);
    list_free(&r->offered);
    free(r->answer);
    free(r->site);
}

static int no_hub(const struct repository *r) {
    char host[OT_HTTP_ORIGIN_BYTES];
    return ot_fail(
        OT_E_INPUT,
        "%s: %s does not answer as a Hugging Face hub does; look at HF_ENDPOINT, and at a proxy or "
        "login page on the way",
        r->name->id, ot_url_host(r->site->endpoint, host));
}

/* A connection that fails: the sentence gets the name in front and what to do at its end. */
static int no_answer(const struct repository *r, int rc) {
    if (rc == -OT_E_IO)
        return ot_fail(OT_E_IO,
                       "%s: cannot ask the hub: %.300s; look at the network, a proxy (https_proxy) or "
                       "HF_ENDPOINT; without a network, copy the cache of a machine that has one (help hub)",
                       r->name->id, ot_error_text());
    return ot_fail_context(rc, "%s", r->name->id);
}

static int take_names(struct repository *r) {
    const struct ot_json *files = ot_json_get(r->info, "siblings");
    for (size_t i = 0; i < ot_json_length(files); i++) {
        size_t bytes = 0;
        const char *name = ot_json_string(ot_json_get(ot_json_at(files, i), "rfilename"), &bytes);
        bool is_whole = name && strlen(name) == bytes;
        if (is_whole && (ot_hub_is_file(name) || strcmp(name, tool_template) == 0))
            OT_TRY(list_add(&r->offered, name));
    }
    list_sort(&r->offered);
    return 0;
}

/* Asks for the commit of the revision and the names of its files. */
static int ask_list(struct repository *r) {
    char *text, *url = malloc(OT_HTTP_URL_BYTES);
    size_t bytes;
    bool fits = url && ot_hub_url_of_list(r->site, r->name, url);
    int rc = fits ? ot_http_get_text(r->http, url, MOST_LIST_BYTES, &text, &bytes, r->answer)
                  : ot_fail(OT_E_INPUT, "%s: the name is too long", r->name->id);
    free(url);
    if (rc < 0)
        return no_answer(r, rc);
    if (r->answer->status != 200)
        rc = ot_hub_explain(r->site, r->name, NULL, r->answer);
    else if (ot_json_parse(text, bytes, r->name->id, &r->info) < 0)
        rc = no_hub(r);
    free(text);
    OT_TRY(rc);
    const char *commit = ot_json_string(ot_json_get(r->info, "sha"), NULL);
    const char *id = ot_json_string(ot_json_get(r->info, "id"), NULL);
    if (!commit || !ot_hub_is_commit(commit))
        return no_hub(r);
    snprintf(r->commit, sizeof r->commit, "%s", commit);
    if (id && ot_hub_is_id(id, strlen(id)) && strcasecmp(id, r->name->id) != 0)
        ot_log(OT_LOG_INFO, "note    %s is called %s now", r->name->id, id);
    return take_names(r);
}

/* ---- files ---- */

/* The downloads of some files, with the texts that they point to. */
struct batch {
    struct repository *repository;
    struct ot_download_file *files;
    char (*etags)[OT_DOWNLOAD_DIGEST_BYTES];
    size_t n;
};

static void batch_free(struct batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        free((char *)b->files[i].url);
        free((char *)b->files[i].path);
        free((char *)b->files[i].lock);
    }
    free(b->files);
    free(b->etags);
}

/* The hash of a file from its ETag: W/"..", "..", of 64 digits (SHA-256) or 40 (git). */
static bool read_etag(const char *etag, struct ot_download_file *file) {
    if (strncmp(etag, "W/", 2) == 0)
        etag += 2;
    size_t quote = *etag == '"', bytes = strcspn(etag + quote, "\"");
    if (bytes >= sizeof file->digest)
        return false;
    memcpy(file->digest, etag + quote, bytes);
    file->digest[bytes] = '\0';
    file->hash = bytes == 64 ? OT_DOWNLOAD_SHA256 : OT_DOWNLOAD_GIT;
    return ot_hub_is_hex(file->digest, bytes == 64 ? 64 : 40);
}

/* Takes commit, hash and size from the answer to a HEAD request. */
static int read_facts(struct repository *r, struct ot_download_file *file) {
    const struct ot_http_answer *a = r->answer;
    if (!r->commit[0] && ot_hub_is_commit(a->commit))
        snprintf(r->commit, sizeof r->commit, "%s", a->commit);
    if (strcmp(a->commit, r->commit) != 0)
        return no_hub(r);
    /* the length of a redirect is that of its own text */
    file->bytes = a->linked_bytes >= 0 || a->status != 200 ? a->linked_bytes : a->bytes;
    if (!read_etag(a->linked_etag[0] ? a->linked_etag : a->etag, file))
        return ot_fail(OT_E_INPUT, "%s/%s: the hub does not say the file's hash", r->name->id, file->name);
    if (file->bytes < 0 || file->bytes > OT_DOWNLOAD_MOST_BYTES)
        return ot_fail(OT_E_INPUT, "%s/%s: the hub does not say how long the file is", r->name->id,
                       file->name);
    return 0;
}

/* Asks about a file, of the commit if that is known. */
static int ask_file(struct repository *r, const char *name, struct ot_download_file *file) {
    char *url = calloc(1, OT_HTTP_URL_BYTES);
    const char *revision = r->commit[0] ? r->commit : r->name->revision;
    *file = (struct ot_download_file){.name = name, .url = url, .takes_ranges = true};
    if (!url || !ot_hub_url_of_file(r->site, r->name, revision, name, url))
        return ot_fail(OT_E_INPUT, "%s/%.100s: the name is too long", r->name->id, name);
    const struct ot_http_request request = {.url = url, .head = true, .stays = true};
    int rc = ot_http_send_patiently(r->http, &request, r->answer);
    if (rc < 0)
        return no_answer(r, rc);
    if (r->answer->status >= 400)
        return ot_hub_explain(r->site, r->name, name, r->answer);
    return read_facts(r, file);
}

static int place_file(const struct repository *r, struct ot_download_file *file) {
    char *path = NULL, *lock = NULL;
    const char *folder = strrchr(r->path, '/');
    OT_TRY(ot_string_format(&path, "%s/blobs/%s", r->path, file->digest));
    file->path = path;
    OT_TRY(ot_string_format(&lock, "%.*s/.locks%s/%s.lock", (int)(folder - r->path), r->path, folder,
                            file->digest));
    file->lock = lock;
    return ot_hub_make_folders_of(path);
}

static int explain_file(void *context, const struct ot_download_file *file, struct ot_http_answer *answer) {
    const struct repository *r = context;
    return ot_hub_explain(r->site, r->name, file->name, answer);
}

static int batch_get(struct batch *b, const struct list *wanted) {
    struct repository *r = b->repository;
    char snapshot[PATH_MAX];
    snprintf(snapshot, sizeof snapshot, "%.3000s/snapshots/%s", r->path, r->commit);
    for (size_t i = 0; i < wanted->n; i++) {
        if (r->commit[0] && has_file(snapshot, wanted->names[i]))
            continue;
        struct ot_download_file *file = &b->files[b->n++];
        OT_TRY(ask_file(r, wanted->names[i], file));
        OT_TRY(place_file(r, file));
        memcpy(b->etags[b->n - 1], file->digest, sizeof file->digest);
    }
    const struct ot_download_config config = {.site = &r->site->http,
                                              .files = b->files,
                                              .n = b->n,
                                              .title = r->name->id,
                                              .variable = "HF_HUB_CACHE",
                                              .explain = explain_file,
                                              .context = r};
    OT_TRY(ot_download(&config, &r->sum));
    for (size_t i = 0; i < b->n; i++)
        OT_TRY(ot_hub_cache_link(r->path, r->commit, b->files[i].name, b->etags[i]));
    return 0;
}

/* Gets the files that the snapshot lacks. */
static int get_files(struct repository *r, const struct list *wanted) {
    struct batch batch = {.repository = r};
    batch.files = calloc(wanted->n + 1, sizeof *batch.files);
    batch.etags = calloc(wanted->n + 1, sizeof *batch.etags);
    int rc = batch.files && batch.etags ? batch_get(&batch, wanted)
                                        : ot_fail(OT_E_BUDGET, "no memory for %zu files", wanted->n);
    batch_free(&batch);
    return rc;
}

/* ---- a model ---- */

/* Adapters have a config of their own. A config.json beside it is of their base, or of another model. */
static int choose_small(const struct repository *r, enum ot_hub_part part, struct list *wanted) {
    for (size_t i = 0; i < sizeof small_names / sizeof *small_names; i++) {
        const char *name =
            part == OT_HUB_ADAPTERS && small_names[i] == config_name ? adapter_config : small_names[i];
        if (list_has(&r->offered, name))
            OT_TRY(list_add(wanted, name));
    }
    return 0;
}

/* Says why a repository is not a model of transformers. */
static int not_a_model(const struct repository *r) {
    for (size_t i = 0; i < r->offered.n; i++) {
        const char *name = r->offered.names[i], *end = name + strlen(name);
        if (end - name > 5 && strcmp(end - 5, ".gguf") == 0)
            return ot_fail(OT_E_INPUT,
                           "%s: has GGUF files and no %s: choose one, such as --model hf://%s/%.100s",
                           r->name->id, config_name, r->name->id, name);
    }
    if (list_has(&r->offered, adapter_config))
        return ot_fail(
            OT_E_INPUT,
            "%s: holds adapters, not a model: give them with --adapter, and their base with --model",
            r->name->id);
    return ot_fail(OT_E_INPUT, "%s: has no %s, so it is not a model of transformers", r->name->id,
                   config_name);
}

static int no_adapters(const struct repository *r) {
    return ot_fail(OT_E_INPUT,
                   list_has(&r->offered, config_name)
                       ? "%s: holds a model, not adapters (it has no %s): give it with --model"
                       : "%s: has no %s, so it holds no adapters of PEFT",
                   r->name->id, adapter_config);
}

static int choose_adapters(const struct repository *r, struct list *wanted) {
    const char *name = list_has(&r->offered, adapter_name)    ? adapter_name
                       : list_has(&r->offered, adapter_torch) ? adapter_torch
                                                              : NULL;
    return name ? list_add(wanted, name)
                : ot_fail(OT_E_INPUT, "%s: has no weights of adapters: neither %s nor %s", r->name->id,
                          adapter_name, adapter_torch);
}

/* The files of the weights: one, or those of an index, which is downloaded first. */
static int choose_weights(struct repository *r, const char *snapshot, struct list *wanted) {
    const char *index = list_has(&r->offered, weights_name)    ? NULL
                        : list_has(&r->offered, weights_index) ? weights_index
                        : list_has(&r->offered, torch_name)    ? NULL
                                                               : torch_index;
    const char *single = list_has(&r->offered, weights_name) ? weights_name : torch_name;
    char path[PATH_MAX];
    if (!index)
        return list_add(wanted, single);
    if (!list_has(&r->offered, index))
        return ot_fail(OT_E_INPUT, "%s: has no weights: neither %s nor %s, nor parts of them", r->name->id,
                       weights_name, torch_name);
    char *only = (char *)index;
    const struct list indexes = {&only, 1, 1};
    OT_TRY(get_files(r, &indexes));
    snprintf(path, sizeof path, "%.3500s/%s", snapshot, index);
    OT_TRY(read_index(path, wanted));
    for (size_t i = 0; i < wanted->n; i++)
        if (!list_has(&r->offered, wanted->names[i]))
            return ot_fail(OT_E_INPUT, "%s: %s names %.100s, which the repository does not have", r->name->id,
                           index, wanted->names[i]);
    return 0;
}

static int get_model(struct repository *r, enum ot_hub_part part, char snapshot[PATH_MAX]) {
    struct list small = {0}, weights = {0};
    int rc;
    OT_TRY(ask_list(r));
    if (snprintf(snapshot, PATH_MAX, "%s/snapshots/%s", r->path, r->commit) > 3000)
        return ot_fail(OT_E_IO, "%.200s: this path is too long for a cache; set HF_HUB_CACHE", r->path);
    if (part == OT_HUB_ADAPTERS && !list_has(&r->offered, adapter_config))
        return no_adapters(r);
    if (part != OT_HUB_ADAPTERS && !list_has(&r->offered, config_name))
        return not_a_model(r);
    OT_TRY_GOTO(choose_small(r, part, &small), rc, out);
    OT_TRY_GOTO(get_files(r, &small), rc, out);
    if (part == OT_HUB_WEIGHTS)
        OT_TRY_GOTO(choose_weights(r, snapshot, &weights), rc, out);
    else if (part == OT_HUB_ADAPTERS)
        OT_TRY_GOTO(choose_adapters(r, &weights), rc, out);
    OT_TRY_GOTO(get_files(r, &weights), rc, out);
    rc = ot_hub_cache_put_ref(r->path, r->name->revision, r->commit);
out:
    list_free(&small);
    list_free(&weights);
    return rc;
}

int ot_hub_get_model(const struct ot_hub_name *name, enum ot_hub_part part, int64_t *received,
                     char snapshot[PATH_MAX]) {
    struct repository r;
    int rc = repository_open(name, &r);
    if (rc == 0)
        rc = get_model(&r, part, snapshot);
    if (rc == 0)
        ot_download_say(&r.sum, name->id);
    if (received)
        *received += r.sum.bytes;
    repository_close(&r);
    return rc;
}

/* ---- a file ---- */

bool ot_hub_find_file(const struct ot_hub_name *name, char path[PATH_MAX]) {
    char repository[PATH_MAX], commit[OT_HUB_COMMIT_BYTES];
    return ot_hub_cache_repository(name, repository) &&
           ot_hub_cache_commit(name, repository, commit) == OT_HUB_COMMIT_KNOWN &&
           snprintf(path, PATH_MAX, "%s/snapshots/%s/%s", repository, commit, name->file) < PATH_MAX &&
           access(path, R_OK) == 0;
}

int ot_hub_get_file(const struct ot_hub_name *name, bool newest, char path[PATH_MAX]) {
    struct repository r;
    char *only = (char *)name->file;
    const struct list wanted = {&only, 1, 1};
    if (!newest && ot_hub_find_file(name, path))
        return 0;
    if (ot_hub_is_offline())
        return ot_hub_find_file(name, path)
                   ? 0
                   : ot_fail(
                         OT_E_INPUT,
                         "%s/%s: is not in the Hugging Face cache, and HF_HUB_OFFLINE is set: unset it, or "
                         "run 'offload-train download' with this file where there is a network",
                         name->id, name->file);
    int rc = repository_open(name, &r);
    if (rc == 0)
        rc = get_files(&r, &wanted);
    if (rc == 0)
        rc = ot_hub_cache_put_ref(r.path, name->revision, r.commit);
    if (rc == 0)
        ot_download_say(&r.sum, name->id);
    if (rc == 0 && snprintf(path, PATH_MAX, "%s/snapshots/%s/%s", r.path, r.commit, name->file) >= PATH_MAX)
        rc = ot_fail(OT_E_IO, "%.200s: this path is too long for a cache; set HF_HUB_CACHE", r.path);
    repository_close(&r);
    return rc;
}

bool ot_hub_is_remote(const char *text) {
    return ot_hub_is_url(text) || strncasecmp(text, "https://", 8) == 0 ||
           strncasecmp(text, "http://", 7) == 0;
}

int ot_hub_get_remote(const char *url, bool newest, char path[PATH_MAX]) {
    struct ot_hub_name name;
    if (!ot_hub_is_url(url))
        return ot_hub_get_url_file(url, path);
    OT_TRY(ot_hub_name_parse_url(url, &name));
    return ot_hub_get_file(&name, newest, path);
}
