#include "src/hub/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ot_curl curl;
static char reason[256];
static const struct ot_curl *opened;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"curl_global_init", offsetof(struct ot_curl, global_init)},
    {"curl_easy_init", offsetof(struct ot_curl, easy_init)},
    {"curl_easy_setopt", offsetof(struct ot_curl, easy_setopt)},
    {"curl_easy_perform", offsetof(struct ot_curl, easy_perform)},
    {"curl_easy_getinfo", offsetof(struct ot_curl, easy_getinfo)},
    {"curl_easy_reset", offsetof(struct ot_curl, easy_reset)},
    {"curl_easy_cleanup", offsetof(struct ot_curl, easy_cleanup)},
    {"curl_easy_strerror", offsetof(struct ot_curl, easy_strerror)},
    {"curl_slist_append", offsetof(struct ot_curl, slist_append)},
    {"curl_slist_free_all", offsetof(struct ot_curl, slist_free_all)},
};

/* The library stays open until the process ends. */
static void open_library(void) {
    const char *given = getenv("OFFLOAD_TRAIN_LIBCURL");
    bool is_given = given && *given;
    void *library = dlopen(is_given ? given : "libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!library && !is_given)
        library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason,
                 is_given ? "OFFLOAD_TRAIN_LIBCURL names a file that cannot be opened"
                          : "libcurl.so.4 is not installed (package libcurl4)");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) {
            snprintf(reason, sizeof reason, "libcurl has no function %s", functions[i].name);
            return;
        }
        memcpy((char *)&curl + functions[i].offset, &function, sizeof function);
    }
    if (curl.global_init(OT_CURL_GLOBAL_ALL) == OT_CURL_OK)
        opened = &curl;
    else
        snprintf(reason, sizeof reason, "libcurl does not start");
}

const struct ot_curl *ot_curl_open(const char **why) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    *why = reason;
    return opened;
}
