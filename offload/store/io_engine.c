#include "offload/store/io_engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "offload/store/io_engine_state.h"
#include "src/base/error.h"

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

/* ---- taking up again ---- */

/* Without progress: at once for the first few times, then every 5 ms. */
enum { FAST_TRIES = 16, MOST_TRIES = 200, PAUSE_NS = 5000000 };
/* O_DIRECT wants the rest to begin on a block: the last part of a block that was moved is moved again. */
enum { BLOCK_BYTES = 4096 };

struct ot_io_request ot_io_rest(const struct ot_io_retry *retry) {
    struct ot_io_request rest = retry->request;
    rest.memory = (char *)rest.memory + retry->moved;
    rest.bytes -= retry->moved;
    rest.offset += (off_t)retry->moved;
    return rest;
}

bool ot_io_take_up(struct ot_io_retry *retry, int64_t result) {
    bool ended = result == 0 && !retry->request.write;
    if (ended || (result < 0 && result != -EINTR && result != -EAGAIN))
        return false;
    size_t progress = result > 0 ? (size_t)result / BLOCK_BYTES * BLOCK_BYTES : 0;
    retry->moved += progress;
    retry->tries = progress ? 0 : retry->tries + 1;
    if (retry->tries > FAST_TRIES)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return retry->tries < MOST_TRIES;
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
    ot_io_engine_add_note(*out, "since %s", refusal.text);
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
