#include "src/hub/download.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/signals.h"
#include "src/base/thread.h"
#include "src/base/units.h"
#include "src/hub/cache.h"
#include "src/hub/partial.h"

enum { PROGRESS_BYTES = 1 << 20 };       /* after which failures are forgotten */
enum { ANNOUNCED_BYTES = 16 << 20 };     /* from which a download is announced */
enum { RESERVE_BYTES = 64 << 20 };       /* free space that is left to others */
static const double draw_seconds = 0.25; /* between two drawings of the progress */
static const double line_seconds = 10;   /* between two lines of it, where there is no terminal */

struct target {
    struct ot_download_file *file;
    struct ot_partial partial;
    int lock;     /* -1: none */
    bool is_open; /* to download */
    size_t next;  /* the first chunk that nobody has taken */
    size_t left;  /* chunks that are not here yet, taken ones too */
    bool is_again;
};

struct job {
    const struct ot_download_config *config;
    struct target *targets; /* [config->n] */
    int64_t total;
    _Atomic int64_t here, received;
    /* of the lock: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int running;           /* threads */
    struct ot_error error; /* the first one; code 0: none */
};

/* ---- hashes ---- */

int ot_download_hash_file(int fd, int64_t bytes, enum ot_download_hash hash, const char *name,
                          char digest[OT_DOWNLOAD_DIGEST_BYTES]) {
    enum { PIECE_BYTES = 1 << 20 };
    struct ot_sha256 sha256;
    struct ot_sha1 sha1;
    uint8_t result[OT_SHA256_BYTES];
    char head[64], *piece = malloc(PIECE_BYTES);
    int64_t got = piece ? 1 : 0;
    ot_sha256_begin(&sha256);
    ot_sha1_begin(&sha1);
    int n = snprintf(head, sizeof head, "blob %lld", (long long)bytes);
    ot_sha1_add(&sha1, head, (size_t)n + 1);
    for (int64_t at = 0; at < bytes && got > 0; at += got) {
        got = ot_read_at(fd, piece, (size_t)ot_min(bytes - at, (int64_t)PIECE_BYTES), at);
        if (got > 0 && hash == OT_DOWNLOAD_SHA256)
            ot_sha256_add(&sha256, piece, (size_t)got);
        else if (got > 0)
            ot_sha1_add(&sha1, piece, (size_t)got);
    }
    if (!piece)
        return ot_fail(OT_E_BUDGET, "no memory to check %s", name);
    free(piece);
    if (got <= 0)
        return ot_fail_errno(OT_E_IO, got < 0 ? (int)-got : EIO, "%s: cannot read what was downloaded", name);
    if (hash == OT_DOWNLOAD_SHA256)
        ot_sha256_end(&sha256, result);
    else
        ot_sha1_end(&sha1, result);
    ot_hash_text(result, hash == OT_DOWNLOAD_SHA256 ? OT_SHA256_BYTES : OT_SHA1_BYTES, digest);
    return 0;
}

static int check_hash(const struct target *t, bool *is_right) {
    const struct ot_download_file *f = t->file;
    char digest[OT_DOWNLOAD_DIGEST_BYTES];
    *is_right = f->hash == OT_DOWNLOAD_NO_HASH;
    if (*is_right)
        return 0;
    OT_TRY(ot_download_hash_file(t->partial.fd, f->bytes, f->hash, f->name, digest));
    *is_right = strcmp(digest, f->digest) == 0;
    return 0;
}

static void forget_chunks(struct job *job, struct target *t) {
    atomic_fetch_sub(&job->here, ot_partial_here(&t->partial));
}

/* Ends a file whose chunks are all here, or begins it again if its hash is wrong. */
static int finish(struct job *job, struct target *t) {
    const struct ot_download_file *f = t->file;
    bool is_right;
    OT_TRY(check_hash(t, &is_right));
    if (is_right)
        return ot_partial_finish(&t->partial, f->path);
    forget_chunks(job, t);
    OT_TRY(ot_partial_restart(&t->partial));
    if (t->is_again || t->partial.n_chunks == 0)
        return ot_fail(OT_E_INPUT,
                       "%s/%s: what arrives has another hash than the server says, twice: something on the "
                       "way changes it, or the server is at fault",
                       job->config->title, f->name);
    ot_log(OT_LOG_WARN, "%s: what arrived has the wrong hash; downloading it again", f->name);
    pthread_mutex_lock(&job->mutex);
    t->is_again = true;
    t->next = 0;
    t->left = t->partial.n_chunks;
    pthread_mutex_unlock(&job->mutex);
    return 0;
}

