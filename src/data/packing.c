#include "src/data/packing.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/random.h"
#include "src/data/dataset.h"

/* What is drawn within the shuffling of one epoch. */
enum { DRAW_ROWS, DRAW_SEQUENCES };

struct ot_packing {
    struct ot_packing_config config;
    int64_t tokens, trained;
    uint32_t n_rows, n_sequences;
    /* A PLACE is a position in the sequences laid end to end; sequence s has the places first[s]..first[s +
     * 1]. Rows are ranked by falling length; the row of rank j, or another of its length, stands at place[j].
     */
    uint32_t *by_rank; /* [n_rows] row numbers */
    uint32_t *place;   /* [n_rows] */
    uint32_t *first;   /* [n_sequences + 1] */
    /* Of the present epoch: */
    uint32_t *rows;     /* [n_rows] row at each place */
    uint32_t *shuffled; /* [n_rows] by_rank, rows of equal length exchanged */
    uint32_t *order;    /* [n_sequences] */
};

int64_t ot_split_rows(const struct ot_dataset *dataset, double fraction, uint64_t seed, bool *eval) {
    int64_t documents = ot_dataset_documents(dataset);
    int64_t wanted = (int64_t)(fraction * (double)documents + 0.5);
    if (wanted >= documents)
        wanted = documents - 1;
    /* Selection sampling (Knuth, volume 2, 3.4.2, algorithm S): exactly `wanted`, each set equally likely. */
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

/* ---- which rows ---- */

static bool is_used(const struct ot_packing_config *config, int64_t row) {
    return !config->only || config->only[row] == config->only_value;
}

static int64_t row_length(const struct ot_packing *p, uint32_t row) {
    return ot_dataset_row(p->config.dataset, row).n;
}

static int64_t count_rows(struct ot_packing *p) {
    int64_t longest = 0;
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++) {
        if (!is_used(&p->config, i))
            continue;
        struct ot_row row = ot_dataset_row(p->config.dataset, i);
        p->n_rows++;
        p->tokens += row.n;
        p->trained += row.trained;
        longest = row.n > longest ? row.n : longest;
    }
    return longest;
}

/* Counting sort: falling length, rows of equal length in the order of the file. */
static void rank_rows(struct ot_packing *p, int64_t longest, uint32_t *begin) {
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++)
        if (is_used(&p->config, i))
            begin[longest - row_length(p, (uint32_t)i) + 1]++;
    for (int64_t k = 1; k <= longest; k++)
        begin[k] += begin[k - 1];
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++)
        if (is_used(&p->config, i))
            p->by_rank[begin[longest - row_length(p, (uint32_t)i)]++] = (uint32_t)i;
}

/* ---- best fit ---- */

enum { NO_SEQUENCE = UINT32_MAX };

/* Sequences by the room that is left in them: lists, and a bit for each list that is not empty. */
struct rooms {
    int64_t seq_len;
    uint32_t *head; /* [seq_len + 1] */
    uint64_t *bits; /* [seq_len / 64 + 1] */
    uint32_t *next; /* [sequences] */
};

static void put_sequence(struct rooms *r, uint32_t sequence, int64_t room) {
    r->next[sequence] = r->head[room];
    r->head[room] = sequence;
    r->bits[room / 64] |= (uint64_t)1 << (room % 64);
}

/* Takes a sequence with the least room that is enough; NO_SEQUENCE if there is none. */
static uint32_t take_sequence(struct rooms *r, int64_t need, int64_t *room) {
    int64_t word = need / 64;
    uint64_t bits = r->bits[word] & (~(uint64_t)0 << (need % 64));
    while (!bits && ++word <= r->seq_len / 64)
        bits = r->bits[word];
    if (!bits)
        return NO_SEQUENCE;
    *room = word * 64 + __builtin_ctzll(bits);
    uint32_t sequence = r->head[*room];
    r->head[*room] = r->next[sequence];
    if (r->head[*room] == NO_SEQUENCE)
        r->bits[word] &= ~((uint64_t)1 << (*room % 64));
    return sequence;
}

