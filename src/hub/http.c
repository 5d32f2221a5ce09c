#include "src/hub/http.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/utf8.h"
#include "src/hub/curl.h"

enum { MOST_IGNORED_BYTES = 1 << 20 };  /* of the body of an error */
enum { PROXY_LOGIN = 407 };             /* the status of a proxy that does not know the client */
static const double longest_wait = 300; /* seconds that a server may ask for */

struct ot_http {
    const struct ot_curl *curl;
    struct ot_http_site *site;
    void *easy;
    /* of the request that is under way */
    const struct ot_http_request *request;
    struct ot_http_answer *answer;
    char location[OT_HTTP_URL_BYTES]; /* as the server wrote it */
    int64_t ignored;
    bool is_enough; /* `take` needs no more */
    bool is_final;  /* no answer came, and trying again does not help */
    char error[OT_CURL_ERROR_BYTES];
};

int ot_http_open(struct ot_http_site *site, struct ot_http **out) {
    const char *why;
    const struct ot_curl *curl = ot_curl_open(&why);
    *out = NULL;
    if (!curl)
        return ot_fail(OT_E_IO, "nothing can be downloaded: %s; install it, or download with 'hf download'",
                       why);
    struct ot_http *http = calloc(1, sizeof *http);
    void *easy = http ? curl->easy_init() : NULL;
    if (!easy) {
        free(http);
        return ot_fail(OT_E_BUDGET, "no memory for a connection");
    }
    *http = (struct ot_http){.curl = curl, .site = site, .easy = easy};
    *out = http;
    return 0;
}

void ot_http_close(struct ot_http *http) {
    if (!http)
        return;
    http->curl->easy_cleanup(http->easy);
    free(http);
}

/* ---- headers ---- */

/* The number at the start of a text; -1: there is none, or it is too large. */
static int64_t read_number(const char *text) {
    char *end;
    if (*text < '0' || *text > '9')
        return -1;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return errno == 0 && (*end == '\0' || strchr(" \t-/;,", *end)) ? (int64_t)value : -1;
}

/* "bytes 0-99/1000" */
static void read_content_range(const char *text, struct ot_http_answer *a) {
    const char *slash = strchr(text, '/');
    if (strncasecmp(text, "bytes ", 6) != 0 || !slash)
        return;
    a->range_first = read_number(text + 6);
    a->range_total = read_number(slash + 1);
}

static void read_field(struct ot_http *http, const char *name, const char *value) {
    struct ot_http_answer *a = http->answer;
    const struct {
        const char *name;
        char *to;
        size_t bytes;
    } texts[] = {{"etag", a->etag, sizeof a->etag},
                 {"x-linked-etag", a->linked_etag, sizeof a->linked_etag},
                 {"last-modified", a->modified, sizeof a->modified},
                 {"x-repo-commit", a->commit, sizeof a->commit},
                 {"x-error-code", a->error_code, sizeof a->error_code},
                 {"x-error-message", a->error_text, sizeof a->error_text},
                 {"location", http->location, sizeof http->location}};
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {
        {"content-length", &a->bytes}, {"x-linked-size", &a->linked_bytes}, {"retry-after", &a->retry_after}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcasecmp(name, texts[i].name) == 0)
            snprintf(texts[i].to, texts[i].bytes, "%s", strlen(value) < texts[i].bytes ? value : "");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcasecmp(name, numbers[i].name) == 0)
            *numbers[i].to = read_number(value);
    if (strcasecmp(name, "content-range") == 0)
        read_content_range(value, a);
    if (strcasecmp(name, "accept-ranges") == 0)
        a->takes_ranges = strncasecmp(value, "bytes", 5) == 0;
}

static void forget_answer(struct ot_http *http) {
    struct ot_http_answer *a = http->answer;
    a->status = 0;
    a->bytes = a->range_first = a->range_total = a->linked_bytes = a->retry_after = -1;
    a->takes_ranges = false;
    a->etag[0] = a->linked_etag[0] = a->modified[0] = a->commit[0] = '\0';
    a->error_code[0] = a->error_text[0] = a->location[0] = http->location[0] = '\0';
    a->received = 0;
}

