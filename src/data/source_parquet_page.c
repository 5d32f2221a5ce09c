/* The pages of a column of a Parquet file: unpacks them, and takes levels and values from them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/data/source_parquet_state.h"

static uint32_t load_u32(const unsigned char *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- names ---- */

static const char *const codecs[] = {"none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw"};
static const char *const encodings[] = {"PLAIN",
                                        "1",
                                        "PLAIN_DICTIONARY",
                                        "RLE",
                                        "BIT_PACKED",
                                        "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY",
                                        "DELTA_BYTE_ARRAY",
                                        "RLE_DICTIONARY",
                                        "BYTE_STREAM_SPLIT"};
enum { N_CODECS = sizeof codecs / sizeof *codecs, N_ENCODINGS = sizeof encodings / sizeof *encodings };

static const char *name_of(const char *const *names, int n, int value) {
    return value >= 0 && value < n ? names[value] : "of an unknown number";
}

/* ---- unpacking ---- */

enum { CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_ZSTD = 6 };

typedef int (*snappy_fn)(const char *packed, size_t packed_bytes, char *to, size_t *bytes);
static snappy_fn snappy;

/* The library stays open until the process ends. */
static void open_snappy(void) {
    void *library = dlopen("libsnappy.so.1", RTLD_NOW | RTLD_LOCAL);
    snappy = library ? (snappy_fn)dlsym(library, "snappy_uncompress") : NULL;
}

static int unpack_snappy(const struct ot_source *s, const unsigned char *from, size_t n, unsigned char *to,
                         size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t got = bytes;
    pthread_once(&once, open_snappy);
    if (!snappy)
        return ot_fail(
            OT_E_USAGE,
            "%s: the Parquet file is packed with snappy, and libsnappy.so.1 is not installed; install "
            "it (libsnappy1v5), or write the file again with compression zstd, gzip or none",
            s->path);
    return snappy((const char *)from, n, (char *)to, &got) == 0 && got == bytes;
}

static bool unpack_gzip(const unsigned char *from, size_t n, unsigned char *to, size_t bytes) {
    z_stream z = {.next_in = (unsigned char *)from, .avail_in = (unsigned)n, .next_out = to};
    z.avail_out = (unsigned)bytes;
    if (inflateInit2(&z, 15 + 32) != Z_OK) /* 32: gzip or zlib */
        return false;
    int code = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return code == Z_STREAM_END && z.avail_out == 0;
}

/* Unpacks to exactly `bytes`. */
static int unpack(const struct ot_source *s, const struct parquet_column *c, int codec,
                  const unsigned char *from, size_t n, unsigned char *to, size_t bytes) {
    if (codec < 0 || codec > CODEC_ZSTD || (codec > CODEC_GZIP && codec < CODEC_ZSTD))
        return ot_parquet_refuse(s, c, "the codec", name_of(codecs, N_CODECS, codec));
    int rc = codec == CODEC_SNAPPY ? unpack_snappy(s, from, n, to, bytes)
             : codec == CODEC_GZIP ? unpack_gzip(from, n, to, bytes)
             : codec == CODEC_ZSTD ? ot_source_zstd_unpack_block(s, from, n, to, bytes)
                                   : n == bytes;
    if (codec == CODEC_NONE && rc == 1)
        memcpy(to, from, n);
    return rc == 0 ? ot_parquet_damaged(s, c, "a page does not unpack") : ot_min(rc, 0);
}

/* ---- runs and packed bits ---- */

/* Reads the header of a run. Returns false if the bytes end. */
static bool begin_run(struct parquet_bits *b) {
    uint64_t head = 0;
    unsigned shift = 0, bytes = (b->width + 7) / 8;
    do {
        if (b->at == b->end || shift > 35)
            return false;
        head |= (uint64_t)(*b->at & 127) << shift;
        shift += 7;
    } while (*b->at++ & 128);
    b->is_packed = head & 1;
    b->bit = 0;
    b->left = b->is_packed ? (head >> 1) * 8 : head >> 1;
    size_t have = (size_t)(b->end - b->at);
    if (b->left == 0)
        return false;
    if (b->is_packed) /* the last group may be cut where its values end */
        return true;
    if (have < bytes)
        return false;
    b->value = 0;
    for (unsigned i = 0; i < bytes; i++)
        b->value |= (uint32_t)*b->at++ << (8 * i);
    return true;
}

