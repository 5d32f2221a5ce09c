#include "tests/offload/tiny_keeper.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/engine/engine_state.h"
#include "offload/engine/snapshot_state.h"
#include "src/base/random.h"
#include "tests/support/check.h"

static bool is_waited_for(struct ot_snapshot *snapshot) {
    pthread_mutex_lock(&snapshot->mutex);
    bool waited = snapshot->n_wanted > 0;
    pthread_mutex_unlock(&snapshot->mutex);
    return waited;
}

/* Returns when a task waits, or when the steps are over and none has waited. */
static void hold(struct tiny_keeper *k) {
    while (!k->was_waited_for && !atomic_load(&k->steps_are_over)) {
        usleep(1000);
        k->was_waited_for = is_waited_for(k->held_for);
    }
}

static int count(struct tiny_keeper *k) {
    if (k->held_for && k->calls == 0)
        hold(k);
    if (k->most_us)
        usleep((useconds_t)ot_random_below(k->seed, ot_random_stream(OT_RANDOM_TEST, 0, 5),
                                           (uint64_t)k->calls, k->most_us));
    return ++k->calls == k->fail_at ? ot_fail(OT_E_IO, "call %d fails", k->calls) : 0;
}

static int room(void *context, void **memory) {
    struct tiny_keeper *k = context;
    OT_TRY(count(k));
    *memory = k->memory;
    return 0;
}

static int put(void *context, const struct ot_segment *segment, void *memory) {
    struct tiny_keeper *k = context;
    size_t bytes = ot_segment_bytes(k->dtype, segment);
    OT_TRY(count(k));
    assert_ptr_equal(memory, k->memory);
    assert_true(k->n_segments < TINY_KEEPER_PARTS && segment->n <= OT_SEGMENT_PARAMS);
    struct tiny_kept_segment *kept = &k->segments[k->n_segments++];
    *kept = (struct tiny_kept_segment){.segment = *segment, .bytes = malloc(bytes)};
    assert_non_null(kept->bytes);
    memcpy(kept->bytes, memory, bytes);
    return 0;
}

static int refer(void *context, const struct ot_segment *segment, const struct ot_store_span *spans, int n) {
    struct tiny_keeper *k = context;
    OT_TRY(count(k));
    assert_true(k->n_segments < TINY_KEEPER_PARTS);
    struct tiny_kept_segment *kept = &k->segments[k->n_segments++];
    *kept = (struct tiny_kept_segment){
        .segment = *segment, .n_spans = n, .spans = calloc((size_t)n + 1, sizeof *spans)};
    assert_non_null(kept->spans);
    if (n > 0)
        memcpy(kept->spans, spans, (size_t)n * sizeof *spans);
    return 0;
}

static int end(void *context) {
    struct tiny_keeper *k = context;
    OT_TRY(count(k));
    k->ended = true;
    return 0;
}

void tiny_keeper_open(struct tiny_keeper *k, const struct tiny_run *run, uint64_t seed, unsigned most_us) {
    *k = (struct tiny_keeper){.dtype = run->dtype, .seed = seed, .most_us = most_us};
    k->memory = malloc(ot_segment_slot_bytes(run->dtype));
    k->folder = make_folder();
    k->may_refer = run->plan.pinned_contents > 0;
    assert_non_null(k->memory);
}

void tiny_keeper_close(struct tiny_keeper *k) {
    for (int i = 0; i < k->n_segments; i++) {
        free(k->segments[i].bytes);
        free(k->segments[i].spans);
    }
    free(k->memory);
    remove_folder(k->folder);
}

struct ot_snapshot_config tiny_keeper_config(struct tiny_keeper *k) {
    return (struct ot_snapshot_config){
        .sink = {.context = k, .room = room, .put = put, .refer = k->may_refer ? refer : NULL, .end = end}};
}

void tiny_keeper_link(struct tiny_keeper *k, const struct ot_engine *engine) {
    char name[32];
    int dir = open(k->folder, O_RDONLY | O_DIRECTORY);
    assert_true(dir >= 0);
    for (int f = 0; engine->store && f < ot_store_file_count(engine->store); f++) {
        snprintf(name, sizeof name, "nvme-%d.store", f);
        check_ok(ot_store_link(engine->store, f, dir, name));
    }
    close(dir);
}

static void read_referred(const struct tiny_keeper *k, struct tiny_kept_segment *kept) {
    char path[4096];
    size_t bytes = ot_segment_bytes(k->dtype, &kept->segment), at = 0;
    for (int i = 0; i < kept->n_spans; i++)
        at += (size_t)kept->spans[i].bytes;
    assert_true(kept->n_spans == 0 || at >= bytes);
    kept->bytes = calloc(1, at > bytes ? at : bytes);
    assert_non_null(kept->bytes);
    at = 0;
    for (int i = 0; i < kept->n_spans; i++) {
        const struct ot_store_span *span = &kept->spans[i];
        snprintf(path, sizeof path, "%s/nvme-%d.store", k->folder, span->file);
        int fd = open(path, O_RDONLY);
        assert_int_equal(pread(fd, kept->bytes + at, (size_t)span->bytes, span->offset), span->bytes);
        close(fd);
        at += (size_t)span->bytes;
    }
}

void tiny_keeper_check(const struct tiny_keeper *k, const struct ot_chain *chain) {
    for (int s = 0; s < chain->n_slabs; s++) {
        size_t n = (size_t)chain->slabs[s].n_params;
        char *times = calloc(2, n);
        assert_non_null(times);
        for (int i = 0; i < k->n_segments; i++) {
            const struct ot_segment *segment = &k->segments[i].segment;
            for (int64_t p = segment->first; segment->slab == s && p < segment->first + segment->n; p++) {
                times[p] = (char)(times[p] + segment->has_state);
                times[n + (size_t)p] = (char)(times[n + (size_t)p] + segment->has_weights);
            }
        }
        for (size_t p = 0; p < 2 * n; p++)
            assert_int_equal(times[p], 1);
        free(times);
    }
}

void tiny_keeper_put_back(struct tiny_keeper *k, struct ot_engine *engine) {
    for (int i = 0; i < k->n_segments; i++) {
        struct tiny_kept_segment *kept = &k->segments[(i + k->n_segments / 3) % k->n_segments];
        if (!kept->bytes)
            read_referred(k, kept);
        check_ok(ot_engine_put(engine, &kept->segment, kept->bytes));
    }
}