/* ---- chunks ---- */

/* A request for the rest of a chunk. */
struct piece {
    struct job *job;
    struct target *target;
    size_t chunk;
    int64_t skip; /* bytes that come before the chunk, from a server without ranges */
    int rc;
};

/* The answer must be the part that was asked for, of a file of the right length. */
static int check_answer(const struct piece *p, int64_t first, const struct ot_http_answer *a) {
    const struct ot_download_file *f = p->target->file;
    bool is_part = a->status == 206;
    int64_t total = is_part ? a->range_total : a->bytes;
    if (is_part && a->range_first != first)
        return ot_fail(OT_E_INPUT, "%s: the server sends another part of the file than was asked for",
                       f->name);
    if (f->etag && strcmp(f->etag, a->etag) != 0)
        return ot_fail(OT_E_IO, "%s: the file changes at the server during the download: try again", f->name);
    if (total >= 0 && total != f->bytes)
        return ot_fail(OT_E_INPUT, "%s: the server says %lld bytes, and then sends a file of %lld", f->name,
                       (long long)f->bytes, (long long)total);
    return 0;
}

static bool take_piece(void *context, const struct ot_http_answer *answer, const char *data, size_t bytes) {
    struct piece *p = context;
    struct ot_partial *partial = &p->target->partial;
    int64_t size = ot_partial_size_of(partial, p->chunk), before = partial->done[p->chunk];
    int64_t first = (int64_t)p->chunk * partial->chunk_bytes + before;
    if (answer->received == 0) {
        p->skip = answer->status == 200 ? first : 0;
        p->rc = check_answer(p, first, answer);
    }
    size_t skipped = (size_t)ot_min(p->skip, (int64_t)bytes);
    p->skip -= (int64_t)skipped;
    if (p->rc == 0 && bytes > skipped)
        p->rc = ot_partial_put(partial, p->chunk, data + skipped, bytes - skipped);
    atomic_fetch_add(&p->job->here, partial->done[p->chunk] - before);
    atomic_fetch_add(&p->job->received, (int64_t)bytes);
    return p->rc == 0 && partial->done[p->chunk] < size;
}

static bool is_success(int status) {
    return status == 200 || status == 206;
}

/* Sends one request for the rest of a chunk. Errors: as ot_http_send; OT_E_INPUT. */
static int get_piece(struct ot_http *http, struct piece *p, struct ot_http_answer *answer) {
    const struct ot_partial *partial = &p->target->partial;
    int64_t start = (int64_t)p->chunk * partial->chunk_bytes, size = ot_partial_size_of(partial, p->chunk);
    const struct ot_http_request request = {.url = p->target->file->url,
                                            .first = start + partial->done[p->chunk],
                                            .last = start + size - 1,
                                            .take = take_piece,
                                            .context = p};
    p->rc = 0;
    OT_TRY(ot_http_send(http, &request, answer));
    OT_TRY(p->rc);
    if (is_success(answer->status) && partial->done[p->chunk] < size)
        return ot_fail(OT_E_IO, "%s: the connection ended before the file did", p->target->file->name);
    return 0;
}

static int get_chunk(struct job *job, struct ot_http *http, struct target *t, size_t chunk) {
    struct ot_http_answer *answer = malloc(sizeof *answer);
    struct ot_http_patience patience = {0};
    struct piece piece = {.job = job, .target = t, .chunk = chunk};
    uint32_t *done = &t->partial.done[chunk], counted = *done;
    int rc = answer ? 0 : ot_fail(OT_E_BUDGET, "no memory for a download");
    while (rc == 0 && *done < ot_partial_size_of(&t->partial, chunk)) {
        rc = get_piece(http, &piece, answer);
        if (*done - counted >= PROGRESS_BYTES) {
            patience.failures = 0;
            counted = *done;
        }
        bool is_bad = piece.rc < 0 || (rc == 0 && is_success(answer->status));
        if (!is_bad && ot_http_wait(http, &patience, rc, answer))
            rc = 0;
        else if (rc == 0 && !is_success(answer->status))
            rc = job->config->explain(job->config->context, t->file, answer);
        else if (rc < 0 && piece.rc == 0)
            ot_fail_context(rc, "%s: %s", job->config->title, t->file->name);
    }
    free(answer);
    return rc;
}

/* ---- threads ---- */

