/* Reads whole spans ahead of a caller who needs them in a known order.
 *
 * The WINDOW is a run of consecutive places of that order. Each place of the window has a slot: the slot of
 * place p is number p % n_slots. The window follows the caller: a few spans stay behind it, and all others
 * are being read ahead or have been read. A caller who leaves the window begins a new one. */
#include <assert.h>
#include <stdlib.h>

#include "src/base/crc32.h"
#include "src/base/file_io.h"
#include "src/base/minmax.h"
#include "src/checkpoint/reader_state.h"

/* Enough reads of 1 MiB for the full rate of a disk, with time to spare while the caller works on a span. */
enum { WINDOW_BYTES = 64 << 20, MOST_SLOTS = 64 };
/* A range of weights needs at most 4 spans at once: its low bits and its weights lie in different spans, and
 * each may cross the border of two spans. */
enum { BEHIND = 4, LEAST_SLOTS = BEHIND + 2 };

struct slot {
    char *memory;
    struct ot_io_chunk chunk;
    int64_t result; /* of a read that failed */
    bool in_flight, failed, is_checked;
};

struct ot_span_reader {
    struct ot_checkpoint *checkpoint;
    const int64_t *order; /* [n] spans */
    int64_t n;
    int64_t *place;      /* [n_spans]: the span's place in the order; -1: none */
    int64_t begin, next; /* the window: places that have a slot */
    int n_slots;
    struct slot slots[MOST_SLOTS];
    char *memory;
    bool *direct; /* [n_files] */
    struct ot_io_engine *engine;
};

/* ---- opening ---- */

static int allocate(struct ot_span_reader *r, enum ot_io_choice io_engine, const struct ot_io_calls *calls) {
    const struct ot_checkpoint *c = r->checkpoint;
    const struct ot_manifest *m = &c->manifest;
    int64_t most = OT_STORE_ALIGN;
    for (int64_t i = 0; i < r->n; i++)
        most = ot_max(m->spans[r->order[i]].bytes, most);
    r->n_slots = most * MOST_SLOTS <= WINDOW_BYTES ? MOST_SLOTS : (int)(WINDOW_BYTES / most);
    r->n_slots = ot_max(r->n_slots, LEAST_SLOTS);
    r->memory = aligned_alloc(OT_STORE_ALIGN, (size_t)(most * r->n_slots));
    r->place = malloc((size_t)(m->n_spans + 1) * sizeof *r->place);
    r->direct = calloc((size_t)m->n_files + 1, sizeof *r->direct);
    if (!r->memory || !r->place || !r->direct)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read spans of %lld bytes", c->dir, (long long)most);
    for (int64_t i = 0; i < m->n_spans; i++)
        r->place[i] = -1;
    for (int64_t i = 0; i < r->n; i++)
        r->place[r->order[i]] = i;
    for (int i = 0; i < r->n_slots; i++)
        r->slots[i] = (struct slot){.memory = r->memory + i * most};
    for (int i = 0; i < m->n_files; i++)
        r->direct[i] = ot_checkpoint_has_file(c, i) && ot_set_direct(c->fds[i], true);
    const struct ot_io_engine_config engine = {.choice = io_engine,
                                               .calls = calls,
                                               .n_files = m->n_files,
                                               .files = c->fds,
                                               .depth = r->n_slots,
                                               .arena = r->memory,
                                               .arena_bytes = (size_t)(most * r->n_slots)};
    return ot_io_engine_open(&engine, &r->engine);
}

int ot_span_reader_open(struct ot_checkpoint *checkpoint, const int64_t *order, int64_t n,
                        enum ot_io_choice io_engine, const struct ot_io_calls *calls,
                        struct ot_span_reader **out) {
    struct ot_span_reader *r = *out = calloc(1, sizeof *r);
    if (!r)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the checkpoint", checkpoint->dir);
    r->checkpoint = checkpoint;
    r->order = order;
    r->n = n;
    return allocate(r, io_engine, calls);
}

void ot_span_reader_close(struct ot_span_reader *r) {
    if (!r)
        return;
    ot_io_engine_close(r->engine); /* waits for the reads: afterwards nothing writes to the slots */
    for (int i = 0; r->direct && i < r->checkpoint->manifest.n_files; i++)
        ot_set_direct(r->checkpoint->fds[i], false);
    free(r->direct);
    free(r->place);
    free(r->memory);
    free(r);
}

/* ---- reads ---- */

static int reap(struct ot_span_reader *r) {
    struct ot_io_result result;
    OT_TRY(ot_io_engine_reap(r->engine, &result, 1));
    struct slot *slot = result.owner;
    enum ot_io_end end = ot_io_chunk_end(r->engine, &slot->chunk, result.result);
    if (end == OT_IO_AGAIN)
        return ot_io_chunk_start(r->engine, &slot->chunk);
    ot_io_chunk_drop_cache(r->engine, &slot->chunk);
    slot->in_flight = false;
    slot->failed = end == OT_IO_FAILED;
    slot->result = result.result;
    return 0;
}

/* Starts to read the span of r->next. */
static int start_next(struct ot_span_reader *r) {
    struct slot *slot = &r->slots[r->next % r->n_slots];
    const struct ot_store_span *span = &r->checkpoint->manifest.spans[r->order[r->next]];
    while (slot->in_flight)
        OT_TRY(reap(r));
    *slot = (struct slot){.memory = slot->memory,
                          .in_flight = true,
                          .chunk = {.request = {.file = span->file,
                                                .memory = slot->memory,
                                                .bytes = (size_t)span->bytes,
                                                .offset = (off_t)span->offset,
                                                .owner = slot},
                                    .direct = &r->direct[span->file]}};
    r->next++;
    return ot_io_chunk_start(r->engine, &slot->chunk);
}

/* Moves the window to the caller, who is at this place. */
static int follow(struct ot_span_reader *r, int64_t place) {
    if (place < r->begin || place > r->next)
        r->begin = r->next = place;
    if (place - BEHIND > r->begin)
        r->begin = place - BEHIND;
    while (r->next < r->n && r->next < r->begin + r->n_slots)
        OT_TRY(start_next(r));
    return 0;
}

static int check(const struct ot_span_reader *r, struct slot *slot, const struct ot_store_span *span) {
    if (slot->failed)
        return ot_checkpoint_fail_read(r->checkpoint, span, (int64_t)ot_io_chunk_rest(&slot->chunk).offset,
                                       slot->result);
    if (slot->is_checked)
        return 0;
    uint32_t crc = ot_crc32(0, slot->memory, (size_t)span->bytes);
    slot->is_checked = crc == span->crc;
    return slot->is_checked ? 0 : ot_checkpoint_fail_span(r->checkpoint, span, crc);
}

int ot_span_reader_get(struct ot_span_reader *r, int64_t span, const char **bytes) {
    int64_t place = r->place[span];
    assert(place >= 0);
    OT_TRY(follow(r, place));
    struct slot *slot = &r->slots[place % r->n_slots];
    while (slot->in_flight)
        OT_TRY(reap(r));
    OT_TRY(check(r, slot, &r->checkpoint->manifest.spans[span]));
    *bytes = slot->memory;
    return 0;
}