/* Called for each line of the headers, the status line first; several times if interim answers come. */
static size_t on_header(char *data, size_t size, size_t n, void *context) {
    struct ot_http *http = context;
    char line[OT_HTTP_URL_BYTES + 32];
    size_t bytes = size * n;
    if (bytes >= sizeof line || memchr(data, '\0', bytes))
        return bytes; /* no header that counts is that long */
    memcpy(line, data, bytes);
    line[bytes] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    char *colon = strchr(line, ':');
    if (strncmp(line, "HTTP/", 5) == 0) {
        forget_answer(http);
    } else if (colon) {
        *colon = '\0';
        char *value = colon + 1 + strspn(colon + 1, " \t");
        for (size_t length = strlen(value); length > 0 && strchr(" \t", value[length - 1]); length--)
            value[length - 1] = '\0';
        read_field(http, line, value);
    }
    return bytes;
}

/* ---- a transfer ---- */

static int status_of(struct ot_http *http, int which) {
    long status = 0;
    http->curl->easy_getinfo(http->easy, which, &status);
    return (int)status;
}

static size_t on_body(char *data, size_t size, size_t n, void *context) {
    struct ot_http *http = context;
    size_t bytes = size * n;
    http->answer->status = status_of(http, OT_CURL_RESPONSE_CODE);
    bool is_wanted = http->answer->status == 200 || http->answer->status == 206;
    if (is_wanted && http->request->take) {
        http->is_enough = !http->request->take(http->request->context, http->answer, data, bytes);
        http->answer->received += (int64_t)bytes;
    } else {
        http->ignored += (int64_t)bytes;
        http->is_enough = http->ignored > MOST_IGNORED_BYTES;
    }
    return http->is_enough ? 0 : bytes; /* fewer bytes than given end the transfer */
}

static int on_progress(void *context, int64_t a, int64_t b, int64_t c, int64_t d) {
    struct ot_http *http = context;
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load(&http->site->stop);
}

/* The CAs of the site replace those of libcurl, as they do in Python: a file replaces its folder too. */
static void set_certificates(struct ot_http *http) {
    const char *path = http->site->certificates;
    int (*set)(void *, int, ...) = http->curl->easy_setopt;
    struct stat info;
    bool is_folder = *path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *file = is_folder ? NULL : path, *folder = is_folder ? path : NULL;
    if (!*path)
        return;
    set(http->easy, OT_CURL_CA_FILE, file);
    set(http->easy, OT_CURL_CA_FOLDER, folder);
    set(http->easy, OT_CURL_PROXY_CA_FILE, file);
    set(http->easy, OT_CURL_PROXY_CA_FOLDER, folder);
}

static void set_options(struct ot_http *http, void *headers) {
    int (*set)(void *, int, ...) = http->curl->easy_setopt;
    void *easy = http->easy;
    long stall = (long)ot_max(ceil(http->site->timeout), 1.0);
    set(easy, OT_CURL_URL, http->answer->url);
    set(easy, OT_CURL_PATH_AS_IS, 1L);
    set(easy, OT_CURL_NO_SIGNAL, 1L);
    set(easy, OT_CURL_USER_AGENT, "offload-train");
    set(easy, OT_CURL_ERROR_BUFFER, http->error);
    set(easy, OT_CURL_CONNECT_TIMEOUT_MS, (long)(1e3 * http->site->timeout) + 1);
    set(easy, OT_CURL_LOW_SPEED_LIMIT, (long)OT_HTTP_LEAST_RATE);
    set(easy, OT_CURL_LOW_SPEED_TIME, stall);
    set(easy, OT_CURL_NO_PROGRESS, 0L);
    set(easy, OT_CURL_PROGRESS_FUNCTION, (ot_curl_progress_fn)on_progress);
    set(easy, OT_CURL_PROGRESS_DATA, http);
    set(easy, OT_CURL_HEADER_FUNCTION, (ot_curl_data_fn)on_header);
    set(easy, OT_CURL_HEADER_DATA, http);
    set(easy, OT_CURL_WRITE_FUNCTION, (ot_curl_data_fn)on_body);
    set(easy, OT_CURL_WRITE_DATA, http);
    set(easy, OT_CURL_HTTP_HEADER, headers);
    set_certificates(http);
    if (http->request->head)
        set(easy, OT_CURL_NO_BODY, 1L);
}

