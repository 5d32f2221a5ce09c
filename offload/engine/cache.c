/* The cache of generation: the place of a block's keys and values, and the rows that tasks move (CACHE in
 * plan/plan.h). Texts lie in the cache one after the other. */
#include "offload/engine/engine_state.h"

size_t ot_engine_kv_bytes(const struct ot_chain *chain, int64_t capacity) {
    size_t one = (size_t)capacity * (size_t)chain->kv_elems * ot_dtype_bytes(chain->dtype);
    return 2 * one * (size_t)(chain->n_blocks - 2);
}

static size_t row_bytes(const struct ot_engine *en, int64_t rows) {
    return (size_t)(rows * en->chain.kv_elems) * ot_dtype_bytes(en->chain.dtype);
}

void ot_engine_find_cache(const struct ot_engine *en, const struct ot_task *task, struct ot_block_run *run) {
    const struct ot_engine_piece *piece = &en->texts.pieces[task->micro];
    run->logits += piece->first_logits * en->chain.vocab;
    run->kv = (struct ot_kv_cache){.n_past = piece->past, .texts = piece->texts};
    if (task->cache == OT_NO_BUFFER)
        return;
    char *k = (char *)ot_engine_at(en, task->cache) + row_bytes(en, piece->first);
    run->kv.k = k;
    run->kv.v = k + en->layout.cache_bytes;
}

/* ---- the rows of a pass ---- */

/* Bytes of k, or of v, of one text that the pass continues: [first, filled) were filled by earlier passes,
 * and a micro-batch adds [added, end). */
struct text_rows {
    size_t first, filled, added, end;
};

/* A walk over the texts of a pass. */
struct text_walk {
    const struct ot_engine *en;
    const struct ot_engine_step *step;
    int place;  /* of the next text's micro-batch */
    int64_t at; /* its token there, if each token continues a text */
};

static struct text_walk walk_texts(const struct ot_engine *en, int64_t step) {
    return (struct text_walk){.en = en, .step = &en->steps[step & 1]};
}

static bool next_text(struct text_walk *w, struct text_rows *out) {
    if (w->place == w->step->n_places)
        return false;
    const struct ot_engine_piece *piece = &w->en->texts.pieces[w->place];
    int64_t first = piece->first, filled = piece->filled, past = piece->past;
    int64_t n = w->step->micro_tokens[w->place];
    bool more = piece->texts && w->at + 1 < n;
    if (piece->texts) {
        first = piece->texts[w->at].first;
        filled = past = piece->texts[w->at].n_past;
        n = 1;
    }
    w->at = more ? w->at + 1 : 0;
    w->place += !more;
    *out = (struct text_rows){row_bytes(w->en, first), row_bytes(w->en, first + filled),
                              row_bytes(w->en, first + past), row_bytes(w->en, first + past + n)};
    return true;
}

/* ---- between the device and the host ---- */

void ot_engine_copy_cache(const struct ot_engine *en, const struct ot_task *task, int64_t step,
                          struct ot_lane *lane) {
    bool in = task->kind == OT_TASK_CACHE_IN;
    char *to = ot_engine_at(en, task->to);
    const char *from = ot_engine_at(en, task->from);
    struct text_walk walk = walk_texts(en, step);
    for (struct text_rows rows; next_text(&walk, &rows);) {
        size_t begin = in ? rows.first : rows.added, bytes = (in ? rows.filled : rows.end) - begin;
        for (int v = 0; v < 2 && bytes > 0; v++, begin += en->layout.cache_bytes)
            ot_lane_copy(lane, in ? OT_COPY_H2D : OT_COPY_D2H, to + begin, from + begin, bytes);
    }
}

/* ---- between the host and nvme ---- */

/* True if the pass needs bytes [begin, end) of k and v on the host: filled rows, and those that are written
 * back beside new ones. Bytes that are all new need not be read. */
static bool is_read(const struct ot_engine *en, int64_t step, size_t begin, size_t end) {
    struct text_walk walk = walk_texts(en, step);
    for (struct text_rows rows; next_text(&walk, &rows);) {
        bool filled = rows.first < end && rows.filled > begin && rows.first < rows.filled;
        bool grows = rows.added < end && rows.end > begin, all_new = rows.added <= begin && rows.end >= end;
        if (filled || (grows && !all_new))
            return true;
    }
    return false;
}

static bool is_written(const struct ot_engine *en, int64_t step, size_t begin, size_t end) {
    struct text_walk walk = walk_texts(en, step);
    for (struct text_rows rows; next_text(&walk, &rows);)
        if (rows.added < end && rows.end > begin)
            return true;
    return false;
}

int ot_engine_cache_pieces(const struct ot_engine *en, const struct ot_task *task, int64_t step,
                           struct ot_store_piece *pieces) {
    bool write = task->kind == OT_TASK_NVME_WRITE;
    const size_t extent = en->layout.cache_extent_bytes;
    int each = (int)(en->layout.cache_bytes / extent), n = 0; /* of k, and of v */
    int first = en->layout.buffers[write ? task->to : task->from].first_extent;
    char *memory = ot_engine_at(en, task->cache);
    for (int i = 0; i < each; i++) {
        size_t begin = (size_t)i * extent;
        if (!(write ? is_written : is_read)(en, step, begin, begin + extent))
            continue;
        pieces[n++] = (struct ot_store_piece){first + i, memory + begin};
        pieces[n++] = (struct ot_store_piece){first + each + i, memory + en->layout.cache_bytes + begin};
    }
    return n;
}
