#include "kernels/cuda/cuda_guard_verdicts.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/text.h"
#include "src/base/utf8.h"

static const char letters[] = {OT_GUARD_UNKNOWN, OT_GUARD_TRUSTED,    OT_GUARD_DISTRUSTED,
                               OT_GUARD_PENDING, OT_GUARD_UNFINISHED, 0};

/* ---- the file ---- */

/* Reads the verdicts, if the file is complete and belongs to the same GPU, driver, library and build. The
 * caller frees *out, which is the file; *verdicts is its second line. Both are NULL otherwise. */
static int read_file(const struct ot_guard_verdicts *v, char **out, const char **verdicts) {
    size_t bytes, identity = strlen(v->identity), n = (size_t)v->n;
    *verdicts = NULL;
    OT_TRY(ot_cache_read(v->path, sizeof v->identity + n + 2, out, &bytes));
    const char *text = *out;
    if (text && bytes == identity + n + 2 && memcmp(text, v->identity, identity) == 0 &&
        text[identity] == '\n' && strspn(text + identity + 1, letters) == n)
        *verdicts = text + identity + 1;
    return 0;
}

static void write_file(const struct ot_guard_verdicts *v) {
    struct ot_string_builder text = {0};
    ot_string_append_format(&text, "%s\n%s\n", v->identity, v->of);
    if (!text.failed)
        (void)ot_cache_write(v->path, text.text, text.bytes);
    free(text.text);
}

enum { ANY = -1 };

/* Takes over the file's verdicts on paths that this process has not decided. Under the lock, a pending check
 * belongs to a dead process; without it, the path stays undecided. *pending: the path is pending in the file;
 * ANY: some path is. */
static int take_over(struct ot_guard_verdicts *v, int path, bool *pending) {
    char *file;
    const char *verdicts;
    OT_TRY(read_file(v, &file, &verdicts));
    *pending = false;
    for (int i = 0; verdicts && i < v->n; i++) {
        bool waits = verdicts[i] == OT_GUARD_PENDING;
        *pending = *pending || (waits && (path == ANY || path == i));
        if (v->of[i] == OT_GUARD_UNKNOWN && (!waits || v->lock >= 0))
            v->of[i] = waits ? OT_GUARD_UNFINISHED : verdicts[i];
    }
    free(file);
    return 0;
}

/* ---- the lock ---- */

static bool lock(struct ot_guard_verdicts *v, double seconds) {
    v->lock = v->path ? ot_cache_lock(v->lock_path, seconds) : -1;
    return v->lock >= 0;
}

static void unlock(struct ot_guard_verdicts *v) {
    if (v->lock >= 0)
        close(v->lock);
    v->lock = -1;
}

/* ---- interface ---- */

/* If the file has a pending verdict, tries the lock to learn whether its process is gone. If so, writes the
 * final verdict. */
static int read_at_start(struct ot_guard_verdicts *v) {
    bool pending;
    OT_TRY(take_over(v, ANY, &pending));
    if (!pending || !lock(v, 0))
        return 0;
    int rc = take_over(v, ANY, &pending);
    if (rc >= 0 && pending)
        write_file(v);
    unlock(v);
    return rc;
}

int ot_guard_verdicts_open(struct ot_guard_verdicts *v, int n, const char *identity, const char *folder) {
    int rc = 0;
    *v = (struct ot_guard_verdicts){
        .lock = -1, .patience = OT_GUARD_PATIENCE, .n = n, .of = malloc((size_t)n + 1)};
    if (!v->of)
        return ot_fail(OT_E_BUDGET, "no host memory for the verdicts on kernels");
    memset(v->of, OT_GUARD_UNKNOWN, (size_t)n);
    v->of[n] = 0;
    if (!folder)
        return 0;
    snprintf(v->identity, sizeof v->identity, "%s", identity);
    ot_utf8_keep_line(v->identity);
    OT_TRY_GOTO(ot_string_format(&v->path, "%s/guard-%08x", folder,
                                 (unsigned)ot_crc32(0, v->identity, strlen(v->identity))),
                rc, out);
    OT_TRY_GOTO(ot_string_format(&v->lock_path, "%s.lock", v->path), rc, out);
    OT_TRY_GOTO(read_at_start(v), rc, out);
out:
    if (rc < 0)
        ot_guard_verdicts_close(v);
    return rc;
}

void ot_guard_verdicts_close(struct ot_guard_verdicts *v) {
    unlock(v);
    free(v->path);
    free(v->lock_path);
    free(v->of);
    *v = (struct ot_guard_verdicts){.lock = -1};
}

enum ot_guard_verdict ot_guard_verdict_begin(struct ot_guard_verdicts *v, int path) {
    bool pending = false;
    if (!v->path)
        return OT_GUARD_UNKNOWN;
    bool locked = lock(v, v->patience);
    v->patience = locked ? v->patience : 0;
    (void)take_over(v, path, &pending); /* without memory for the file, it says nothing */
    if (!locked && pending)
        v->of[path] = OT_GUARD_UNFINISHED;
    if (!locked)
        return (enum ot_guard_verdict)v->of[path];
    if (v->of[path] != OT_GUARD_UNKNOWN) {
        write_file(v); /* a pending verdict of a dead process may have become another */
        unlock(v);
        return (enum ot_guard_verdict)v->of[path];
    }
    v->of[path] = OT_GUARD_PENDING;
    write_file(v);
    v->of[path] = OT_GUARD_UNKNOWN;
    return OT_GUARD_UNKNOWN;
}

void ot_guard_verdict_end(struct ot_guard_verdicts *v, int path, enum ot_guard_verdict verdict) {
    v->of[path] = (char)verdict;
    if (v->lock >= 0)
        write_file(v);
    unlock(v);
}
