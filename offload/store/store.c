#include "offload/store/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/store_state.h"
#include "src/base/hash.h"
#include "src/base/text.h"

enum { DEFAULT_CHUNK_BYTES = 1 << 20, DEFAULT_DEPTH = 32, DEFAULT_SIDES = 2 };

static int count_sides(const int *extent_sides, int extent) {
    return extent_sides ? extent_sides[extent] : DEFAULT_SIDES;
}

size_t ot_store_bytes(const size_t *extent_bytes, const int *extent_sides, int n_extents) {
    size_t sum = 0;
    for (int i = 0; i < n_extents; i++)
        sum += extent_bytes[i] * (size_t)count_sides(extent_sides, i);
    return sum;
}

/* ---- extents ---- */

/* Sets the addresses: all first sides, then all second sides, and so on, each in the order of extents. So the
 * data that a step writes is consecutive, in the order in which it is written. */
static void set_addresses(struct ot_store *store) {
    int64_t address = 0;
    for (int side = 0; side < OT_STORE_MAX_SIDES; side++)
        for (int i = 0; i < store->n_extents; i++) {
            struct ot_store_extent *extent = &store->extents[store->order[i]];
            if (side >= extent->n_sides)
                continue;
            extent->sides[side].address = address;
            address += extent->bytes;
        }
}

static void set_order(struct ot_store *store, const int *order) {
    for (int i = 0; i < store->n_extents; i++)
        store->extents[i].rank = -1;
    for (int i = 0; i < store->n_extents; i++) {
        store->order[i] = order ? order[i] : i;
        assert(store->order[i] >= 0 && store->order[i] < store->n_extents);
        assert(store->extents[store->order[i]].rank == -1); /* each extent once */
        store->extents[store->order[i]].rank = i;
    }
}

static int lay_out_extents(struct ot_store *store, const struct ot_store_config *config) {
    size_t n = (size_t)config->n_extents, n_sides = 0;
    for (int i = 0; i < config->n_extents; i++)
        n_sides += (size_t)count_sides(config->extent_sides, i);
    store->extents = calloc(n + 1, sizeof *store->extents);
    store->order = calloc(n + 1, sizeof *store->order);
    store->sides = calloc(n_sides + 1, sizeof *store->sides);
    if (!store->extents || !store->order || !store->sides)
        return ot_fail(OT_E_BUDGET, "no memory for the list of %zu extents", n);
    store->n_extents = config->n_extents;
    struct ot_store_side *next = store->sides;
    for (int i = 0; i < config->n_extents; i++) {
        struct ot_store_extent *extent = &store->extents[i];
        extent->bytes = (int64_t)config->extent_bytes[i];
        extent->n_sides = count_sides(config->extent_sides, i);
        extent->sides = next;
        extent->side = NO_SIDE;
        next += extent->n_sides;
        assert(extent->bytes % OT_STORE_ALIGN == 0);
        assert(extent->n_sides >= 1 && extent->n_sides <= OT_STORE_MAX_SIDES);
    }
    set_order(store, config->extent_order);
    set_addresses(store);
    return 0;
}

static int64_t count_chunks(const struct ot_store *store, const struct ot_store_extent *extent, int side) {
    int64_t n = 0;
    for (int64_t offset = 0; offset < extent->bytes; n++)
        offset += ot_store_cut(store, extent, side, offset).bytes;
    return n;
}

/* True if CRC-32s are needed: for the comparison, or because extents can be pinned. */
static bool wants_crcs(const struct ot_store *store) {
    bool wants = !store->no_verify;
    for (int i = 0; i < store->n_extents; i++)
        wants = wants || store->extents[i].n_sides > DEFAULT_SIDES;
    return wants;
}

/* Allocates a CRC-32 for each chunk of each side. */
static int make_crcs(struct ot_store *store) {
    int64_t n = 0;
    for (int i = 0; i < store->n_extents; i++)
        for (int side = 0; side < store->extents[i].n_sides; side++)
            n += count_chunks(store, &store->extents[i], side);
    store->crcs = calloc((size_t)n + 1, sizeof *store->crcs);
    if (!store->crcs)
        return ot_fail(OT_E_BUDGET, "no memory for the checksums of %lld chunks", (long long)n);
    uint32_t *next = store->crcs;
    for (int i = 0; i < store->n_extents; i++)
        for (int side = 0; side < store->extents[i].n_sides; side++) {
            int64_t chunks = count_chunks(store, &store->extents[i], side);
            store->extents[i].sides[side].crc = next;
            store->max_spans = chunks > store->max_spans ? (int)chunks : store->max_spans;
            next += chunks;
        }
    return 0;
}