/* Returns false if there is no further value. */
static bool take_bits(struct parquet_bits *b, uint32_t *value) {
    if (b->left == 0 && !begin_run(b))
        return false;
    b->left--;
    *value = b->value;
    if (!b->is_packed)
        return true;
    *value = 0;
    for (unsigned i = 0; i < b->width; i++) {
        if (b->at == b->end)
            return false;
        *value |= (uint32_t)(*b->at >> b->bit & 1) << i;
        b->bit = (b->bit + 1) % 8;
        b->at += b->bit == 0;
    }
    return true;
}

/* ---- plain values ---- */

/* Takes a value of the type from [*at, end). Returns false if the bytes end. */
static bool take_plain(const struct parquet_node *node, const unsigned char **at, const unsigned char *end,
                       struct parquet_value *value) {
    static const size_t sizes[PARQUET_TYPES] = {[PARQUET_INT32] = 4,
                                                [PARQUET_INT64] = 8,
                                                [PARQUET_INT96] = 12,
                                                [PARQUET_FLOAT] = 4,
                                                [PARQUET_DOUBLE] = 8};
    size_t n = node->type == PARQUET_FIXED ? (size_t)node->fixed_bytes : sizes[node->type];
    if (node->type == PARQUET_BYTES) {
        if (end - *at < 4)
            return false;
        n = load_u32(*at);
        *at += 4;
    }
    if ((size_t)(end - *at) < n)
        return false;
    *value = (struct parquet_value){*at, n};
    *at += n;
    return true;
}

static int too_large(const struct ot_source *s, size_t bytes) {
    return ot_fail(
        OT_E_INPUT,
        "%s: the pages of the Parquet file are too large (%zu MB, and one of %zu MB); write the file again "
        "with smaller pages or fewer columns",
        s->path, s->parquet->page_bytes >> 20, bytes >> 20);
}

static int take_dictionary(struct ot_source *s, struct parquet_column *c, const struct parquet_header *h) {
    const unsigned char *at = c->dictionary, *end = at + c->dictionary_bytes;
    bool has_size = c->node->type != PARQUET_FIXED || c->node->fixed_bytes > 0;
    if (c->entries || (h->encoding != PARQUET_PLAIN && h->encoding != PARQUET_PLAIN_DICTIONARY) ||
        !has_size || c->node->type == PARQUET_BOOLEAN || (uint64_t)h->values > c->dictionary_bytes)
        return ot_parquet_damaged(s, c, "a dictionary");
    size_t table = (size_t)h->values * sizeof *c->entries; /* as large as a page at most, and as bounded */
    if (table > OT_SOURCE_MAX_ROW_BYTES || table > MOST_PAGE_BYTES - s->parquet->page_bytes)
        return too_large(s, table);
    s->parquet->page_bytes += table;
    c->dictionary_bytes += table;
    c->n_entries = (size_t)h->values;
    c->entries = calloc(c->n_entries + 1, sizeof *c->entries);
    if (!c->entries)
        return ot_source_no_memory(s);
    for (size_t i = 0; i < c->n_entries; i++)
        if (!take_plain(c->node, &at, end, &c->entries[i]))
            return ot_parquet_damaged(s, c, "a dictionary");
    return 0;
}

/* ---- pages ---- */

/* Finds the levels that begin at *at and have `n` bytes; n < 0: their length stands before them. */
static bool begin_levels(struct parquet_bits *b, const unsigned char **at, const unsigned char *end,
                         int64_t n, unsigned most) {
    unsigned width = 0;
    while (most >> width)
        width++;
    if (n < 0 && most == 0)
        n = 0;
    if (n < 0) {
        if (end - *at < 4)
            return false;
        n = load_u32(*at);
        *at += 4;
    }
    if (n > end - *at)
        return false;
    *b = (struct parquet_bits){.at = *at, .end = *at + n, .width = width};
    *at += n;
    return true;
}

