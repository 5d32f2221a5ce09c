#include "src/data/packing.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/grow_map.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/data/dataset.h"
#include "src/data/shuffle.h"

/* Separate random streams for the two shuffles of an epoch. */
enum { DRAW_ROWS, DRAW_SEQUENCES };
/* Rows of the table that are checked at once; items of a block of a shuffle, so that it works in some 64 MiB;
 * items that are read ahead of each length. */
enum { TABLE_ROWS = 1 << 16, SHUFFLE_ITEMS = 1 << 22, AHEAD_ITEMS = 1 << 13 };

/* The arrays of the packing and of an epoch, in the order of row_cache.h. A place is a position in the list
 * of all sequences' rows; sequence s has the places from FIRST[s] up to FIRST[s + 1]. Rows are ranked by
 * falling length. At place p is the row of the rank PLACED[p], or another row of the same length. */
enum {
    RANKED, /* [n_rows] row numbers by rank */
    PLACED, /* [n_rows] */
    FIRST,  /* [n_sequences + 1] */
    GROUPS  /* [n_groups + 1] first rank of each length; empty if each sequence is one row */
};
enum {
    ORDER, /* [n_sequences] the sequence that is trained at each turn */
    PACKED /* [n_rows] the row at each place */
};

struct counts {
    int64_t tokens, trained;
    uint32_t n_rows, n_sequences, n_groups, unused;
};

struct ot_packing {
    struct ot_packing_config config;
    struct counts counts;
    struct ot_row_arrays fixed, epoch;
    int64_t drawn; /* the present epoch; -1: none */
};

static uint32_t *items(const struct ot_row_arrays *arrays, int array) {
    return (uint32_t *)(void *)arrays->maps[array].data;
}

static int add_items(struct ot_row_arrays *arrays, int array, const uint32_t *from, size_t n) {
    return ot_grow_map_add(&arrays->maps[array], from, n * sizeof *from);
}

static int check_items(const struct ot_row_arrays *arrays, int array, size_t at, size_t n) {
    return ot_row_arrays_check(arrays, array, at * sizeof(uint32_t), n * sizeof(uint32_t));
}

int64_t ot_split_rows(const struct ot_dataset *dataset, double fraction, int64_t most, uint64_t seed,
                      bool *eval) {
    int64_t documents = ot_dataset_documents(dataset);
    int64_t wanted = ot_min((int64_t)(fraction * (double)documents + 0.5), ot_min(documents - 1, most));
    /* Selection sampling (Knuth, volume 2, 3.4.2, algorithm S): draws exactly `wanted`, each set equally
     * likely. */
    uint64_t stream = ot_random_stream(OT_RANDOM_SPLIT, 0, 0);
    int64_t drawn = 0, document = -1;
    bool take = false;
    for (int64_t i = 0; i < ot_dataset_rows(dataset); i++) {
        struct ot_row row = ot_dataset_row(dataset, i);
        if (row.document != document) {
            document = row.document;
            uint64_t left = (uint64_t)(documents - document);
            take = ot_random_below(seed, stream, (uint64_t)document, left) < (uint64_t)(wanted - drawn);
            drawn += take;
        }
        eval[i] = take;
    }
    return drawn;
}

static uint32_t copies_of(const struct ot_packing_config *config, int64_t row) {
    if (config->held_out && config->held_out[row] != config->takes_held_out)
        return 0;
    return config->copies ? config->copies[row] : 1;
}

static int64_t row_length(const struct ot_packing *p, uint32_t row) {
    return ot_dataset_row(p->config.dataset, row).n;
}

/* ---- grouping rows into sequences ---- */

/* The rows that are not yet in a sequence, by length. */
struct supply {
    int64_t longest;
    uint32_t *left;  /* [seq_len + 1] number of rows of each length */
    uint32_t *next;  /* [seq_len + 1] rank of the first remaining row of each length */
    uint64_t *bits;  /* a bit for each length that has rows left */
    uint32_t placed; /* rows that are in a sequence */
};

static int open_supply(const struct ot_packing *p, struct supply *s) {
    size_t lengths = (size_t)p->config.seq_len + 1;
    *s = (struct supply){.left = calloc(lengths, sizeof *s->left),
                         .next = calloc(lengths, sizeof *s->next),
                         .bits = calloc(lengths / 64 + 1, sizeof *s->bits)};
    return s->left && s->next && s->bits ? 0 : ot_fail(OT_E_BUDGET, "no memory for packing rows");
}

static void close_supply(struct supply *s) {
    free(s->bits);
    free(s->next);
    free(s->left);
}

