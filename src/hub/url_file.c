/* A file of any https server, in a cache by address and content.
 *
 *     $XDG_CACHE_HOME/offload-train/files/ADDRESS/CONTENT/rows.jsonl
 *     $XDG_CACHE_HOME/offload-train/files/ADDRESS/current             holds CONTENT: for HF_HUB_OFFLINE
 *
 * ADDRESS is a hash of the URL; CONTENT is one of what the server says about the file: its ETag, or the time
 * of its last change and its length. Each use asks the server for it, so a changed file is another file here.
 * A file about which the server says nothing is downloaded each time. There is no hash to check.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/hub/cache.h"
#include "src/hub/download.h"
#include "src/hub/hub.h"
#include "src/hub/site.h"

enum { KEY_DIGITS = 32, KEY_BYTES = KEY_DIGITS + 1, MOST_NAME_BYTES = 200 };

struct url_file {
    const char *url;
    char host[OT_HTTP_ORIGIN_BYTES], name[MOST_NAME_BYTES + 1];
    char folder[PATH_MAX]; /* ../files/ADDRESS */
    char key[KEY_BYTES];   /* CONTENT */
    struct ot_hub_site site;
    struct ot_http_answer answer;
};

static void make_key(const char *text, char key[KEY_BYTES]) {
    struct ot_sha256 hash;
    uint8_t digest[OT_SHA256_BYTES];
    ot_sha256_begin(&hash);
    ot_sha256_add(&hash, text, strlen(text));
    ot_sha256_end(&hash, digest);
    ot_hash_text(digest, KEY_DIGITS / 2, key);
}

/* The last part of the address, whose ending may say what the file is. */
static void take_name(struct url_file *f) {
    const char *from = strstr(f->url, "://") + 3, *end = from + strcspn(from, "?#"), *last = end;
    while (last > from && last[-1] != '/')
        last--;
    size_t bytes = (size_t)(end - last), kept = ot_min(bytes, (size_t)MOST_NAME_BYTES);
    snprintf(f->name, sizeof f->name, "%.*s", (int)kept, end - kept);
    if (!ot_hub_is_file(f->name) || last == from)
        snprintf(f->name, sizeof f->name, "rows");
}

static int open_file(const char *url, struct url_file *f) {
    char *cache, origin[OT_HTTP_ORIGIN_BYTES];
    f->url = url;
    if (!ot_url_origin(url, origin) || strlen(url) >= OT_HTTP_URL_BYTES)
        return ot_fail(OT_E_INPUT, "the address of a file of rows has a user name, a space or another "
                                   "character that no address may have; write such characters as %%20");
    snprintf(f->host, sizeof f->host, "%s", strstr(origin, "://") + 3);
    take_name(f);
    make_key(url, f->key);
    OT_TRY(ot_cache_folder(&cache));
    int n = cache ? snprintf(f->folder, sizeof f->folder, "%.3000s/files/%s", cache, f->key) : 0;
    free(cache);
    return n ? 0
             : ot_fail(OT_E_IO, "%s: there is no place for the file; set XDG_CACHE_HOME to a folder",
                       f->name);
}

static int path_of(const struct url_file *f, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%.3500s/%s/%s", f->folder, f->key, f->name);
    return 0;
}

/* The content that the last use found. */
static bool read_current(struct url_file *f) {
    char path[PATH_MAX], *text = NULL;
    size_t bytes;
    snprintf(path, sizeof path, "%.3500s/current", f->folder);
    bool is_here =
        ot_cache_read(path, KEY_BYTES, &text, &bytes) == 0 && text && ot_hub_is_hex(text, KEY_DIGITS);
    if (is_here)
        snprintf(f->key, sizeof f->key, "%s", text);
    free(text);
    return is_here;
}

static int find_offline(struct url_file *f, char path[PATH_MAX]) {
    if (read_current(f) && path_of(f, path) == 0 && access(path, R_OK) == 0)
        return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s of %s: was not downloaded before, and HF_HUB_OFFLINE is set: unset it where there is a "
        "network",
        f->name, f->host);
}