/* ---- space ---- */

static int refuse_limits(const struct ot_store_config *config, const int64_t *limits, int64_t bytes) {
    char size[OT_STORE_SIZE_BYTES], most[OT_STORE_SIZE_BYTES], missing[OT_STORE_SIZE_BYTES];
    struct ot_string_builder list = {0};
    int64_t capacity = ot_stripes_capacity(limits, config->n_dirs);
    for (int i = 0; i < config->n_dirs; i++)
        ot_string_append_format(&list, "%s%s %s", i ? ", " : "", config->dirs[i].path,
                                ot_store_print_size(size, limits[i]));
    int rc = ot_fail(
        OT_E_BUDGET,
        "NVMe store: it needs %s, but its directories may hold %s (%s), short by %s: raise the limits, "
        "make room, or add a directory",
        ot_store_print_size(size, bytes), ot_store_print_size(most, capacity), list.failed ? "" : list.text,
        ot_store_print_size(missing, bytes - capacity));
    free(list.text);
    return rc;
}

static int make_files(struct ot_store *store, const struct ot_store_config *config) {
    int64_t limits[OT_STORE_MAX_DIRS], file_bytes[OT_STORE_MAX_DIRS];
    int64_t bytes = (int64_t)ot_store_bytes(config->extent_bytes, config->extent_sides, config->n_extents);
    assert(config->n_dirs >= 1 && config->n_dirs <= OT_STORE_MAX_DIRS);
    OT_TRY(ot_store_find_limits(config->dirs, config->n_dirs, limits));
    if (bytes > ot_stripes_capacity(limits, config->n_dirs))
        return refuse_limits(config, limits, bytes);
    ot_stripes_init(&store->stripes, limits, config->n_dirs, (int64_t)store->chunk_bytes, bytes, file_bytes);
    for (int i = 0; i < config->n_dirs; i++) {
        struct ot_store_file *file = &store->files[i];
        OT_TRY(ot_store_make_file(config->dirs[i].path, file_bytes[i], &store->calls, file));
        store->n_files++;
        store->fds[i] = file->fd;
    }
    return 0;
}

/* ---- description ---- */

static void describe_engine(struct ot_string_builder *text, const struct ot_io_engine *engine) {
    ot_string_append_format(text, "%s (%s)", ot_io_choice_name(ot_io_engine_choice(engine)),
                            ot_io_engine_note(engine));
}

static void describe_files(struct ot_string_builder *text, const struct ot_store *store) {
    int n_direct = 0;
    for (int i = 0; i < store->n_files; i++)
        n_direct += store->files[i].direct;
    if (n_direct > 0)
        ot_string_append_text(text, ", O_DIRECT");
    const char *join = n_direct > 0 ? " and buffered, because O_DIRECT is refused in"
                                    : ", buffered, because O_DIRECT is refused in";
    for (int i = 0; i < store->n_files; i++)
        if (!store->files[i].direct) {
            ot_string_append_format(text, "%s %s", join, store->files[i].dir);
            join = " and";
        }
    for (int i = 0; i < store->n_files; i++)
        if (!store->files[i].reserved && store->files[i].bytes > 0)
            ot_string_append_format(text, ", %s: space not reserved, because its file system cannot",
                                    store->files[i].dir);
}

static int describe(struct ot_store *store) {
    char size[OT_STORE_SIZE_BYTES];
    struct ot_string_builder text = {0};
    const struct ot_io_engine *read = store->read.engine, *write = store->write.engine;
    describe_engine(&text, read);
    if (ot_io_engine_choice(read) != ot_io_engine_choice(write) ||
        strcmp(ot_io_engine_note(read), ot_io_engine_note(write)) != 0) {
        ot_string_append_text(&text, " to read, ");
        describe_engine(&text, write);
        ot_string_append_text(&text, " to write");
    }
    describe_files(&text, store);
    ot_string_append_format(&text, ", 2 x %s x %d, %s",
                            ot_store_print_size(size, (int64_t)store->chunk_bytes), store->depth,
                            store->no_verify ? "not verified" : "CRC-32");
    if (text.failed) {
        free(text.text);
        return ot_fail(OT_E_BUDGET, "no memory for the NVMe store");
    }
    store->description = text.text;
    return 0;
}

