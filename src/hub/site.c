#include "src/hub/site.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/hub/cache.h"

enum { MOST_TOKEN_FILE_BYTES = 4096 };
static const double default_timeout = 10; /* seconds, as in huggingface_hub */

/* Copies a token without the white space around it. False: it has characters that no token has, which could
 * add a header to a request. */
static bool copy_token(const char *text, char token[OT_HTTP_TOKEN_BYTES]) {
    size_t first = strspn(text, " \t\r\n"), bytes = strlen(text + first);
    while (bytes > 0 && strchr(" \t\r\n", text[first + bytes - 1]))
        bytes--;
    if (bytes >= OT_HTTP_TOKEN_BYTES)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[first + i] <= ' ' || (unsigned char)text[first + i] >= 0x7f)
            return false;
    snprintf(token, OT_HTTP_TOKEN_BYTES, "%.*s", (int)bytes, text + first);
    return true;
}

static int read_token(char token[OT_HTTP_TOKEN_BYTES]) {
    static const char *const variables[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    char path[PATH_MAX], *text = NULL, line[MOST_TOKEN_FILE_BYTES + 1];
    size_t bytes;
    token[0] = '\0';
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value && !copy_token(value, token))
            return ot_fail(OT_E_USAGE, "%s: this is no token: it has spaces or characters that no token has",
                           variables[i]);
        if (token[0])
            return 0;
    }
    if (!ot_hub_token_path(path) || access(path, F_OK) != 0)
        return 0;
    OT_TRY(ot_read_file(path, MOST_TOKEN_FILE_BYTES, &text, &bytes));
    snprintf(line, sizeof line, "%.*s", (int)bytes, text);
    free(text);
    return copy_token(line, token)
               ? 0
               : ot_fail(OT_E_USAGE, "%s: this file holds no token; log in again with 'hf auth login'", path);
}

static double read_timeout(void) {
    const char *text = getenv("HF_HUB_DOWNLOAD_TIMEOUT");
    double seconds = text ? strtod(text, NULL) : 0;
    return seconds > 0 && seconds < 1e6 ? seconds : default_timeout;
}

/* The first variable counts, as in requests (the first two) and httpx (the last), which huggingface_hub used
 * one after the other. */
static int find_certificates(struct ot_http_site *http) {
    static const char *const variables[] = {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables && !http->certificates[0]; i++) {
        const char *path = getenv(variables[i]);
        if (!path || !*path)
            continue;
        if (strlen(path) >= sizeof http->certificates || access(path, R_OK) != 0)
            return ot_fail(OT_E_USAGE,
                           "%s: %.200s cannot be read: unset it, or let it name a file of certificates (PEM)",
                           variables[i], path);
        snprintf(http->certificates, sizeof http->certificates, "%s", path);
        http->certificates_variable = variables[i];
    }
    return 0;
}

int ot_hub_site_open(struct ot_hub_site *site) {
    const char *given = getenv("HF_ENDPOINT");
    memset(site, 0, sizeof *site);
    site->http.timeout = read_timeout();
    site->http.first_pause = site->http.timeout / 20; /* half a second by default */
    OT_TRY(find_certificates(&site->http));
    const char *endpoint = given && *given ? given : "https://huggingface.co";
    size_t bytes = strlen(endpoint);
    while (bytes > 0 && endpoint[bytes - 1] == '/')
        bytes--;
    if (bytes >= sizeof site->endpoint || strpbrk(endpoint, "?#") ||
        !ot_url_origin(endpoint, site->http.origin))
        return ot_fail(OT_E_USAGE,
                       "HF_ENDPOINT: not the address of a server, such as https://huggingface.co");
    snprintf(site->endpoint, sizeof site->endpoint, "%.*s", (int)bytes, endpoint);
    return read_token(site->http.token);
}

/* ---- URLs ---- */

bool ot_hub_url_of_list(const struct ot_hub_site *site, const struct ot_hub_name *name,
                        char url[OT_HTTP_URL_BYTES]) {
    int n = snprintf(url, OT_HTTP_URL_BYTES, "%s/api/%s/%s/revision/", site->endpoint,
                     name->kind == OT_HUB_DATASET ? "datasets" : "models", name->id);
    return n < OT_HTTP_URL_BYTES && ot_url_append(url, name->revision, true);
}

bool ot_hub_url_of_file(const struct ot_hub_site *site, const struct ot_hub_name *name, const char *revision,
                        const char *file, char url[OT_HTTP_URL_BYTES]) {
    int n = snprintf(url, OT_HTTP_URL_BYTES, "%s/%s%s/resolve/", site->endpoint,
                     name->kind == OT_HUB_DATASET ? "datasets/" : "", name->id);
    if (n >= OT_HTTP_URL_BYTES || !ot_url_append(url, revision, true))
        return false;
    size_t at = strlen(url);
    if (at + 1 >= OT_HTTP_URL_BYTES)
        return false;
    url[at] = '/';
    url[at + 1] = '\0';
    return ot_url_append(url, file, false);
}