/* True if the result will be the same again. A name that nobody knows may come back during a download, but
 * not before the first answer: then there is no network. tunnel: the answer of a proxy to CONNECT. */
static bool is_final(const struct ot_http *http, int code, int tunnel) {
    bool is_unreachable =
        code == OT_CURL_NO_PROXY || code == OT_CURL_NO_HOST || code == OT_CURL_NO_CONNECTION;
    return code == OT_CURL_UNSUPPORTED_PROTOCOL || code == OT_CURL_BAD_CERTIFICATE ||
           code == OT_CURL_NO_CERTIFICATES || (tunnel >= 400 && tunnel < 500) ||
           (is_unreachable && !atomic_load(&http->site->answered));
}

/* The headers of a request: no compression, so that lengths are those of the file; the token, if this URL
 * may have it. */
static int make_headers(struct ot_http *http, void **headers) {
    const struct ot_http_site *site = http->site;
    char origin[OT_HTTP_ORIGIN_BYTES], line[OT_HTTP_TOKEN_BYTES + 32];
    bool is_site = site->token[0] && site->origin[0] && ot_url_origin(http->answer->url, origin) &&
                   strcmp(origin, site->origin) == 0;
    *headers = http->curl->slist_append(NULL, "Accept-Encoding: identity");
    if (*headers && is_site) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", site->token);
        void *longer = http->curl->slist_append(*headers, line);
        if (!longer)
            http->curl->slist_free_all(*headers);
        *headers = longer;
    }
    return *headers ? 0 : ot_fail(OT_E_BUDGET, "no memory for a request");
}

/* A server that closes its connection may cause a SIGPIPE in a write of the TLS library. It is blocked
 * during the transfer, and taken if it came. */
static int transfer_without_pipe_signal(struct ot_http *http) {
    const struct timespec now = {0};
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    int code = http->curl->easy_perform(http->easy);
    if (!sigismember(&before, SIGPIPE)) {
        if (sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE))
            sigtimedwait(&pipe_signal, NULL, &now);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return code;
}

/* A proxy answers in the place of the server. */
static int fail_login(struct ot_http *http) {
    http->is_final = true;
    return ot_fail(OT_E_IO,
                   "the proxy wants a login (HTTP %d): http_proxy and https_proxy take "
                   "http://USER:PASSWORD@HOST:PORT",
                   PROXY_LOGIN);
}

/* The error of a transfer that failed with a CURLcode. */
static int explain_transfer(struct ot_http *http, int code) {
    char host[OT_HTTP_ORIGIN_BYTES], cure[200] = "";
    const char *variable = http->site->certificates_variable;
    const char *why = http->error[0] ? http->error : http->curl->easy_strerror(code);
    ot_utf8_keep_line(http->error);
    if (code == OT_CURL_NO_CERTIFICATES && variable)
        snprintf(cure, sizeof cure, "; %s names these certificates", variable);
    else if (code == OT_CURL_BAD_CERTIFICATE)
        snprintf(cure, sizeof cure,
                 "; if a proxy or a server of your own has this certificate, let %s name its CA",
                 variable ? variable : "SSL_CERT_FILE");
    return ot_fail(OT_E_IO, "%s: %.200s%s", ot_url_host(http->answer->url, host), why, cure);
}