const char *ot_store_describe(const struct ot_store *store) {
    return store->description;
}

void ot_store_usage(const struct ot_store *store, struct ot_store_usage *out) {
    *out = (struct ot_store_usage){
        .read_bytes = atomic_load(&store->read.bytes),
        .written_bytes = atomic_load(&store->write.bytes),
        .resumed = atomic_load(&store->read.resumed) + atomic_load(&store->write.resumed),
    };
    for (int i = 0; i < store->n_files; i++)
        out->file_bytes += store->files[i].bytes;
}

/* ---- opening and closing ---- */

static int set_up(struct ot_store *store, const struct ot_store_config *config) {
    store->chunk_bytes = config->chunk_bytes ? config->chunk_bytes : DEFAULT_CHUNK_BYTES;
    store->depth = config->depth ? config->depth : DEFAULT_DEPTH;
    assert(store->chunk_bytes % OT_STORE_ALIGN == 0 && store->depth > 0);
    store->engine = config->engine;
    store->no_verify = config->no_verify;
    store->arena = config->arena;
    store->arena_bytes = config->arena_bytes;
    store->calls = config->calls ? *config->calls : ot_io_system;
    store->topology = config->topology;
    OT_TRY(lay_out_extents(store, config));
    OT_TRY(make_files(store, config));
    if (wants_crcs(store))
        OT_TRY(make_crcs(store));
    OT_TRY(ot_store_start_lane(store, false, &store->read));
    OT_TRY(ot_store_start_lane(store, true, &store->write));
    return describe(store);
}

int ot_store_open(const struct ot_store_config *config, struct ot_store **out) {
    *out = NULL;
    struct ot_store *store = calloc(1, sizeof *store);
    if (!store)
        return ot_fail(OT_E_BUDGET, "no memory for the NVMe store");
    pthread_mutex_init(&store->sides_lock, NULL);
    int rc = set_up(store, config);
    if (rc < 0) {
        ot_store_close(store);
        return rc;
    }
    *out = store;
    return 0;
}

void ot_store_close(struct ot_store *store) {
    if (!store)
        return;
    ot_store_stop_lane(&store->write);
    ot_store_stop_lane(&store->read);
    bool has_other_names[OT_STORE_MAX_DIRS] = {false}, any = false;
    for (int i = 0; i < store->n_files; i++) { /* before the files are closed, which unlocks them */
        has_other_names[i] = ot_store_unlink_file(&store->files[i]);
        any = any || has_other_names[i];
    }
    if (any)
        ot_store_punch_unpinned(store, has_other_names);
    for (int i = 0; i < store->n_files; i++)
        ot_store_close_file(&store->files[i]);
    pthread_mutex_destroy(&store->sides_lock);
    free(store->description);
    free(store->crcs);
    free(store->sides);
    free(store->order);
    free(store->extents);
    free(store);
}

/* ---- waiting ---- */

struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool is_done;
    struct ot_error error;
};

static void wake(void *arg, const struct ot_error *error) {
    struct waiter *waiter = arg;
    pthread_mutex_lock(&waiter->mutex);
    if (error)
        waiter->error = *error;
    waiter->is_done = true;
    pthread_cond_signal(&waiter->ended);
    pthread_mutex_unlock(&waiter->mutex);
}

static int transfer_and_wait(struct ot_store *store, bool write, int extent, void *memory) {
    struct ot_store_piece piece = {extent, memory};
    struct waiter waiter = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    struct ot_transfer transfer = {write, 1, &piece, wake, &waiter};
    OT_TRY(ot_store_start(store, &transfer));
    pthread_mutex_lock(&waiter.mutex);
    while (!waiter.is_done)
        pthread_cond_wait(&waiter.ended, &waiter.mutex);
    pthread_mutex_unlock(&waiter.mutex);
    pthread_cond_destroy(&waiter.ended);
    pthread_mutex_destroy(&waiter.mutex);
    return waiter.error.code ? ot_error_load(&waiter.error) : 0;
}

int ot_store_read(struct ot_store *store, int extent, void *memory) {
    return transfer_and_wait(store, false, extent, memory);
}

int ot_store_write(struct ot_store *store, int extent, const void *memory) {
    return transfer_and_wait(store, true, extent, (void *)memory);
}