/* ---- errors ---- */

struct refusal {
    const struct ot_hub_site *site;
    const struct ot_hub_name *name;
    const char *what;   /* "org/name" */
    const char *folder; /* "datasets/" or "" */
    bool has_token;
};

static int explain_gated(const struct refusal *r) {
    return ot_fail(OT_E_INPUT,
                   r->has_token
                       ? "%s is gated, and the account of your token has no access to it: accept its "
                         "terms at %s/%s%s"
                       : "%s is gated: accept its terms at %s/%s%s, then set HF_TOKEN to a token of "
                         "that account",
                   r->what, r->site->endpoint, r->folder, r->name->id);
}

static int explain_token(const struct refusal *r) {
    return ot_fail(OT_E_INPUT,
                   "%s: the hub does not accept your token: make a new one at %s/settings/tokens, and set "
                   "HF_TOKEN to it or run 'hf auth login'",
                   r->what, r->site->endpoint);
}

/* The hub answers 401 for a private repository and for one that does not exist. */
static int explain_missing(const struct refusal *r) {
    const char *thing = r->name->kind == OT_HUB_DATASET ? "dataset" : "model";
    if (r->has_token)
        return ot_fail(OT_E_INPUT,
                       "%s: the hub has no %s of this name, or it is private and your token may not read it: "
                       "check the name, and the account of the token",
                       r->what, thing);
    return ot_fail(
        OT_E_INPUT,
        "%s: the hub has no public %s of this name: check the name; if it is private, set HF_TOKEN "
        "to a token that may read it",
        r->what, thing);
}

static int explain_forbidden(const struct refusal *r, const char *said) {
    return ot_fail(OT_E_INPUT,
                   "%s: the hub refuses access (HTTP 403%s%s): give your token the right to read this "
                   "repository at %s/settings/tokens",
                   r->what, *said ? ": " : "", said, r->site->endpoint);
}

static int explain_not_found(const struct refusal *r, const char *file, const char *code) {
    if (strcmp(code, "RevisionNotFound") == 0)
        return ot_fail(OT_E_INPUT, "%s has no branch, tag or commit '%s': see %s/%s%s/tree/main", r->what,
                       r->name->revision, r->site->endpoint, r->folder, r->name->id);
    if (file && strcmp(code, "RepoNotFound") != 0)
        return ot_fail(OT_E_INPUT, "%s has no file '%s': see %s/%s%s/tree/%s", r->what, file,
                       r->site->endpoint, r->folder, r->name->id, r->name->revision);
    return explain_missing(r);
}

int ot_hub_explain(const struct ot_hub_site *site, const struct ot_hub_name *name, const char *file,
                   struct ot_http_answer *a) {
    char host[OT_HTTP_ORIGIN_BYTES];
    const struct refusal r = {site, name, name->id, name->kind == OT_HUB_DATASET ? "datasets/" : "",
                              site->http.token[0] != '\0'};
    const char *said = ot_http_answer_text(&site->http, a);
    char origin[OT_HTTP_ORIGIN_BYTES];
    bool is_hub = ot_url_origin(a->url, origin) && strcmp(origin, site->http.origin) == 0;
    if (is_hub && strcmp(a->error_code, "GatedRepo") == 0)
        return explain_gated(&r);
    if (is_hub && a->status == 401 && r.has_token && strncmp(said, "Invalid credentials", 19) == 0)
        return explain_token(&r);
    if (is_hub && a->status == 401)
        return explain_missing(&r);
    if (is_hub && a->status == 403)
        return explain_forbidden(&r, said);
    if (is_hub && a->status == 404)
        return explain_not_found(&r, file, a->error_code);
    if (a->status == 429)
        return ot_fail(OT_E_IO,
                       "%s: %s asks for fewer requests (HTTP 429): wait some minutes%s, then run the command "
                       "again",
                       r.what, ot_url_host(a->url, host),
                       r.has_token ? "" : ", or set HF_TOKEN, which has a higher limit");
    if (a->status >= 500)
        return ot_fail(OT_E_IO,
                       "%s: %s has a fault (HTTP %d) and did not recover: run the command again later",
                       r.what, ot_url_host(a->url, host), a->status);
    return ot_fail(OT_E_INPUT, "%s%s%s: %s answers HTTP %d%s%s", r.what, file ? "/" : "", file ? file : "",
                   ot_url_host(a->url, host), a->status, *said ? ": " : "", said);
}
