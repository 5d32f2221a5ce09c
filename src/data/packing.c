#include "src/data/packing.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/grow_map.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/data/dataset.h"

/* Separate random streams for the two shuffles of an epoch. */
enum { DRAW_ROWS, DRAW_SEQUENCES };
enum { ARRAYS = 6 };

struct ot_packing {
    struct ot_packing_config config;
    int64_t tokens, trained;
    uint32_t n_rows, n_sequences;
    /* A place is a position in the list of all sequences' rows; sequence s has the places from first[s] up to
     * first[s + 1]. Rows are ranked by falling length. The row of rank j, or another row of the same length,
     * is at place[j]. */
    uint32_t *by_rank; /* [n_rows] row numbers */
    uint32_t *place;   /* [n_rows] */
    uint32_t *first;   /* [n_sequences + 1] */
    /* For the present epoch: */
    uint32_t *rows;                    /* [n_rows] row at each place */
    uint32_t *shuffled;                /* [n_rows] by_rank with rows of equal length shuffled */
    uint32_t *order;                   /* [n_sequences] */
    struct ot_grow_map arrays[ARRAYS]; /* the memory of all of them */
    int n_arrays;
};

/* n zeros. The caller closes the map also after an error. */
static int map_zeros(const struct ot_packing *p, size_t n, struct ot_grow_map *map, uint32_t **out) {
    if (p->config.scratch)
        OT_TRY(ot_grow_map_create_unnamed(p->config.scratch, map));
    OT_TRY(ot_grow_map_add(map, NULL, n * sizeof **out));
    *out = (uint32_t *)(void *)map->data;
    return 0;
}

/* The same; they end with the packing. */
static int make_array(struct ot_packing *p, size_t n, uint32_t **out) {
    return map_zeros(p, n, &p->arrays[p->n_arrays++], out);
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

/* Returns the length of the longest row, -1 if there are too many. */
static int64_t count_rows(struct ot_packing *p) {
    int64_t longest = 0, n_rows = 0;
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++) {
        struct ot_row row = ot_dataset_row(p->config.dataset, i);
        int64_t copies = copies_of(&p->config, i);
        n_rows += copies;
        p->tokens += copies * row.n;
        p->trained += copies * row.trained;
        longest = copies > 0 ? ot_max(row.n, longest) : longest;
    }
    p->n_rows = (uint32_t)n_rows;
    return n_rows < UINT32_MAX ? longest : -1;
}

/* ---- grouping rows into sequences ---- */

/* The rows that are not yet in a sequence, by length. */
struct supply {
    int64_t longest;
    uint32_t *left; /* [longest + 1] number of rows of each length */
    uint32_t *next; /* [longest + 1] rank of the first remaining row of each length */
    uint64_t *bits; /* a bit for each length that has rows left */
};

/* Counting sort: ranks by falling length; rows of equal length keep the order of the file. */
static void rank_rows(struct ot_packing *p, struct supply *s) {
    int64_t n = ot_dataset_rows(p->config.dataset);
    for (int64_t i = 0; i < n; i++)
        if (copies_of(&p->config, i) > 0)
            s->left[row_length(p, (uint32_t)i)] += copies_of(&p->config, i);
    uint32_t rank = 0;
    for (int64_t length = s->longest; length >= 0; length--) {
        s->next[length] = rank;
        rank += s->left[length];
        if (s->left[length])
            s->bits[length / 64] |= (uint64_t)1 << (length % 64);
    }
    for (int64_t i = 0; i < n; i++)
        for (uint32_t copy = 0; copy < copies_of(&p->config, i); copy++)
            p->by_rank[s->next[row_length(p, (uint32_t)i)]++] = (uint32_t)i;
    for (int64_t length = 0; length <= s->longest; length++)
        s->next[length] -= s->left[length];
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

static void fill_sequence(struct ot_packing *p, struct supply *s, uint32_t *sequence_of) {
    for (int64_t room = p->config.seq_len; room > 0;) {
        int64_t length = longest_within(s, room);
        if (length == 0)
            return;
        int64_t pair = length < room && room <= 2 * s->longest ? exact_pair(s, room) : 0;
        if (pair)
            length = pair; /* the next round takes the other row: it fills the remaining room */
        sequence_of[take_row(s, length)] = p->n_sequences;
        room -= length;
    }
}

/* Gives each row its place, sequence after sequence. */
static int lay_out(struct ot_packing *p, const uint32_t *sequence_of) {
    OT_TRY(make_array(p, (size_t)p->n_sequences + 2, &p->first));
    OT_TRY(make_array(p, (size_t)p->n_sequences + 1, &p->order));
    uint32_t *end = p->first + 1; /* while places are given out, end[s] grows from first[s] to first[s + 1] */
    for (uint32_t j = 0; j < p->n_rows; j++)
        end[sequence_of[j] + 1]++;
    for (uint32_t s = 0; s < p->n_sequences; s++)
        end[s + 1] += end[s];
    for (uint32_t j = 0; j < p->n_rows; j++)
        p->place[j] = end[sequence_of[j]]++;
    return 0;
}

static int pack_rows(struct ot_packing *p, int64_t longest) {
    size_t lengths = (size_t)longest + 1;
    uint32_t *sequence_of;
    struct ot_grow_map map = {0};
    struct supply supply = {.longest = longest,
                            .left = calloc(lengths, sizeof *supply.left),
                            .next = calloc(lengths, sizeof *supply.next),
                            .bits = calloc(lengths / 64 + 1, sizeof *supply.bits)};
    int rc = map_zeros(p, (size_t)p->n_rows + 1, &map, &sequence_of);
    if (rc == 0 && supply.left && supply.next && supply.bits) {
        rank_rows(p, &supply);
        for (; longest_within(&supply, longest) > 0; p->n_sequences++)
            fill_sequence(p, &supply, sequence_of);
        rc = lay_out(p, sequence_of);
    } else if (rc == 0) {
        rc = ot_fail(OT_E_BUDGET, "no memory for packing %u rows", p->n_rows);
    }
    free(supply.bits);
    free(supply.next);
    free(supply.left);
    ot_grow_map_close(&map);
    return rc;
}

/* One row a sequence, in the order of the file. */
static int lay_out_single(struct ot_packing *p) {
    p->n_sequences = p->n_rows;
    OT_TRY(make_array(p, (size_t)p->n_rows + 1, &p->first));
    OT_TRY(make_array(p, (size_t)p->n_rows + 1, &p->order));
    uint32_t j = 0;
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++)
        for (uint32_t copy = 0; copy < copies_of(&p->config, i); copy++)
            p->by_rank[j++] = (uint32_t)i;
    for (j = 0; j < p->n_rows; j++) {
        p->place[j] = j;
        p->first[j + 1] = j + 1;
    }
    return 0;
}

