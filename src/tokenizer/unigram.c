#include "src/tokenizer/unigram.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/tokenizer/text.h"
#include "src/tokenizer/vocab.h"

static const uint32_t none = UINT32_MAX;

/* ---- the trie ---- */

/* The tokens [begin, end) of the sorted list have the node's text as their first `depth` bytes. */
struct range {
    uint32_t node, begin, end, depth;
};

struct builder {
    struct ot_unigram_node *nodes;
    size_t n_nodes;              /* all beyond it are free */
    const struct ot_token **all; /* sorted by text */
    const struct ot_token *first;
    struct range *waiting; /* nodes whose children are not placed */
    size_t n_waiting, capacity;
    size_t least; /* the search for free places begins here */
};

static int by_text(const void *a, const void *b) {
    const struct ot_token *x = *(const struct ot_token *const *)a, *y = *(const struct ot_token *const *)b;
    int order = memcmp(x->text, y->text, ot_min(x->bytes, y->bytes));
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Makes at least n nodes; the new ones are free. */
static int grow_nodes(struct builder *b, size_t n) {
    if (n <= b->n_nodes)
        return 0;
    size_t before = b->n_nodes;
    if (n >= none / 2) /* the capacity, which may be half as large again, stays below none */
        return ot_fail(OT_E_BUDGET, "no memory for a trie of %zu nodes", n);
    OT_TRY(ot_grow(&b->nodes, &b->n_nodes, n, sizeof *b->nodes, "nodes of a trie"));
    for (size_t i = before; i < b->n_nodes; i++)
        b->nodes[i] = (struct ot_unigram_node){0, none, -1};
    return 0;
}

static int wait(struct builder *b, struct range range) {
    OT_TRY(ot_grow(&b->waiting, &b->capacity, b->n_waiting + 1, sizeof *b->waiting, "ranges of a trie"));
    b->waiting[b->n_waiting++] = range;
    return 0;
}

/* A base at which all of these children have free places. The search looks at a limited number of places, and
 * those that it gives up are not looked at again, so that building takes linear time. */
static int find_base(struct builder *b, const uint8_t *labels, int n, uint32_t *base) {
    enum { MOST_PLACES = 4096 };
    size_t start = b->least > labels[0] ? b->least : (size_t)labels[0] + 1, used = 0;
    for (size_t at = start;; at++) {
        OT_TRY(grow_nodes(b, at + 512));
        if (b->nodes[at].parent != none) {
            used++;
            continue;
        }
        int fits = 1;
        while (fits < n && b->nodes[at - labels[0] + labels[fits]].parent == none)
            fits++;
        if (fits < n && at - start < MOST_PLACES)
            continue;
        if (at - start >= MOST_PLACES || used * 20 >= (at - start) * 19)
            b->least = at;
        if (fits < n) {
            start = at;
            used = 0;
            continue;
        }
        *base = (uint32_t)(at - labels[0]);
        return 0;
    }
}

/* Places the children of a node. */
static int place(struct builder *b, struct range r) {
    uint8_t labels[256];
    uint32_t ends[256], base;
    int n = 0;
    if (r.begin < r.end && b->all[r.begin]->bytes == r.depth)
        b->nodes[r.node].id = (int32_t)(b->all[r.begin++] - b->first);
    for (uint32_t i = r.begin; i < r.end; i++) {
        uint8_t label = (uint8_t)b->all[i]->text[r.depth];
        if (n == 0 || labels[n - 1] != label)
            labels[n++] = label;
        ends[n - 1] = i + 1;
    }
    if (n == 0)
        return 0;
    OT_TRY(find_base(b, labels, n, &base));
    b->nodes[r.node].base = base;
    for (int i = 0; i < n; i++)
        b->nodes[base + labels[i]].parent = r.node;
    for (int i = n; i-- > 0;) /* the first child is placed next, near its parent */
        OT_TRY(wait(b, (struct range){base + labels[i], i ? ends[i - 1] : r.begin, ends[i], r.depth + 1}));
    return 0;
}

static int build(struct builder *b, const struct ot_vocab *vocab) {
    uint32_t n = 0;
    b->first = vocab->tokens;
    b->all = calloc((size_t)vocab->n, sizeof *b->all);
    if (!b->all)
        return ot_fail(OT_E_BUDGET, "no memory to sort %d tokens", vocab->n);
    for (int32_t id = 0; id < vocab->n; id++)
        if (vocab->tokens[id].bytes > 0)
            b->all[n++] = &vocab->tokens[id];
    qsort(b->all, n, sizeof *b->all, by_text);
    OT_TRY(grow_nodes(b, 512));
    b->nodes[0].parent = none - 1; /* not free, and nobody's child */
    OT_TRY(wait(b, (struct range){0, 0, n, 0}));
    while (b->n_waiting > 0)
        OT_TRY(place(b, b->waiting[--b->n_waiting]));
    return 0;
}

/* Keeps the nodes up to 256 beyond the greatest base: each step from a node then stays inside the array. */
static int keep(struct ot_unigram *unigram, struct ot_arena *arena, const struct builder *b) {
    size_t last = 0;
    for (size_t i = 0; i < b->n_nodes; i++)
        last = b->nodes[i].parent != none && b->nodes[i].base > last ? b->nodes[i].base : last;
    unigram->n_nodes = last + 256;
    unigram->nodes = ot_arena_alloc(arena, unigram->n_nodes, sizeof *unigram->nodes);
    if (!unigram->nodes)
        return ot_fail(OT_E_BUDGET, "no memory for a trie of %zu nodes", unigram->n_nodes);
    memcpy(unigram->nodes, b->nodes, unigram->n_nodes * sizeof *unigram->nodes);
    return 0;
}

int ot_unigram_build(struct ot_unigram *unigram, struct ot_arena *arena, const struct ot_vocab *vocab) {
    struct builder b = {.least = 1};
    int rc = build(&b, vocab);
    if (rc == 0)
        rc = keep(unigram, arena, &b);
    free(b.nodes);
    free(b.all);
    free(b.waiting);
    return rc;
}

/* ---- the best path ---- */

static inline void reach(struct ot_unigram_step *step, double score, size_t begin, int32_t id) {
    if (step->begin == none || score > step->score)
        *step = (struct ot_unigram_step){score, (uint32_t)begin, id};
}

static int find_path(const struct ot_unigram *unigram, const struct ot_piece *word,
                     struct ot_unigram_step *steps) {
    const struct ot_unigram_node *nodes = unigram->nodes;
    for (size_t i = 0; i <= word->n; i++)
        steps[i].begin = none;
    steps[0].score = 0;
    for (size_t begin = 0, length; begin < word->n; begin += length) {
        double before = steps[begin].score;
        bool is_known = false;
        uint32_t node = 0;
        ot_utf8_decode(word->bytes + begin, &length);
        for (size_t i = begin; i < word->n; i++) {
            uint32_t child = nodes[node].base + (uint8_t)word->bytes[i];
            if (nodes[child].parent != node)
                break;
            node = child;
            int32_t id = nodes[node].id;
            if (id < 0)
                continue;
            reach(&steps[i + 1], before + unigram->scores[id], begin, id);
            is_known |= i + 1 == begin + length;
        }
        if (is_known)
            continue;
        if (unigram->unk < 0)
            return ot_fail(OT_E_INPUT,
                           "the tokenizer has no token for '%.*s' and no unk_id; remove this character",
                           (int)length, word->bytes + begin);
        reach(&steps[begin + length], before + unigram->unknown_score, begin, unigram->unk);
    }
    return 0;
}

/* The links of the best path lead from its end to its begin. Turns them around: steps[i].begin becomes the
 * end of the token that begins at byte i, and steps[i].id its id. */
static void turn_links(struct ot_unigram_step *steps, size_t n) {
    struct ot_unigram_step step = steps[n];
    for (size_t end = n; end > 0;) {
        struct ot_unigram_step last = step;
        step = steps[last.begin];
        steps[last.begin].begin = (uint32_t)end;
        steps[last.begin].id = last.id;
        end = last.begin;
    }
}

int ot_unigram_find(const struct ot_unigram *unigram, const struct ot_piece *word,
                    struct ot_unigram_step *steps) {
    OT_TRY(find_path(unigram, word, steps));
    turn_links(steps, word->n);
    return 0;
}