static bool take_nothing(void *context, const struct ot_http_answer *answer, const char *data, size_t bytes) {
    (void)context, (void)answer, (void)data, (void)bytes;
    return false;
}

static int explain(void *context, const struct ot_download_file *file, struct ot_http_answer *a) {
    const struct url_file *f = context;
    char host[OT_HTTP_ORIGIN_BYTES];
    (void)file;
    return ot_fail(a->status >= 500 || a->status == 429 ? OT_E_IO : OT_E_INPUT,
                   "%s of %s: %s answers HTTP %d%s", f->name, f->host, ot_url_host(a->url, host), a->status,
                   a->status == 401 || a->status == 403
                       ? ": the file needs a login; download it by other means, and give its path"
                   : a->status == 404 ? ": there is no such file; check the address"
                                      : "; try again later");
}

/* Asks for the first bytes: that works where HEAD is refused, and tells whether the server knows ranges. */
static int ask(struct url_file *f, struct ot_http *http, struct ot_download_file *file) {
    const struct ot_http_request request = {.url = f->url, .first = 0, .last = 1, .take = take_nothing};
    struct ot_http_answer *a = &f->answer;
    int rc = ot_http_send_patiently(http, &request, a);
    if (rc < 0)
        return ot_fail_context(rc, "%s", f->name);
    if (a->status != 200 && a->status != 206)
        return explain(f, file, a);
    file->takes_ranges = a->status == 206;
    file->bytes = file->takes_ranges ? a->range_total : a->bytes;
    if (file->bytes < 0 || file->bytes > OT_DOWNLOAD_MOST_BYTES)
        return ot_fail(OT_E_INPUT,
                       "%s of %s: the server does not say how long the file is; download it by other means, "
                       "and give its path",
                       f->name, f->host);
    return 0;
}

/* True if the server says something that changes with the file. */
static bool take_content(struct url_file *f) {
    const struct ot_http_answer *a = &f->answer;
    char text[512];
    snprintf(text, sizeof text, "%s\n%s\n%lld", a->etag, a->etag[0] ? "" : a->modified,
             (long long)(a->status == 206 ? a->range_total : a->bytes));
    make_key(text, f->key);
    return a->etag[0] || a->modified[0];
}

static int get(struct url_file *f, struct ot_http *http, char path[PATH_MAX]) {
    char lock[PATH_MAX], current[PATH_MAX];
    struct ot_download_sum sum = {0};
    struct ot_download_file file = {.name = f->name, .url = f->url, .path = path, .lock = lock};
    const struct ot_download_config config = {.site = &f->site.http,
                                              .files = &file,
                                              .n = 1,
                                              .title = f->host,
                                              .variable = "XDG_CACHE_HOME",
                                              .explain = explain,
                                              .context = f};
    OT_TRY(ask(f, http, &file));
    bool is_known = take_content(f);
    path_of(f, path);
    snprintf(lock, sizeof lock, "%.3500s/lock", f->folder);
    snprintf(current, sizeof current, "%.3500s/current", f->folder);
    OT_TRY(ot_hub_make_folders_of(path));
    if (!is_known)
        unlink(path);
    file.etag = f->answer.etag[0] ? f->answer.etag : NULL;
    OT_TRY(ot_download(&config, &sum));
    ot_download_say(&sum, f->name);
    return ot_cache_write(current, f->key, KEY_DIGITS);
}

int ot_hub_get_url_file(const char *url, char path[PATH_MAX]) {
    struct url_file *f = calloc(1, sizeof *f);
    struct ot_http *http = NULL;
    int rc;
    if (!f)
        return ot_fail(OT_E_BUDGET, "no memory for a download");
    OT_TRY_GOTO(open_file(url, f), rc, out);
    if (ot_hub_is_offline()) {
        rc = find_offline(f, path);
        goto out;
    }
    OT_TRY_GOTO(ot_hub_site_open(&f->site), rc, out);
    OT_TRY_GOTO(ot_http_open(&f->site.http, &http), rc, out);
    rc = get(f, http, path);
out:
    ot_http_close(http);
    free(f);
    return rc;
}
