#include "offload/store/io_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "offload/store/io_engine_state.h"
#include "src/base/error.h"
#include "src/base/file_io.h"

const char *ot_io_choice_name(enum ot_io_choice choice) {
    static const char *const names[] = {"auto", "uring", "pool"};
    return names[choice];
}

/* ---- notes ---- */

void ot_io_engine_add_note(struct ot_io_engine *engine, const char *format, ...) {
    va_list args;
    size_t used = strlen(engine->note);
    if (used > 0 && used + 3 < sizeof engine->note)
        used += (size_t)snprintf(engine->note + used, sizeof engine->note - used, ", ");
    va_start(args, format);
    vsnprintf(engine->note + used, sizeof engine->note - used, format, args);
    va_end(args);
}

/* ---- engines ---- */

int ot_io_engine_open(const struct ot_io_engine_config *config, struct ot_io_engine **out) {
    struct ot_io_engine_config with_calls = *config;
    if (!with_calls.calls)
        with_calls.calls = &ot_io_system;
    *out = NULL;
    if (config->choice == OT_IO_POOL)
        return ot_io_pool_open(&with_calls, out);
    int rc = ot_io_uring_open(&with_calls, out);
    if (rc == 0 || rc == -OT_E_BUDGET || config->choice == OT_IO_URING)
        return rc;
    struct ot_error refusal;
    ot_error_save(&refusal, rc);
    OT_TRY(ot_io_pool_open(&with_calls, out));
    ot_io_engine_add_note(*out, "because %s", refusal.text);
    return 0;
}

void ot_io_engine_close(struct ot_io_engine *engine) {
    if (engine)
        engine->ops->close(engine);
}

int ot_io_engine_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n) {
    return engine->ops->submit(engine, requests, n);
}

int ot_io_engine_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most) {
    return engine->ops->reap(engine, results, most);
}

enum ot_io_choice ot_io_engine_choice(const struct ot_io_engine *engine) {
    return engine->choice;
}

const char *ot_io_engine_note(const struct ot_io_engine *engine) {
    return engine->note;
}

/* ---- chunks ---- */

/* Tries without progress: the first FAST_TRIES at once, then one every 5 ms. */
enum { FAST_TRIES = 16, MOST_TRIES = 200, PAUSE_NS = 5000000 };
/* O_DIRECT needs the rest to begin on a block border. So a block that was moved in part is moved again. */
enum { BLOCK_BYTES = 4096 };

struct ot_io_request ot_io_chunk_rest(const struct ot_io_chunk *chunk) {
    struct ot_io_request rest = chunk->request;
    rest.memory = (char *)rest.memory + chunk->moved;
    rest.bytes -= chunk->moved;
    rest.offset += (off_t)chunk->moved;
    return rest;
}

int ot_io_chunk_start(struct ot_io_engine *engine, struct ot_io_chunk *chunk) {
    struct ot_io_request rest = ot_io_chunk_rest(chunk);
    chunk->was_direct = chunk->direct && *chunk->direct;
    return ot_io_engine_submit(engine, &rest, 1);
}

enum ot_io_end ot_io_chunk_end(struct ot_io_engine *engine, struct ot_io_chunk *chunk, int64_t result) {
    if (result == (int64_t)(chunk->request.bytes - chunk->moved))
        return OT_IO_WHOLE;
    if (result == -EINVAL && chunk->was_direct) {
        *chunk->direct = false;
        return ot_set_direct(engine->files[chunk->request.file], false) ? OT_IO_AGAIN : OT_IO_FAILED;
    }
    bool ended = result == 0 && !chunk->request.write;
    if (ended || (result < 0 && result != -EINTR && result != -EAGAIN))
        return OT_IO_FAILED;
    size_t progress = result > 0 ? (size_t)result / BLOCK_BYTES * BLOCK_BYTES : 0;
    chunk->moved += progress;
    chunk->tries = progress ? 0 : chunk->tries + 1;
    if (chunk->tries > FAST_TRIES)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return chunk->tries < MOST_TRIES ? OT_IO_AGAIN : OT_IO_FAILED;
}

static int say_why(const struct ot_io_chunk *chunk, int64_t result, const char *place) {
    const char *error = strerror(result < 0 ? (int)-result : 0);
    if (result == 0 && !chunk->request.write)
        return ot_fail(OT_E_IO, "the file ends there; did another program truncate it?");
    if (result >= 0)
        return ot_fail(OT_E_IO, "given up after %d tries without progress", chunk->tries);
    if (result == -EAGAIN || result == -EINTR)
        return ot_fail(OT_E_IO, "given up after %d tries without progress: %s", chunk->tries, error);
    if (result == -ENOSPC || result == -EDQUOT)
        return ot_fail(OT_E_IO, "%s; make room there%s", error, place);
    return ot_fail(OT_E_IO, "%s; look for errors of the disk in `dmesg`%s", error, place);
}

int ot_io_chunk_fail(const struct ot_io_chunk *chunk, int64_t result, const char *path, const char *place) {
    struct ot_io_request rest = ot_io_chunk_rest(chunk);
    return ot_fail_context(say_why(chunk, result, place), "%s: cannot %s %zu bytes at offset %lld", path,
                           rest.write ? "write" : "read", rest.bytes, (long long)rest.offset);
}

void ot_io_chunk_drop_cache(const struct ot_io_engine *engine, const struct ot_io_chunk *chunk) {
    const struct ot_io_request *request = &chunk->request;
    if (chunk->direct && !*chunk->direct)
        posix_fadvise(engine->files[request->file], request->offset, (off_t)request->bytes,
                      POSIX_FADV_DONTNEED);
}