/* Counts the rows, and those of each length. The whole table is checked. */
static int count_rows(struct ot_packing *p, struct supply *s) {
    const struct ot_dataset *d = p->config.dataset;
    int64_t n_rows = 0;
    for (int64_t i = 0; i < ot_dataset_rows(d); i++) {
        if (i % TABLE_ROWS == 0)
            OT_TRY(ot_dataset_check_table(d, i, ot_min(ot_dataset_rows(d) - i, (int64_t)TABLE_ROWS)));
        struct ot_row row = ot_dataset_row(d, i);
        int64_t copies = copies_of(&p->config, i);
        if (copies == 0)
            continue;
        assert(row.n <= p->config.seq_len); /* the dataset was made with this seq_len or a smaller one */
        n_rows += copies;
        p->counts.tokens += copies * row.n;
        p->counts.trained += copies * row.trained;
        s->left[row.n] += (uint32_t)copies;
        s->longest = ot_max(row.n, s->longest);
    }
    p->counts.n_rows = (uint32_t)n_rows;
    return n_rows < UINT32_MAX
               ? 0
               : ot_fail(OT_E_INPUT,
                         "an epoch of more than 4 billion rows; give less data, or smaller shares");
}

/* Counting sort: ranks by falling length; rows of equal length keep the order of the file. */
static int rank_rows(struct ot_packing *p, struct supply *s, struct ot_row_arrays *arrays) {
    uint32_t rank = 0, *ranked = items(arrays, RANKED);
    for (int64_t length = s->longest; length >= 0; length--) {
        s->next[length] = rank;
        if (s->left[length] == 0)
            continue;
        s->bits[length / 64] |= (uint64_t)1 << (length % 64);
        OT_TRY(add_items(arrays, GROUPS, &rank, 1));
        p->counts.n_groups++;
        rank += s->left[length];
    }
    OT_TRY(add_items(arrays, GROUPS, &rank, 1));
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++)
        for (uint32_t copy = 0; copy < copies_of(&p->config, i); copy++)
            ranked[s->next[row_length(p, (uint32_t)i)]++] = (uint32_t)i;
    for (int64_t length = 0; length <= s->longest; length++)
        s->next[length] -= s->left[length];
    return 0;
}

/* The greatest length with rows left that is at most `limit`; 0 if there is none. */
static int64_t longest_within(const struct supply *s, int64_t limit) {
    if (limit > s->longest)
        limit = s->longest;
    int64_t word = limit / 64;
    uint64_t bits = s->bits[word] & (~(uint64_t)0 >> (63 - limit % 64));
    while (!bits && word > 0)
        bits = s->bits[--word];
    return bits ? word * 64 + 63 - __builtin_clzll(bits) : 0;
}

static uint32_t take_row(struct supply *s, int64_t length) {
    if (--s->left[length] == 0)
        s->bits[length / 64] &= ~((uint64_t)1 << (length % 64));
    return s->next[length]++;
}

/* Searches two lengths with rows left that fill `room` exactly. Returns the greater one, or 0. The search is
 * short because it runs for nearly every row; if there are many lengths, the first pairs are good enough. */
static int64_t exact_pair(const struct supply *s, int64_t room) {
    enum { TRIES = 256 };
    int64_t a = longest_within(s, room - 1);
    for (int i = 0; i < TRIES && 2 * a >= room; i++) {
        int64_t b = room - a;
        if (s->left[b] > (a == b))
            return a;
        a = longest_within(s, a - 1);
    }
    return 0;
}

/* Takes rows in the order of their ranks. */
static void fill_sequence(const struct ot_packing *p, struct supply *s, uint32_t *placed) {
    for (int64_t room = p->config.seq_len; room > 0;) {
        int64_t length = longest_within(s, room);
        if (length == 0)
            return;
        int64_t pair = length < room && room <= 2 * s->longest ? exact_pair(s, room) : 0;
        if (pair)
            length = pair; /* the next round takes the other row: it fills the remaining room */
        placed[s->placed++] = take_row(s, length);
        room -= length;
    }
}

static int pack_rows(struct ot_packing *p, struct supply *s, struct ot_row_arrays *arrays) {
    OT_TRY(rank_rows(p, s, arrays));
    for (; longest_within(s, s->longest) > 0; p->counts.n_sequences++) {
        OT_TRY(add_items(arrays, FIRST, &s->placed, 1));
        fill_sequence(p, s, items(arrays, PLACED));
    }
    return add_items(arrays, FIRST, &s->placed, 1);
}

/* One row a sequence, in the order of the file. */
static int lay_out_single(struct ot_packing *p, struct ot_row_arrays *arrays) {
    uint32_t j = 0, *ranked = items(arrays, RANKED), *placed = items(arrays, PLACED);
    p->counts.n_sequences = p->counts.n_rows;
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++)
        for (uint32_t copy = 0; copy < copies_of(&p->config, i); copy++) {
            ranked[j] = (uint32_t)i;
            placed[j] = j;
            OT_TRY(add_items(arrays, FIRST, &j, 1));
            j++;
        }
    return add_items(arrays, FIRST, &j, 1);
}