/* Takes a chunk for this thread. False: nobody has a chunk left. */
static bool take_chunk(struct job *job, struct target **target, size_t *chunk) {
    bool is_found = false;
    pthread_mutex_lock(&job->mutex);
    for (size_t i = 0; i < job->config->n && !is_found && !job->error.code; i++) {
        struct target *t = &job->targets[i];
        while (t->is_open && !is_found && t->next < t->partial.n_chunks) {
            *chunk = t->next++;
            *target = t;
            is_found = t->partial.done[*chunk] < ot_partial_size_of(&t->partial, *chunk);
        }
    }
    pthread_mutex_unlock(&job->mutex);
    return is_found;
}

static bool ends_file(struct job *job, struct target *t) {
    pthread_mutex_lock(&job->mutex);
    bool ends = --t->left == 0;
    pthread_mutex_unlock(&job->mutex);
    return ends;
}

static int get_chunks(struct job *job, struct ot_http *http) {
    struct target *t;
    size_t chunk;
    while (take_chunk(job, &t, &chunk)) {
        OT_TRY(get_chunk(job, http, t, chunk));
        if (ends_file(job, t))
            OT_TRY(finish(job, t));
    }
    return 0;
}

static void *run_stream(void *arg) {
    struct job *job = arg;
    struct ot_http *http;
    int rc = ot_http_open(job->config->site, &http);
    if (rc == 0)
        rc = get_chunks(job, http);
    ot_http_close(http);
    pthread_mutex_lock(&job->mutex);
    if (rc < 0 && !job->error.code) {
        ot_error_save(&job->error, rc);
        atomic_store(&job->config->site->stop, true);
    }
    job->running--;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
    return NULL;
}

/* ---- progress ---- */

/* The rate of the last seconds. */
struct rate {
    double begun, last; /* times */
    int64_t received;   /* at the last time */
    double per_second;
};

/* The mean of all so far for the first seconds; then older seconds count less and less. */
static void update_rate(struct rate *rate, double now, int64_t received) {
    const double memory_seconds = 8;
    double passed = now - rate->last, share = passed / ot_min(now - rate->begun, memory_seconds);
    if (passed <= 0)
        return;
    rate->per_second +=
        ((double)(received - rate->received) / passed - rate->per_second) * ot_min(share, 1.0);
    rate->last = now;
    rate->received = received;
}

