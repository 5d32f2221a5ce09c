/* HTTP: one request at a time, over libcurl.
 *
 * libcurl is opened at run time: the program neither needs it to build nor to start. Its environment holds
 * too: http_proxy, https_proxy and no_proxy name proxies. It has certificates of its own system, unless the
 * site names others.
 *
 * Redirects are followed here and not by libcurl, because the token may go to one origin only: that of the
 * site (scheme, host and port). Each request is checked again, so a redirect to another host goes without
 * the token. A redirect from https to http is refused. Requests end if they stall: a connection must be
 * there within the time-out, and bytes must arrive at OT_HTTP_LEAST_RATE at least.
 *
 * Nothing that a server sends is trusted: headers have limits, and texts for messages are cleaned
 * (ot_http_answer_text). No message contains a token, or the query of a URL, which may be a signature.
 *
 * A struct ot_http is of one thread. Several threads may each have one.
 */
#ifndef OT_HUB_HTTP_H
#define OT_HUB_HTTP_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OT_HTTP_URL_BYTES = 8192,
    OT_HTTP_ORIGIN_BYTES = 300,
    OT_HTTP_MOST_REDIRECTS = 10,
    OT_HTTP_LEAST_RATE = 512, /* bytes per second; slower for the time-out: the transfer ends */
    OT_HTTP_TOKEN_BYTES = 512,
};

/* Who is asked, shared by all connections. */
struct ot_http_site {
    char origin[OT_HTTP_ORIGIN_BYTES]; /* the only origin that gets the token; "": none gets it */
    char token[OT_HTTP_TOKEN_BYTES];   /* "": none */
    char certificates[PATH_MAX];       /* a file or a folder of CAs, in place of libcurl's; "": libcurl's */
    const char *certificates_variable; /* the environment variable that names them */
    double timeout;                    /* seconds */
    double first_pause;                /* seconds before the first retry; each later pause is twice as long */
    atomic_bool answered;              /* an answer has come */
    _Atomic int64_t said_ns;           /* until when a person was told that something waits */
    atomic_bool stop;                  /* set by any thread: transfers and pauses end soon, with an error */
};

struct ot_http_answer {
    int status;
    int64_t bytes;                    /* Content-Length; -1: not said */
    int64_t range_first, range_total; /* of Content-Range; -1: not said */
    int64_t linked_bytes;             /* X-Linked-Size; -1: not said */
    int64_t retry_after;              /* seconds; -1: not said */
    bool takes_ranges;                /* Accept-Ranges: bytes */
    /* "": not said, or longer than any that is valid */
    char etag[256], linked_etag[256], modified[64], commit[64], error_code[64], error_text[256];
    char url[OT_HTTP_URL_BYTES];      /* the last URL that was asked */
    char location[OT_HTTP_URL_BYTES]; /* absolute; of a redirect that was not followed; "": none */
    int64_t received;                 /* bytes of the body that `take` was given */
};

struct ot_http_request {
    const char *url;
    bool head;           /* no body */
    bool stays;          /* follow redirects within the origin of the URL only */
    int64_t first, last; /* the bytes to ask for; last < 0: to the end; both 0: all */
    /* Takes a part of the body of an answer with status 200 or 206; the headers are known. False: the rest
     * is not needed; the request then succeeds. NULL: the body is not wanted. */
    bool (*take)(void *context, const struct ot_http_answer *answer, const char *data, size_t bytes);
    void *context;
};

struct ot_http;

/* Errors: OT_E_IO: libcurl is missing; the sentence says what to do. OT_E_BUDGET. */
int ot_http_open(struct ot_http_site *site, struct ot_http **out);
void ot_http_close(struct ot_http *http); /* NULL is fine */

/* Sends the request once, and once more for each redirect. Returns 0 for an answer of any status. Errors:
 * OT_E_IO: no answer, or it was cut: trying again may help. OT_E_INPUT: a redirect that cannot be
 * followed. */
int ot_http_send(struct ot_http *http, const struct ot_http_request *request, struct ot_http_answer *answer);

/* Failures since the last progress. Zero it first. */
struct ot_http_patience {
    int failures;
};
enum { OT_HTTP_MOST_FAILURES = 5 };
/* After a send that returned rc: true if trying again may help; it has then waited (a pause, or the time
 * that the answer asks for, up to 5 minutes). False: the result stays. */
bool ot_http_wait(struct ot_http *http, struct ot_http_patience *patience, int rc,
                  const struct ot_http_answer *answer);
/* ot_http_send, repeated while ot_http_wait says so. Only for requests whose `take` begins again when
 * answer->received is 0. */
int ot_http_send_patiently(struct ot_http *http, const struct ot_http_request *request,
                           struct ot_http_answer *answer);
/* The body of a request, with a NUL behind it; the caller frees *text. It is empty if the status is not
 * 200. Errors: as ot_http_send; OT_E_INPUT: the body is larger than `most`. */
int ot_http_get_text(struct ot_http *http, const char *url, size_t most, char **text, size_t *bytes,
                     struct ot_http_answer *answer);

/* What the server says about an error, cleaned for a message and without the token; "": nothing. */
const char *ot_http_answer_text(const struct ot_http_site *site, struct ot_http_answer *answer);

/* ---- URLs ---- */

/* Writes "https://host:port" in lower case, without the port if it is that of the scheme. False: no URL of
 * http or https, or one with a user name, a strange host, spaces or control characters. */
bool ot_url_origin(const char *url, char origin[OT_HTTP_ORIGIN_BYTES]);
/* Resolves the Location of an answer from `base`. False: it is not a URL that can be followed. */
bool ot_url_join(const char *base, const char *location, char url[OT_HTTP_URL_BYTES]);
/* Appends the text, with all characters but letters, digits and "-._~" escaped, and '/' too if `whole`.
 * False: no room. */
bool ot_url_append(char url[OT_HTTP_URL_BYTES], const char *text, bool whole);
/* The host of a URL, for messages: "huggingface.co", "127.0.0.1:8000". */
const char *ot_url_host(const char *url, char host[OT_HTTP_ORIGIN_BYTES]);

#endif