/* ---- the whole packing ---- */

int ot_packing_open(const struct ot_packing_config *config, struct ot_packing **out) {
    *out = NULL;
    int rc = 0;
    struct ot_packing *p = calloc(1, sizeof *p);
    if (!p)
        return ot_fail(OT_E_BUDGET, "no memory for packing");
    p->config = *config;
    int64_t longest = count_rows(p);
    if (longest < 0) {
        rc = ot_fail(OT_E_INPUT, "an epoch of more than 4 billion rows; give less data, or smaller shares");
        goto out;
    }
    assert(longest <= config->seq_len); /* the dataset was made with this seq_len or a smaller one */
    size_t n = (size_t)p->n_rows + 1;   /* one more, so that an empty dataset needs no special case */
    OT_TRY_GOTO(make_array(p, n, &p->by_rank), rc, out);
    OT_TRY_GOTO(make_array(p, n, &p->place), rc, out);
    OT_TRY_GOTO(make_array(p, n, &p->rows), rc, out);
    OT_TRY_GOTO(make_array(p, n, &p->shuffled), rc, out);
    OT_TRY_GOTO(config->one_row ? lay_out_single(p) : pack_rows(p, longest), rc, out);
    p->config.copies = NULL; /* read only during open */
    p->config.held_out = NULL;
    ot_packing_set_epoch(p, 0);
    *out = p;
    p = NULL;
out:
    ot_packing_close(p);
    return rc;
}

void ot_packing_close(struct ot_packing *p) {
    if (!p)
        return;
    for (int i = 0; i < p->n_arrays; i++)
        ot_grow_map_close(&p->arrays[i]);
    free(p);
}

int64_t ot_packing_sequences(const struct ot_packing *p) {
    return p->n_sequences;
}

int64_t ot_packing_rows(const struct ot_packing *p) {
    return p->n_rows;
}

int64_t ot_packing_tokens(const struct ot_packing *p) {
    return p->tokens;
}

int64_t ot_packing_trained_tokens(const struct ot_packing *p) {
    return p->trained;
}

double ot_packing_fill(const struct ot_packing *p) {
    return p->n_sequences ? (double)p->tokens / ((double)p->n_sequences * (double)p->config.seq_len) : 0;
}

size_t ot_packing_bytes(const struct ot_packing *p) {
    size_t bytes = 0;
    for (int i = 0; i < p->n_arrays; i++)
        bytes += ot_grow_map_memory(&p->arrays[i]);
    return bytes;
}

/* Fisher-Yates shuffle of [0, n). `index` separates the draws of several calls in one stream. */
static void shuffle(uint32_t *items, uint32_t n, uint64_t seed, uint64_t stream, uint64_t index) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)ot_random_below(seed, stream, index + i - 1, i);
        uint32_t item = items[i - 1];
        items[i - 1] = items[k];
        items[k] = item;
    }
}

void ot_packing_set_epoch(struct ot_packing *p, int64_t epoch) {
    uint64_t seed = p->config.seed;
    memcpy(p->shuffled, p->by_rank, p->n_rows * sizeof *p->shuffled);
    for (uint32_t s = 0; s < p->n_sequences; s++)
        p->order[s] = s;
    if (p->config.shuffle)
        shuffle(p->order, p->n_sequences, seed,
                ot_random_stream(OT_RANDOM_SHUFFLE, (uint64_t)epoch, DRAW_SEQUENCES), 0);
    if (p->config.shuffle && !p->config.one_row) {
        uint64_t stream = ot_random_stream(OT_RANDOM_SHUFFLE, (uint64_t)epoch, DRAW_ROWS);
        for (uint32_t begin = 0, end; begin < p->n_rows; begin = end) {
            int64_t length = row_length(p, p->by_rank[begin]);
            for (end = begin + 1; end < p->n_rows && row_length(p, p->by_rank[end]) == length;)
                end++;
            shuffle(p->shuffled + begin, end - begin, seed, stream, begin);
        }
    }
    for (uint32_t j = 0; j < p->n_rows; j++)
        p->rows[p->place[j]] = p->shuffled[j];
}

const uint32_t *ot_packing_sequence(const struct ot_packing *p, int64_t sequence, int64_t *n_rows) {
    uint32_t s = p->order[sequence];
    *n_rows = p->first[s + 1] - p->first[s];
    return p->rows + p->first[s];
}