/* One request without redirects. */
static int transfer(struct ot_http *http) {
    const struct ot_http_request *r = http->request;
    char range[64];
    void *headers;
    OT_TRY(make_headers(http, &headers));
    forget_answer(http);
    http->error[0] = '\0';
    http->is_enough = false;
    http->ignored = 0;
    http->curl->easy_reset(http->easy);
    set_options(http, headers);
    if (r->last < 0)
        snprintf(range, sizeof range, "%lld-", (long long)r->first);
    else
        snprintf(range, sizeof range, "%lld-%lld", (long long)r->first, (long long)r->last);
    if (r->first != 0 || r->last != 0)
        http->curl->easy_setopt(http->easy, OT_CURL_RANGE, range);
    int code = transfer_without_pipe_signal(http);
    http->answer->status = status_of(http, OT_CURL_RESPONSE_CODE);
    int tunnel = status_of(http, OT_CURL_CONNECT_CODE);
    http->curl->easy_reset(http->easy);
    http->curl->slist_free_all(headers);
    if (http->answer->status > 0)
        atomic_store(&http->site->answered, true);
    http->is_final = is_final(http, code, tunnel);
    if (tunnel == PROXY_LOGIN || http->answer->status == PROXY_LOGIN)
        return fail_login(http);
    if (code == OT_CURL_OK || (http->is_enough && code == OT_CURL_WRITE_ERROR))
        return 0;
    if (atomic_load(&http->site->stop))
        return ot_fail(OT_E_IO, "the download was stopped");
    return explain_transfer(http, code);
}

static bool is_redirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static bool is_same_origin(const char *a, const char *b) {
    char one[OT_HTTP_ORIGIN_BYTES], other[OT_HTTP_ORIGIN_BYTES];
    return ot_url_origin(a, one) && ot_url_origin(b, other) && strcmp(one, other) == 0;
}

/* Follows the redirects of a request. */
static int send_on(struct ot_http *http) {
    struct ot_http_answer *a = http->answer;
    char next[OT_HTTP_URL_BYTES], host[OT_HTTP_ORIGIN_BYTES];
    for (int hop = 0; hop <= OT_HTTP_MOST_REDIRECTS; hop++) {
        OT_TRY(transfer(http));
        if (!is_redirect(a->status))
            return 0;
        if (!ot_url_join(a->url, http->location, next))
            return ot_fail(OT_E_INPUT, "%s: redirects (HTTP %d) to something that is no URL",
                           ot_url_host(a->url, host), a->status);
        if (strncasecmp(a->url, "https:", 6) == 0 && strncasecmp(next, "http:", 5) == 0)
            return ot_fail(OT_E_INPUT, "%s: redirects from https to http, which is refused",
                           ot_url_host(a->url, host));
        bool ends = http->request->stays && (a->linked_etag[0] || !is_same_origin(a->url, next));
        snprintf(ends ? a->location : a->url, OT_HTTP_URL_BYTES, "%s", next);
        if (ends)
            return 0;
    }
    return ot_fail(OT_E_INPUT, "%s: more than %d redirects, one to the next", ot_url_host(a->url, host),
                   OT_HTTP_MOST_REDIRECTS);
}

int ot_http_send(struct ot_http *http, const struct ot_http_request *request, struct ot_http_answer *answer) {
    char origin[OT_HTTP_ORIGIN_BYTES];
    http->request = request;
    http->answer = answer;
    forget_answer(http);
    if (!ot_url_origin(request->url, origin) || strlen(request->url) >= sizeof answer->url)
        return ot_fail(OT_E_INPUT, "%.100s: no URL that can be asked", request->url);
    snprintf(answer->url, sizeof answer->url, "%s", request->url);
    return send_on(http);
}

/* ---- trying again ---- */

static bool may_pass(int rc, int status) {
    return rc == -OT_E_IO || (rc == 0 && (status == 408 || status == 425 || status == 429 || status == 500 ||
                                          status == 502 || status == 503 || status == 504));
}

/* False: the download is stopped. */
static bool pause_for(struct ot_http *http, double seconds) {
    const struct timespec moment = {0, 50000000};
    for (double waited = 0; waited < seconds; waited += 0.05) {
        if (atomic_load(&http->site->stop))
            return false;
        nanosleep(&moment, NULL);
    }
    return !atomic_load(&http->site->stop);
}