/* Booleans are bits, or runs of them behind a length. */
static int begin_values(struct ot_source *s, struct parquet_column *c, const unsigned char *at) {
    bool is_boolean = c->node->type == PARQUET_BOOLEAN;
    c->has_dictionary = c->encoding == PARQUET_PLAIN_DICTIONARY || c->encoding == PARQUET_RLE_DICTIONARY;
    c->at = at;
    c->indexes = (struct parquet_bits){.at = at, .end = c->end, .width = 1};
    if (c->encoding == PARQUET_PLAIN) {
        c->indexes.is_packed = true;
        c->indexes.left = UINT64_MAX;
    } else if (c->encoding == PARQUET_RLE && is_boolean) {
        c->indexes.at += ot_min(c->end - at, 4);
    } else if (c->has_dictionary) {
        c->indexes.width = at < c->end ? *c->indexes.at++ : 0; /* a page of nulls may have no byte */
        if (!c->entries || c->indexes.width > 32)
            return ot_parquet_damaged(s, c, "its dictionary");
    } else {
        return ot_parquet_refuse(s, c, "the encoding", name_of(encodings, N_ENCODINGS, c->encoding));
    }
    return 0;
}

/* packed: the page as it is in the file. Levels of version 2 are never packed. */
static int begin_data(struct ot_source *s, struct parquet_column *c, const struct parquet_header *h,
                      const unsigned char *packed) {
    bool is_second = h->type == PARQUET_DATA_V2;
    int64_t repetitions = is_second ? h->repetition_bytes : -1,
            definitions = is_second ? h->definition_bytes : -1,
            levels = is_second ? repetitions + definitions : 0;
    if (h->values < 0 || h->values > c->chunk.values ||
        (is_second && (repetitions < 0 || definitions < 0 || repetitions > h->bytes ||
                       definitions > h->bytes - repetitions || levels > h->packed_bytes)))
        return ot_parquet_damaged(s, c, "the header of a page");
    int codec = is_second && !h->is_packed ? CODEC_NONE : c->chunk.codec;
    if (levels > 0)
        memcpy(c->page, packed, (size_t)levels);
    size_t packed_bytes = (size_t)(h->packed_bytes - levels), bytes = (size_t)(h->bytes - levels);
    if (bytes > 0 || packed_bytes > 0)
        OT_TRY(unpack(s, c, codec, packed + levels, packed_bytes, c->page + levels, bytes));
    const unsigned char *at = c->page;
    c->end = at + h->bytes;
    if (!begin_levels(&c->repetitions, &at, c->end, repetitions, c->node->repeated) ||
        !begin_levels(&c->definitions, &at, c->end, definitions, c->node->definition))
        return ot_parquet_damaged(s, c, "the levels of a page");
    c->chunk.values -= h->values;
    c->in_page = h->values;
    c->encoding = (int)h->encoding;
    return begin_values(s, c, at);
}

/* Makes room for a page of `bytes` in place of *page. */
static int make_room(struct ot_source *s, unsigned char **page, size_t *have, size_t bytes) {
    struct ot_parquet *p = s->parquet;
    p->page_bytes -= *have;
    free(*page);
    *have = 0;
    *page = NULL;
    if (bytes > OT_SOURCE_MAX_ROW_BYTES || bytes > MOST_PAGE_BYTES - p->page_bytes)
        return too_large(s, bytes);
    *page = malloc(bytes + 1);
    if (!*page)
        return ot_source_no_memory(s);
    *have = bytes;
    p->page_bytes += bytes;
    return 0;
}

/* Reads the next header and moves behind it. */
static int read_header(struct ot_source *s, struct parquet_column *c, struct parquet_header *h) {
    enum { FIRST_BYTES = 512, MOST_BYTES = 1 << 24 }; /* a header may have statistics, with long texts */
    struct ot_parquet *p = s->parquet;
    for (size_t wanted = FIRST_BYTES; wanted <= MOST_BYTES; wanted *= 32) {
        size_t n = (size_t)ot_min((int64_t)wanted, c->chunk.end - c->chunk.begin);
        if (!ot_try_grow(&p->packed, &p->packed_capacity, n + 1, 1))
            return ot_source_no_memory(s);
        OT_TRY(ot_parquet_read(s, p->packed, n, c->chunk.begin));
        size_t used = ot_parquet_parse_page(p->packed, n, h);
        if (used > 0) {
            c->chunk.begin += (int64_t)used;
            return 0;
        }
        if (n < wanted)
            break;
    }
    return ot_parquet_damaged(s, c, "the header of a page");
}