static void fit_rows(struct ot_packing *p, struct rooms *r, uint32_t *sequence_of) {
    memset(r->head, 0xff, (size_t)(r->seq_len + 1) * sizeof *r->head);
    for (uint32_t j = 0; j < p->n_rows; j++) {
        int64_t length = row_length(p, p->by_rank[j]), room = r->seq_len;
        uint32_t sequence = take_sequence(r, length, &room);
        if (sequence == NO_SEQUENCE)
            sequence = p->n_sequences++;
        put_sequence(r, sequence, room - length);
        sequence_of[j] = sequence;
    }
}

/* Lays the sequences end to end. */
static int lay_out(struct ot_packing *p, const uint32_t *sequence_of) {
    p->first = calloc((size_t)p->n_sequences + 2, sizeof *p->first);
    p->order = calloc((size_t)p->n_sequences + 1, sizeof *p->order);
    if (!p->first || !p->order)
        return -1;
    uint32_t *end = p->first + 1; /* end[s] runs from first[s] to first[s + 1] while places are given out */
    for (uint32_t j = 0; j < p->n_rows; j++)
        end[sequence_of[j] + 1]++;
    for (uint32_t s = 0; s < p->n_sequences; s++)
        end[s + 1] += end[s];
    for (uint32_t j = 0; j < p->n_rows; j++)
        p->place[j] = end[sequence_of[j]]++;
    return 0;
}

static int pack_rows(struct ot_packing *p, int64_t longest) {
    size_t seq_len = (size_t)p->config.seq_len, n = p->n_rows;
    uint32_t *begin = calloc((size_t)longest + 2, sizeof *begin);
    uint32_t *sequence_of = calloc(n + 1, sizeof *sequence_of);
    struct rooms rooms = {.seq_len = p->config.seq_len,
                          .head = calloc(seq_len + 1, sizeof *rooms.head),
                          .bits = calloc(seq_len / 64 + 1, sizeof *rooms.bits),
                          .next = calloc(n + 1, sizeof *rooms.next)};
    int rc = -1;
    if (begin && sequence_of && rooms.head && rooms.bits && rooms.next) {
        rank_rows(p, longest, begin);
        fit_rows(p, &rooms, sequence_of);
        rc = lay_out(p, sequence_of);
    }
    free(rooms.next);
    free(rooms.bits);
    free(rooms.head);
    free(sequence_of);
    free(begin);
    return rc;
}

/* One row a sequence, in the order of the file. */
static int lay_out_single(struct ot_packing *p) {
    p->n_sequences = p->n_rows;
    p->first = calloc((size_t)p->n_rows + 1, sizeof *p->first);
    p->order = calloc((size_t)p->n_rows + 1, sizeof *p->order);
    if (!p->first || !p->order)
        return -1;
    uint32_t j = 0;
    for (int64_t i = 0; i < ot_dataset_rows(p->config.dataset); i++)
        if (is_used(&p->config, i))
            p->by_rank[j++] = (uint32_t)i;
    for (j = 0; j < p->n_rows; j++) {
        p->place[j] = j;
        p->first[j + 1] = j + 1;
    }
    return 0;
}

/* ---- the whole ---- */

int ot_packing_open(const struct ot_packing_config *config, struct ot_packing **out) {
    *out = NULL;
    int rc = 0;
    struct ot_packing *p = calloc(1, sizeof *p);
    if (!p)
        return ot_fail(OT_E_BUDGET, "no memory for packing");
    p->config = *config;
    int64_t longest = count_rows(p);
    size_t n = (size_t)p->n_rows + 1; /* so that no data is no special case */
    p->by_rank = calloc(n, sizeof *p->by_rank);
    p->place = calloc(n, sizeof *p->place);
    p->rows = calloc(n, sizeof *p->rows);
    p->shuffled = calloc(n, sizeof *p->shuffled);
    if (!p->by_rank || !p->place || !p->rows || !p->shuffled ||
        (config->one_row ? lay_out_single(p) : pack_rows(p, longest)) < 0) {
        rc = ot_fail(OT_E_BUDGET, "no memory for packing %u rows", p->n_rows);
        goto out;
    }
    p->config.only = NULL; /* not read again */
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
    free(p->by_rank);
    free(p->place);
    free(p->first);
    free(p->rows);
    free(p->shuffled);
    free(p->order);
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
    return (4 * (size_t)p->n_rows + 2 * (size_t)p->n_sequences) * sizeof(uint32_t);
}

/* Fisher-Yates on [0, n); `index` makes the draws of several calls in one stream distinct. */
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