/* Says why something is tried again. Of several connections that fail at once, one is enough. */
static void say(struct ot_http *http, int rc, const struct ot_http_answer *answer, double seconds) {
    char host[OT_HTTP_ORIGIN_BYTES];
    int64_t until = ot_clock_ns() + (int64_t)(1e9 * seconds), said = atomic_load(&http->site->said_ns);
    if (until < said + 500000000)
        return;
    atomic_store(&http->site->said_ns, until);
    if (rc < 0)
        ot_log(OT_LOG_INFO, "note    %s: trying again", ot_error_text());
    else if (answer->retry_after > 0)
        ot_log(OT_LOG_INFO, "note    %s asks to wait (HTTP %d): trying again in %.0f s",
               ot_url_host(answer->url, host), answer->status, seconds);
    else
        ot_log(OT_LOG_INFO, "note    %s answers HTTP %d: trying again", ot_url_host(answer->url, host),
               answer->status);
}

bool ot_http_wait(struct ot_http *http, struct ot_http_patience *patience, int rc,
                  const struct ot_http_answer *answer) {
    struct ot_error error;
    bool is_over = atomic_load(&http->site->stop) || (rc < 0 && http->is_final);
    if (is_over || !may_pass(rc, answer->status) || ++patience->failures >= OT_HTTP_MOST_FAILURES)
        return false;
    double seconds = rc == 0 && answer->retry_after > 0
                         ? ot_min((double)answer->retry_after, longest_wait)
                         : http->site->first_pause * ldexp(1, patience->failures - 1);
    ot_error_save(&error, rc);
    say(http, rc, answer, seconds);
    bool goes_on = pause_for(http, seconds);
    if (rc < 0)
        ot_error_load(&error);
    return goes_on;
}

int ot_http_send_patiently(struct ot_http *http, const struct ot_http_request *request,
                           struct ot_http_answer *answer) {
    struct ot_http_patience patience = {0};
    int rc;
    do
        rc = ot_http_send(http, request, answer);
    while (ot_http_wait(http, &patience, rc, answer));
    return rc;
}

/* ---- texts ---- */

struct text {
    struct ot_string_builder builder;
    size_t most;
    bool is_too_long;
};

static bool take_text(void *context, const struct ot_http_answer *answer, const char *data, size_t bytes) {
    struct text *text = context;
    if (answer->received == 0)
        text->builder.bytes = 0;
    text->is_too_long = bytes > text->most - text->builder.bytes;
    if (!text->is_too_long)
        ot_string_append(&text->builder, data, bytes);
    return !text->is_too_long && !text->builder.failed;
}

int ot_http_get_text(struct ot_http *http, const char *url, size_t most, char **text, size_t *bytes,
                     struct ot_http_answer *answer) {
    struct text body = {.most = most};
    const struct ot_http_request request = {.url = url, .take = take_text, .context = &body};
    char host[OT_HTTP_ORIGIN_BYTES];
    *text = NULL;
    *bytes = 0;
    ot_string_append(&body.builder, "", 0);
    int rc = ot_http_send_patiently(http, &request, answer);
    if (rc == 0 && body.is_too_long)
        rc = ot_fail(OT_E_INPUT, "%s: the answer has more than %zu MiB", ot_url_host(url, host), most >> 20);
    if (rc == 0 && answer->status != 200)
        body.builder.bytes = 0;
    ot_string_append(&body.builder, "\0", 1);
    if (rc == 0 && body.builder.failed)
        rc = ot_fail(OT_E_BUDGET, "no memory for an answer of %s", ot_url_host(url, host));
    if (rc < 0) {
        free(body.builder.text);
        return rc;
    }
    *text = body.builder.text;
    *bytes = body.builder.bytes - 1;
    return 0;
}

const char *ot_http_answer_text(const struct ot_http_site *site, struct ot_http_answer *answer) {
    if (site->token[0] && strstr(answer->error_text, site->token))
        return "";
    ot_utf8_keep_line(answer->error_text);
    return answer->error_text;
}
