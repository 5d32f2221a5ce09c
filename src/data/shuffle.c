#include "src/data/shuffle.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/grow_map.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

/* The place that the item at `at` changes with. */
static uint32_t draw(const struct ot_shuffle *how, uint32_t at) {
    return (uint32_t)ot_random_below(how->seed, how->stream, how->first + at, (uint64_t)at + 1);
}

static void change(uint32_t *items, uint32_t a, uint32_t b) {
    uint32_t item = items[a];
    items[a] = items[b];
    items[b] = item;
}

static void shuffle_block(const struct ot_shuffle *how, uint32_t *items, uint32_t n) {
    for (uint32_t at = n; at-- > 1;)
        change(items, at, draw(how, at));
}

/* ---- in blocks ---- */

struct moved {
    uint32_t from; /* the place that it leaves open */
    uint32_t item; /* the one that moves; in the end the one that it gets in return */
};

struct blocks {
    const struct ot_shuffle *how;
    uint32_t *items, n, n_blocks;
    uint32_t *places; /* [block] the random places of a block's items */
    struct ot_grow_map
        lists;   /* of struct moved: those of a block for the blocks before it, block after block */
    size_t *end; /* [n_blocks][n_blocks] end of the list that block b has for block c */
};

static struct moved *moved(const struct blocks *b) {
    return (struct moved *)(void *)b->lists.data;
}

static size_t *list_end(const struct blocks *b, uint32_t block, uint32_t earlier) {
    return &b->end[(size_t)block * b->n_blocks + earlier];
}

/* The beginning of the list: the end of the one before it. */
static size_t list_begin(const struct blocks *b, uint32_t block, uint32_t earlier) {
    if (earlier > 0)
        return *list_end(b, block, earlier - 1);
    return block + 1 < b->n_blocks ? *list_end(b, block + 1, block + 1) : 0;
}

static uint32_t block_end(const struct blocks *b, uint32_t block) {
    return block + 1 < b->n_blocks ? (block + 1) * b->how->block : b->n;
}

/* The block takes the items that later blocks have for it, in the order of the loop. */
static void take_moved(const struct blocks *b, uint32_t block) {
    for (uint32_t later = b->n_blocks; later-- > block + 1;) {
        size_t begin = list_begin(b, later, block), end = *list_end(b, later, block);
        ot_grow_map_read_ahead(&b->lists, begin * sizeof(struct moved), (end - begin) * sizeof(struct moved));
        for (struct moved *m = moved(b) + begin; m < moved(b) + end; m++) {
            uint32_t *place = &b->items[draw(b->how, m->from)], item = *place;
            *place = m->item;
            m->item = item;
        }
    }
}

/* Draws the places of a block's items, and makes room for its lists. */
static int begin_lists(struct blocks *b, uint32_t block) {
    const uint32_t size = b->how->block, begin = block * size;
    size_t *end = list_end(b, block, 0), at = list_begin(b, block, 0), before = at;
    for (uint32_t i = ot_max(begin, 1u); i < block_end(b, block); i++)
        end[(b->places[i - begin] = draw(b->how, i)) / size]++;
    for (uint32_t earlier = 0; earlier < block; earlier++) {
        size_t n = end[earlier];
        end[earlier] = at; /* grows to the end while the list is filled */
        at += n;
    }
    end[block] = at; /* there is no list for the block itself */
    return ot_grow_map_add(&b->lists, NULL, (at - before) * sizeof(struct moved));
}

static void run_block(struct blocks *b, uint32_t block) {
    const uint32_t size = b->how->block, begin = block * size;
    for (uint32_t i = block_end(b, block); i-- > ot_max(begin, 1u);) {
        uint32_t place = b->places[i - begin];
        if (place >= begin)
            change(b->items, i, place);
        else
            moved(b)[(*list_end(b, block, place / size))++] = (struct moved){i, b->items[i]};
    }
}

static int run_blocks(struct blocks *b) {
    OT_TRY(ot_grow_map_create_unnamed(b->how->scratch, &b->lists));
    for (uint32_t block = b->n_blocks; block-- > 0;) {
        take_moved(b, block);
        OT_TRY(begin_lists(b, block));
        ot_grow_map_expect_random(&b->lists);
        run_block(b, block);
    }
    ot_grow_map_expect_order(&b->lists);
    const struct moved *end = moved(b) + b->lists.bytes / sizeof *end;
    for (const struct moved *m = moved(b); m < end; m++)
        b->items[m->from] = m->item;
    return 0;
}

int ot_shuffle(const struct ot_shuffle *how, uint32_t *items, uint32_t n) {
    if (!how->scratch || n <= how->block) {
        shuffle_block(how, items, n);
        return 0;
    }
    struct blocks b = {.how = how, .items = items, .n = n, .n_blocks = (n - 1) / how->block + 1};
    b.places = malloc(how->block * sizeof *b.places);
    b.end = calloc((size_t)b.n_blocks * b.n_blocks, sizeof *b.end);
    int rc = b.places && b.end ? run_blocks(&b) : ot_fail(OT_E_BUDGET, "no memory to shuffle %u rows", n);
    free(b.places);
    free(b.end);
    ot_grow_map_close(&b.lists);
    return rc;
}