/* Makes the arrays of the packing. */
static int make_packing(void *context, struct ot_row_arrays *arrays) {
    struct ot_packing *p = context;
    struct supply supply;
    int rc;
    p->counts = (struct counts){0};
    OT_TRY_GOTO(open_supply(p, &supply), rc, out);
    ot_dataset_expect_order(p->config.dataset, true);
    OT_TRY_GOTO(count_rows(p, &supply), rc, out);
    OT_TRY_GOTO(add_items(arrays, RANKED, NULL, p->counts.n_rows), rc, out);
    OT_TRY_GOTO(add_items(arrays, PLACED, NULL, p->counts.n_rows), rc, out);
    ot_grow_map_expect_random(&arrays->maps[RANKED]);
    rc = p->config.one_row ? lay_out_single(p, arrays) : pack_rows(p, &supply, arrays);
    ot_grow_map_expect_order(&arrays->maps[RANKED]);
    ot_dataset_expect_order(p->config.dataset, false);
out:
    close_supply(&supply);
    return rc;
}

/* ---- the whole packing ---- */

static int find_or_make(struct ot_packing *p) {
    const struct ot_packing_config *c = &p->config;
    char *key;
    OT_TRY(ot_string_format(&key, "packing seq-len %lld one-row %d shuffle %d seed %llu held-out %d\n%s",
                            (long long)c->seq_len, c->one_row, c->shuffle, (unsigned long long)c->seed,
                            c->takes_held_out, c->key ? c->key : ""));
    int rc = ot_row_cache_get(&c->cache, OT_ROW_CACHE_PACKING, key, &p->counts, sizeof p->counts, &p->fixed,
                              make_packing, p);
    free(key);
    ot_grow_map_expect_random(&p->fixed.maps[FIRST]);
    return rc;
}

int ot_packing_open(const struct ot_packing_config *config, struct ot_packing **out) {
    *out = NULL;
    struct ot_packing *p = calloc(1, sizeof *p);
    if (!p)
        return ot_fail(OT_E_BUDGET, "no memory for packing");
    p->config = *config;
    p->drawn = -1;
    int rc = find_or_make(p);
    if (rc < 0) {
        ot_packing_close(p);
        return rc;
    }
    p->config.copies = NULL; /* read only during open */
    p->config.held_out = NULL;
    p->config.key = NULL;
    *out = p;
    return 0;
}

void ot_packing_close(struct ot_packing *p) {
    if (!p)
        return;
    ot_row_arrays_close(&p->epoch);
    ot_row_arrays_close(&p->fixed);
    free(p);
}

int64_t ot_packing_sequences(const struct ot_packing *p) {
    return p->counts.n_sequences;
}

int64_t ot_packing_rows(const struct ot_packing *p) {
    return p->counts.n_rows;
}

int64_t ot_packing_tokens(const struct ot_packing *p) {
    return p->counts.tokens;
}

int64_t ot_packing_trained_tokens(const struct ot_packing *p) {
    return p->counts.trained;
}

double ot_packing_fill(const struct ot_packing *p) {
    double places = (double)p->counts.n_sequences * (double)p->config.seq_len;
    return places > 0 ? (double)p->counts.tokens / places : 0;
}

size_t ot_packing_bytes(const struct ot_packing *p) {
    size_t bytes = ot_row_arrays_memory(&p->fixed),
           items = 2 * (size_t)p->counts.n_rows + p->counts.n_sequences;
    return bytes > 0 ? bytes + items * sizeof(uint32_t) : 0;
}

/* ---- an epoch ---- */

struct drawing {
    const struct ot_packing *packing;
    int64_t epoch;
    const char *scratch; /* for what the drawing needs beside the arrays; NULL: memory */
};

static struct ot_shuffle shuffle_of(const struct drawing *d, uint64_t what, uint64_t first) {
    return (struct ot_shuffle){.seed = d->packing->config.seed,
                               .stream = ot_random_stream(OT_RANDOM_SHUFFLE, (uint64_t)d->epoch, what),
                               .first = first,
                               .scratch = d->scratch,
                               .block = SHUFFLE_ITEMS};
}

static int draw_order(const struct drawing *d, struct ot_row_arrays *arrays) {
    const uint32_t n = d->packing->counts.n_sequences;
    OT_TRY(add_items(arrays, ORDER, NULL, n));
    for (uint32_t s = 0; s < n; s++)
        items(arrays, ORDER)[s] = s;
    const struct ot_shuffle how = shuffle_of(d, DRAW_SEQUENCES, 0);
    return d->packing->config.shuffle ? ot_shuffle(&how, items(arrays, ORDER), n) : 0;
}

