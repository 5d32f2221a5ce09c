/* Downloads files: several connections at once, each with a chunk of a file.
 *
 * A file goes through these states: it is here (nothing to do); another process downloads it (its lock is
 * held: wait, then it is here); incomplete (partial.h); complete, and its hash is checked; here, under its
 * final name. The caller's thread waits, draws the progress and answers Ctrl-C: the process ends at once,
 * and the next start goes on. OT_DOWNLOAD_STREAMS threads have a connection each. They take the chunks in
 * order, so small files are done first if the caller puts them first. The thread that gets the last chunk
 * of a file also checks the hash, while the others go on with the next file. A connection that is cut, or
 * stalls, is opened again where it stopped; OT_HTTP_MOST_FAILURES failures without a MiB of progress end
 * the download.
 *
 * A wrong hash throws the file away, and gets it once more; then it is an error. A server that does not
 * know ranges sends the file from its start, and what is here already is skipped.
 */
#ifndef OT_HUB_DOWNLOAD_H
#define OT_HUB_DOWNLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/hub/http.h"

enum { OT_DOWNLOAD_STREAMS = 8, OT_DOWNLOAD_DIGEST_BYTES = 65 };
/* No file is larger; a server that says so lies. */
#define OT_DOWNLOAD_MOST_BYTES (INT64_C(1) << 50)

enum ot_download_hash {
    OT_DOWNLOAD_NO_HASH,
    OT_DOWNLOAD_SHA256,
    OT_DOWNLOAD_GIT, /* SHA-1 of "blob BYTES", a NUL and the file, as git names it */
};

struct ot_download_file {
    const char *name; /* for messages */
    const char *url;  /* asked for each chunk; it may redirect */
    const char *path; /* of the finished file; its folder exists */
    const char *lock; /* file for a lock against other processes */
    int64_t bytes;    /* at most OT_DOWNLOAD_MOST_BYTES */
    bool takes_ranges;
    const char *etag; /* that each answer must have; NULL: any */
    enum ot_download_hash hash;
    char digest[OT_DOWNLOAD_DIGEST_BYTES]; /* in hexadecimal */
};

struct ot_download_config {
    struct ot_http_site *site;
    struct ot_download_file *files;
    size_t n;
    const char *title;    /* "org/name", for messages */
    const char *variable; /* the environment variable that moves the files to another disk */
    /* Makes the error of an answer that is neither 2xx nor worth another try. */
    int (*explain)(void *context, const struct ot_download_file *file, struct ot_http_answer *answer);
    void *context;
};

/* What came, of one or several calls. Zero it first. */
struct ot_download_sum {
    int64_t bytes;
    double seconds;
};
/* Logs what came; nothing if nothing did. */
void ot_download_say(const struct ot_download_sum *sum, const char *title);

/* Gets the files that are not here, and adds what came to the sum. Errors:
 * OT_E_IO (connection, disk, space), OT_E_INPUT (wrong hash or length), OT_E_BUDGET, and those of
 * `explain`. */
int ot_download(const struct ot_download_config *config, struct ot_download_sum *sum);

/* Writes the hash of a file in hexadecimal. Errors: OT_E_IO. */
int ot_download_hash_file(int fd, int64_t bytes, enum ot_download_hash hash, const char *name,
                          char digest[OT_DOWNLOAD_DIGEST_BYTES]);

#endif