static void make_line(const struct job *job, const struct rate *rate, char line[160]) {
    char here[OT_TEXT_BYTES], total[OT_TEXT_BYTES], bytes[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    int64_t missing = job->total - atomic_load(&job->here);
    snprintf(line, 160, "download %s: %s of %s · %s/s", job->config->title,
             ot_text_bytes(atomic_load(&job->here), here), ot_text_bytes(job->total, total),
             ot_text_bytes((int64_t)rate->per_second, bytes));
    size_t at = strlen(line);
    if (rate->per_second >= 1)
        snprintf(line + at, 160 - at, " · %s left",
                 ot_text_duration((double)missing / rate->per_second, left));
}

/* Waits for the threads. Called and returns with the lock held. */
static void await(struct job *job) {
    double said = ot_clock_seconds();
    struct rate rate = {.begun = said, .last = said};
    char line[160];
    while (job->running > 0) {
        ot_cond_wait_until(&job->changed, &job->mutex, ot_clock_ns() + (int64_t)(1e9 * draw_seconds));
        double now = ot_clock_seconds();
        update_rate(&rate, now, atomic_load(&job->received));
        if (ot_log_is_quiet() || job->running == 0)
            continue;
        make_line(job, &rate, line);
        if (!ot_log_set_status(line) && now - said > line_seconds) {
            ot_log_progress(line);
            said = now;
        }
    }
    ot_log_set_status("");
}

static int run_streams(struct job *job, size_t n_chunks) {
    pthread_t threads[OT_DOWNLOAD_STREAMS];
    int n = 0, most = (int)ot_min(n_chunks, (size_t)OT_DOWNLOAD_STREAMS);
    pthread_mutex_lock(&job->mutex);
    for (; n < most && ot_thread_start(&threads[n], "download", run_stream, job) == 0; n++)
        job->running++;
    await(job);
    pthread_mutex_unlock(&job->mutex);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    if (n == 0 && most > 0)
        return ot_fail(OT_E_IO, "cannot start a thread for the download");
    return job->error.code ? ot_error_load(&job->error) : 0;
}

/* ---- files ---- */

static bool is_here(const struct ot_download_file *file) {
    struct stat info;
    return stat(file->path, &info) == 0 && S_ISREG(info.st_mode);
}

/* True if an earlier file has the same content, and so the same path. */
static bool is_repeated(const struct job *job, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (strcmp(job->config->files[i].path, job->config->files[index].path) == 0)
            return true;
    return false;
}

/* Takes the locks of the files that are not here. Another process may have got one meanwhile. */
static void take_locks(struct job *job) {
    for (size_t i = 0; i < job->config->n; i++) {
        struct target *t = &job->targets[i];
        *t = (struct target){.file = &job->config->files[i], .lock = -1};
        if (is_here(t->file) || is_repeated(job, i))
            continue;
        t->lock = ot_hub_lock(t->file->lock, t->file->name);
        t->is_open = !is_here(t->file);
        job->total += t->is_open ? t->file->bytes : 0;
    }
}

/* Refuses a download that has no room, and announces a long one. */
static int check_space(const struct job *job) {
    char folder[PATH_MAX], need[OT_TEXT_BYTES], free_text[OT_TEXT_BYTES];
    int64_t missing = 0;
    for (size_t i = 0; i < job->config->n; i++)
        if (job->targets[i].is_open)
            missing += ot_max(job->targets[i].file->bytes - ot_partial_space(job->targets[i].file->path), 0L);
    if (missing == 0)
        return 0;
    const char *path = job->config->files[0].path, *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int64_t has = ot_io_system.free_bytes(NULL, folder);
    if (has < 0 || missing + RESERVE_BYTES <= has) {
        if (missing >= ANNOUNCED_BYTES)
            ot_log(OT_LOG_INFO, "download %s: %s into %s", job->config->title, ot_text_bytes(missing, need),
                   folder);
        return 0;
    }
    return ot_fail(
        OT_E_IO,
        "%s: %s are to be downloaded, and %s has %s free; make room there, or set %s to a folder on "
        "another disk",
        job->config->title, ot_text_bytes(missing, need), folder, ot_text_bytes(has, free_text),
        job->config->variable);
}

static int open_targets(struct job *job, size_t *n_chunks) {
    for (size_t i = 0; i < job->config->n; i++) {
        struct target *t = &job->targets[i];
        if (!t->is_open)
            continue;
        OT_TRY(ot_partial_open(t->file->path, t->file->bytes, t->file->takes_ranges, &t->partial));
        atomic_fetch_add(&job->here, ot_partial_here(&t->partial));
        for (size_t k = 0; k < t->partial.n_chunks; k++)
            t->left += t->partial.done[k] < ot_partial_size_of(&t->partial, k);
        if (t->left == 0) /* the last process ended before the hash was checked, or the file is empty */
            OT_TRY(finish(job, t));
        *n_chunks += t->left;
    }
    return 0;
}

static int download(struct job *job) {
    size_t n_chunks = 0;
    take_locks(job);
    OT_TRY(check_space(job));
    OT_TRY(open_targets(job, &n_chunks));
    return run_streams(job, n_chunks);
}

void ot_download_say(const struct ot_download_sum *sum, const char *title) {
    char bytes[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES];
    if (sum->bytes > 0)
        ot_log(OT_LOG_INFO, "downloaded %s: %s in %s (%s/s)", title, ot_text_bytes(sum->bytes, bytes),
               ot_text_duration(sum->seconds, time),
               ot_text_bytes((int64_t)((double)sum->bytes / ot_max(sum->seconds, 1e-3)), rate));
}

int ot_download(const struct ot_download_config *config, struct ot_download_sum *sum) {
    static const char stopped[] =
        "error: stopped during the download; the same command goes on where it stopped\n";
    struct job job = {.config = config, .mutex = PTHREAD_MUTEX_INITIALIZER};
    double begun = ot_clock_seconds();
    job.targets = calloc(config->n + 1, sizeof *job.targets);
    if (!job.targets)
        return ot_fail(OT_E_BUDGET, "no memory for a download of %zu files", config->n);
    ot_cond_init(&job.changed);
    atomic_store(&config->site->stop, false);
    int rc = ot_stop_begin_part(stopped);
    if (rc == 0) {
        rc = download(&job);
        ot_stop_end_part();
    }
    for (size_t i = 0; i < config->n; i++) {
        ot_partial_close(&job.targets[i].partial);
        if (job.targets[i].lock > 0)
            close(job.targets[i].lock);
    }
    sum->bytes += atomic_load(&job.received);
    sum->seconds += ot_clock_seconds() - begun;
    pthread_cond_destroy(&job.changed);
    free(job.targets);
    return rc;
}
