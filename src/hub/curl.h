/* The functions and constants of libcurl that http.c uses, declared here, so that building needs no header of
 * it. They are of its stable ABI (libcurl.so.4, since 2006); the numbers are those of curl/curl.h. */
#ifndef OT_HUB_CURL_H
#define OT_HUB_CURL_H

#include <stddef.h>
#include <stdint.h>

enum { /* CURLoption: 0.. takes a long, 10000.. a pointer, 20000.. a function */
       OT_CURL_LOW_SPEED_LIMIT = 19,
       OT_CURL_LOW_SPEED_TIME = 20,
       OT_CURL_NO_PROGRESS = 43,
       OT_CURL_NO_BODY = 44,
       OT_CURL_HTTP_GET = 80,
       OT_CURL_NO_SIGNAL = 99,
       OT_CURL_CONNECT_TIMEOUT_MS = 156,
       OT_CURL_PATH_AS_IS = 234,
       OT_CURL_WRITE_DATA = 10001,
       OT_CURL_URL = 10002,
       OT_CURL_RANGE = 10007,
       OT_CURL_ERROR_BUFFER = 10010,
       OT_CURL_USER_AGENT = 10018,
       OT_CURL_HTTP_HEADER = 10023,
       OT_CURL_HEADER_DATA = 10029,
       OT_CURL_PROGRESS_DATA = 10057,
       OT_CURL_CA_FILE = 10065,         /* CURLOPT_CAINFO */
       OT_CURL_CA_FOLDER = 10097,       /* CURLOPT_CAPATH */
       OT_CURL_PROXY_CA_FILE = 10246,   /* CURLOPT_PROXY_CAINFO, of a proxy that speaks TLS; since 7.52 */
       OT_CURL_PROXY_CA_FOLDER = 10247, /* CURLOPT_PROXY_CAPATH */
       OT_CURL_WRITE_FUNCTION = 20011,
       OT_CURL_HEADER_FUNCTION = 20079,
       OT_CURL_PROGRESS_FUNCTION = 20219, /* CURLOPT_XFERINFOFUNCTION, since 7.32 */
};
enum { OT_CURL_OK = 0, OT_CURL_GLOBAL_ALL = 3, OT_CURL_ERROR_BYTES = 256 };
/* CURLINFO */
enum { OT_CURL_RESPONSE_CODE = 0x200002, OT_CURL_CONNECT_CODE = 0x200016 };

/* CURLcode */
enum {
    OT_CURL_UNSUPPORTED_PROTOCOL = 1,
    OT_CURL_NO_PROXY = 5,
    OT_CURL_NO_HOST = 6,
    OT_CURL_NO_CONNECTION = 7,
    OT_CURL_WRITE_ERROR = 23,
    OT_CURL_BAD_CERTIFICATE = 60,
    OT_CURL_NO_CERTIFICATES = 77,
};

typedef size_t (*ot_curl_data_fn)(char *data, size_t size, size_t n, void *context);
typedef int (*ot_curl_progress_fn)(void *context, int64_t, int64_t, int64_t, int64_t);

struct ot_curl { /* NULL members: the library is not open */
    int (*global_init)(long flags);
    void *(*easy_init)(void);
    int (*easy_setopt)(void *easy, int option, ...);
    int (*easy_perform)(void *easy);
    int (*easy_getinfo)(void *easy, int info, ...);
    void (*easy_reset)(void *easy);
    void (*easy_cleanup)(void *easy);
    const char *(*easy_strerror)(int code);
    void *(*slist_append)(void *list, const char *text);
    void (*slist_free_all)(void *list);
};

/* Opens the library once for the whole process. NULL: it is missing, or lacks a function; *why (static) says
 * which. */
const struct ot_curl *ot_curl_open(const char **why);

#endif