/* Reads the next page. */
static int read_page(struct ot_source *s, struct parquet_column *c) {
    struct ot_parquet *p = s->parquet;
    struct parquet_header h;
    OT_TRY(read_header(s, c, &h));
    if (h.bytes < 0 || h.packed_bytes < 0 || h.packed_bytes > c->chunk.end - c->chunk.begin)
        return ot_parquet_damaged(s, c, "the size of a page");
    size_t n = (size_t)h.packed_bytes;
    if (!ot_try_grow(&p->packed, &p->packed_capacity, n + 1, 1))
        return ot_source_no_memory(s);
    OT_TRY(ot_parquet_read(s, p->packed, n, c->chunk.begin));
    c->chunk.begin += h.packed_bytes;
    if (h.has_crc && ot_crc32(0, p->packed, n) != h.crc)
        return ot_parquet_damaged(s, c, "the checksum of a page is wrong");
    if (h.type == PARQUET_DICTIONARY) {
        if (h.values < 0)
            return ot_parquet_damaged(s, c, "a dictionary");
        OT_TRY(make_room(s, &c->dictionary, &c->dictionary_bytes, (size_t)h.bytes));
        OT_TRY(unpack(s, c, c->chunk.codec, p->packed, n, c->dictionary, (size_t)h.bytes));
        return take_dictionary(s, c, &h);
    }
    if (h.type != PARQUET_DATA && h.type != PARQUET_DATA_V2)
        return 0; /* an index */
    OT_TRY(make_room(s, &c->page, &c->page_bytes, (size_t)h.bytes));
    return begin_data(s, c, &h, p->packed);
}

/* ---- values ---- */

int ot_parquet_peek(struct ot_source *s, struct parquet_column *c) {
    if (c->has)
        return 1;
    while (c->in_page == 0) {
        if (c->chunk.values == 0)
            return 0;
        if (c->chunk.begin == c->chunk.end)
            return ot_parquet_damaged(s, c, "it has fewer values than the footer says");
        OT_TRY(read_page(s, c));
    }
    uint32_t repetition = 0, definition = 0;
    if ((c->node->repeated > 0 && !take_bits(&c->repetitions, &repetition)) ||
        (c->node->definition > 0 && !take_bits(&c->definitions, &definition)) ||
        repetition > c->node->repeated || definition > c->node->definition)
        return ot_parquet_damaged(s, c, "the levels of a page");
    c->in_page--;
    c->has = true;
    c->repetition = repetition;
    c->definition = definition;
    return 1;
}

int ot_parquet_take(struct ot_source *s, struct parquet_column *c, struct parquet_value *value) {
    static const unsigned char booleans[] = {0, 1};
    uint32_t index = 0;
    bool is_there, is_boolean = c->node->type == PARQUET_BOOLEAN;
    c->has = false;
    if (c->has_dictionary || is_boolean)
        is_there = take_bits(&c->indexes, &index) && index < (is_boolean ? 2 : c->n_entries);
    else
        is_there = take_plain(c->node, &c->at, c->end, value);
    if (!is_there)
        return ot_parquet_damaged(s, c, "a page has too few values");
    if (is_boolean)
        *value = (struct parquet_value){&booleans[index], 1};
    else if (c->has_dictionary)
        *value = c->entries[index];
    return 0;
}

void ot_parquet_column_begin(struct ot_parquet *p, struct parquet_column *c, struct parquet_chunk chunk) {
    p->page_bytes -= c->page_bytes + c->dictionary_bytes;
    free(c->page);
    free(c->dictionary);
    free(c->entries);
    *c = (struct parquet_column){.node = c->node, .chunk = chunk};
}