/* The rows by rank; those of each length are shuffled. */
static int shuffle_rows(const struct drawing *d, struct ot_grow_map *map) {
    const struct ot_packing *p = d->packing;
    const uint32_t *ranked = items(&p->fixed, RANKED), *groups = items(&p->fixed, GROUPS);
    const uint32_t n_groups = p->config.shuffle ? p->counts.n_groups : 0;
    OT_TRY(check_items(&p->fixed, RANKED, 0, p->counts.n_rows));
    OT_TRY(ot_row_arrays_check(&p->fixed, GROUPS, 0, p->fixed.maps[GROUPS].bytes));
    if (d->scratch)
        OT_TRY(ot_grow_map_create_unnamed(d->scratch, map));
    OT_TRY(ot_grow_map_add(map, NULL, p->counts.n_rows * sizeof *ranked));
    uint32_t *rows = (uint32_t *)(void *)map->data;
    if (p->counts.n_rows > 0)
        memcpy(rows, ranked, p->counts.n_rows * sizeof *ranked);
    for (uint32_t g = 0; g < n_groups; g++) {
        const struct ot_shuffle how = shuffle_of(d, DRAW_ROWS, groups[g]);
        OT_TRY(ot_shuffle(&how, rows + groups[g], groups[g + 1] - groups[g]));
    }
    return 0;
}

/* Rows of each length follow each other by rank, so they are read in order, from as many places as there are
 * lengths. */
static int place_rows(const struct ot_packing *p, const struct ot_grow_map *shuffled,
                      struct ot_row_arrays *arrays) {
    const uint32_t *rows = (const uint32_t *)(const void *)shuffled->data, *placed = items(&p->fixed, PLACED);
    OT_TRY(check_items(&p->fixed, PLACED, 0, p->counts.n_rows));
    OT_TRY(add_items(arrays, PACKED, NULL, p->counts.n_rows));
    uint32_t *packed = items(arrays, PACKED);
    ot_grow_map_expect_random(shuffled);
    for (uint32_t j = 0; j < p->counts.n_rows; j++) {
        if (placed[j] % AHEAD_ITEMS == 0)
            ot_grow_map_read_ahead(shuffled, (placed[j] + (size_t)AHEAD_ITEMS) * sizeof *rows,
                                   AHEAD_ITEMS * sizeof *rows);
        packed[j] = rows[placed[j]];
    }
    return 0;
}

static int make_epoch(void *context, struct ot_row_arrays *arrays) {
    struct drawing *d = context;
    struct ot_grow_map shuffled = {0};
    d->scratch = arrays->maps[ORDER].is_file ? d->packing->config.cache.scratch : NULL;
    int rc = draw_order(d, arrays);
    if (rc == 0)
        rc = shuffle_rows(d, &shuffled);
    if (rc == 0)
        rc = place_rows(d->packing, &shuffled, arrays);
    ot_grow_map_close(&shuffled);
    return rc;
}

int ot_packing_set_epoch(struct ot_packing *p, int64_t epoch) {
    epoch = p->config.shuffle ? epoch : 0;
    if (p->drawn == epoch)
        return 0;
    struct ot_row_cache_config cache = p->config.cache;
    struct drawing drawing = {.packing = p, .epoch = epoch};
    int64_t head = epoch;
    char *key;
    cache.dir = p->fixed.dir;
    cache.is_own = true;
    ot_row_arrays_close(&p->epoch);
    p->drawn = -1;
    OT_TRY(ot_string_format(&key, "epoch %lld\n", (long long)epoch));
    int rc = ot_row_cache_get(&cache, OT_ROW_CACHE_EPOCH, key, &head, sizeof head, &p->epoch, make_epoch,
                              &drawing);
    free(key);
    OT_TRY(rc);
    ot_grow_map_expect_random(&p->epoch.maps[PACKED]);
    p->drawn = epoch;
    return 0;
}

int ot_packing_check(const struct ot_packing *p, int64_t sequence) {
    OT_TRY(check_items(&p->epoch, ORDER, (size_t)sequence, 1));
    const uint32_t s = items(&p->epoch, ORDER)[sequence], *first = items(&p->fixed, FIRST) + s;
    OT_TRY(check_items(&p->fixed, FIRST, s, 2));
    return check_items(&p->epoch, PACKED, first[0], first[1] - first[0]);
}

const uint32_t *ot_packing_sequence(const struct ot_packing *p, int64_t sequence, int64_t *n_rows) {
    const uint32_t s = items(&p->epoch, ORDER)[sequence], *first = items(&p->fixed, FIRST) + s;
    *n_rows = first[1] - first[0];
    return items(&p->epoch, PACKED) + first[0];
}
