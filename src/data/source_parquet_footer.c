/* The footer of a Parquet file and the headers of its pages: structs of Thrift's compact protocol. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/data/source_parquet_state.h"

/* ---- Thrift ---- */

enum { T_TRUE = 1, T_FALSE, T_BYTE, T_I16, T_I32, T_I64, T_DOUBLE, T_BINARY, T_LIST, T_SET, T_MAP, T_STRUCT };

struct thrift {
    const unsigned char *at, *end;
    bool is_bad; /* nothing more is read then */
};

static unsigned take_byte(struct thrift *t) {
    t->is_bad = t->is_bad || t->at == t->end;
    return t->is_bad ? 0 : *t->at++;
}

static uint64_t take_varint(struct thrift *t) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        unsigned byte = take_byte(t);
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    t->is_bad = true;
    return 0;
}

static int64_t take_zigzag(struct thrift *t) {
    uint64_t value = take_varint(t);
    return (int64_t)(value >> 1 ^ (0 - (value & 1)));
}

/* Returns false at the end of the struct. *id: of the field before; 0 at first. */
static bool next_field(struct thrift *t, int64_t *id, unsigned *type) {
    unsigned head = take_byte(t);
    *type = head & 15;
    if (t->is_bad || *type == 0)
        return false;
    *id = head >> 4 ? *id + (head >> 4) : take_zigzag(t);
    return !t->is_bad;
}

/* Returns the number of elements. Each has a byte or more. */
static uint64_t begin_list(struct thrift *t, unsigned *of) {
    unsigned head = take_byte(t);
    uint64_t n = head >> 4 < 15 ? head >> 4 : take_varint(t);
    *of = head & 15;
    t->is_bad = t->is_bad || n > (uint64_t)(t->end - t->at);
    return t->is_bad ? 0 : n;
}

static void skip_bytes(struct thrift *t, uint64_t n) {
    t->is_bad = t->is_bad || n > (uint64_t)(t->end - t->at);
    t->at += t->is_bad ? 0 : n;
}

/* Elements of lists and maps that are booleans have a byte. */
static void skip(struct thrift *t, unsigned type, int depth) {
    int64_t id = 0;
    unsigned of[2] = {0};
    uint64_t n = 0;
    t->is_bad = t->is_bad || depth > MOST_DEPTH || type > T_STRUCT;
    if (t->is_bad || type <= T_FALSE)
        return;
    if (type == T_BYTE || type == T_DOUBLE || type == T_BINARY) {
        skip_bytes(t, type == T_BYTE ? 1 : type == T_DOUBLE ? 8 : take_varint(t));
    } else if (type <= T_I64) {
        take_varint(t);
    } else if (type == T_STRUCT) {
        while (next_field(t, &id, &of[0]))
            skip(t, of[0], depth + 1);
    } else if (type == T_MAP) {
        n = take_varint(t);
        of[1] = n > 0 ? take_byte(t) : 0;
        of[0] = of[1] >> 4;
        of[1] &= 15;
        n = n <= (uint64_t)(t->end - t->at) ? 2 * n : UINT64_MAX; /* too many end by themselves */
    } else {
        n = begin_list(t, &of[0]);
        of[1] = of[0];
    }
    for (uint64_t i = 0; i < n && !t->is_bad; i++)
        skip(t, of[i % 2] <= T_FALSE ? T_BYTE : of[i % 2], depth + 1);
}

/* Reads a struct up to its next field that is no number. Numbers and booleans go to numbers[id]. Returns
 * false at the end of the struct. */
static bool next_other(struct thrift *t, int64_t *id, unsigned *type, int64_t *numbers, int64_t n) {
    while (next_field(t, id, type)) {
        bool is_boolean = *type <= T_FALSE;
        if (!is_boolean && (*type < T_I16 || *type > T_I64))
            return true;
        int64_t number = is_boolean ? *type == T_TRUE : take_zigzag(t);
        if (*id >= 0 && *id < n)
            numbers[*id] = number;
    }
    return false;
}

/* ---- the schema ---- */

/* LogicalType is a union: the only field says the type. */
static void take_logical_type(struct thrift *t, struct parquet_node *node) {
    enum { STRING = 1, LIST = 3, ENUM = 4, JSON = 12 };
    int64_t id = 0;
    unsigned of;
    while (next_field(t, &id, &of)) {
        node->is_text = node->is_text || id == STRING || id == ENUM || id == JSON;
        node->is_list = node->is_list || id == LIST;
        skip(t, of, 0);
    }
}

static char *take_name(struct thrift *t) {
    uint64_t n = take_varint(t);
    const unsigned char *name = t->at;
    skip_bytes(t, n);
    return t->is_bad || memchr(name, 0, n) ? NULL : strndup((const char *)name, n);
}

static int take_node(struct ot_source *s, struct thrift *t, struct parquet_node *node) {
    enum { TYPE = 1, FIXED_BYTES, REPETITION, NAME, CHILDREN, CONVERTED, LOGICAL = 10, N };
    enum { UTF8 = 0, LIST = 3, ENUM = 4, JSON = 19 };
    int64_t id = 0, of[N] = {[TYPE] = -1, [CONVERTED] = -1};
    unsigned type;
    while (next_other(t, &id, &type, of, N)) {
        if (id == NAME && type == T_BINARY && !node->name)
            node->name = take_name(t);
        else if (id == LOGICAL && type == T_STRUCT)
            take_logical_type(t, node);
        else
            skip(t, type, 0);
    }
    bool is_column = of[CHILDREN] == 0;
    if (t->is_bad || !node->name || of[CHILDREN] < 0 || (is_column && of[TYPE] < 0) ||
        of[TYPE] >= PARQUET_TYPES || of[FIXED_BYTES] < 0 || of[FIXED_BYTES] > INT32_MAX)
        return ot_parquet_damaged(s, NULL, "a field of the schema");
    node->children = of[CHILDREN];
    node->fixed_bytes = of[FIXED_BYTES];
    node->type = is_column ? (enum parquet_type)of[TYPE] : 0;
    node->repetition = of[REPETITION] == 1   ? PARQUET_OPTIONAL
                       : of[REPETITION] == 2 ? PARQUET_REPEATED
                                             : PARQUET_REQUIRED;
    node->is_list = node->is_list || of[CONVERTED] == LIST;
    node->is_text = node->is_text || of[CONVERTED] == UTF8 || of[CONVERTED] == ENUM || of[CONVERTED] == JSON;
    return 0;
}

static int take_schema(struct ot_source *s, struct thrift *t) {
    struct ot_parquet *p = s->parquet;
    unsigned of;
    uint64_t n = begin_list(t, &of);
    if (p->n_nodes > 0 || n < 2 || of != T_STRUCT)
        return ot_parquet_damaged(s, NULL, "the schema");
    if (n > MOST_NODES)
        return ot_fail(OT_E_INPUT, "%s: the Parquet file has more than %d fields; write fewer columns",
                       s->path, MOST_NODES);
    p->nodes = calloc(n, sizeof *p->nodes);
    if (!p->nodes)
        return ot_source_no_memory(s);
    while (p->n_nodes < n)
        OT_TRY(take_node(s, t, &p->nodes[p->n_nodes++]));
    return 0;
}

/* A list's repeated child stands for its element, but by the rules for older writers it may be the element
 * itself. */
static bool wraps_element(const struct parquet_node *list, const struct parquet_node *child) {
    size_t n = strlen(list->name);
    bool is_tuple = strncmp(child->name, list->name, n) == 0 && strcmp(child->name + n, "_tuple") == 0;
    return child->children == 1 && strcmp(child->name, "array") != 0 && !is_tuple;
}

/* Finds the levels, columns and ends of a field and those below it. Returns false if the tree is damaged. */
static bool place_node(struct ot_parquet *p, size_t i, unsigned definition, unsigned repeated, int depth) {
    struct parquet_node *node = &p->nodes[i];
    node->definition = definition + (i > 0 && node->repetition != PARQUET_REQUIRED);
    node->repeated = repeated + (i > 0 && node->repetition == PARQUET_REPEATED);
    node->leaf = p->n_columns;
    node->end = i + 1;
    if (depth > MOST_DEPTH)
        return false;
    p->n_columns += node->children == 0;
    for (int64_t child = 0; child < node->children; child++) {
        if (node->end >= p->n_nodes)
            return false;
        size_t at = node->end;
        if (!place_node(p, at, node->definition, node->repeated, depth + 1))
            return false;
        node->end = p->nodes[at].end;
    }
    const struct parquet_node *child = &p->nodes[i + 1];
    node->is_list = node->is_list && node->children == 1 && child->repetition == PARQUET_REPEATED;
    if (node->is_list)
        p->nodes[i + 1].is_wrapper = wraps_element(node, child);
    node->leaf_end = p->n_columns;
    return true;
}

static int place_nodes(struct ot_source *s) {
    struct ot_parquet *p = s->parquet;
    if (!place_node(p, 0, 0, 0, 0) || p->nodes[0].end != p->n_nodes)
        return ot_parquet_damaged(s, NULL, "the tree of the schema");
    p->columns = calloc(p->n_columns, sizeof *p->columns);
    for (size_t i = 0; p->columns && i < p->n_nodes; i++)
        if (p->nodes[i].children == 0)
            p->columns[p->nodes[i].leaf].node = &p->nodes[i];
    return p->columns ? 0 : ot_source_no_memory(s);
}

/* ---- groups of rows ---- */

static int take_column(struct ot_source *s, struct thrift *t) {
    enum { FILE_PATH = 1, METADATA = 3 };
    enum { TYPE = 1, CODEC = 4, VALUES, BYTES = 7, DATA = 9, DICTIONARY = 11, N };
    struct ot_parquet *p = s->parquet;
    int64_t id = 0, inner, of[N] = {0};
    unsigned type;
    while (next_other(t, &id, &type, of, 0)) {
        t->is_bad = t->is_bad || id == FILE_PATH; /* the values are in another file */
        if (id != METADATA || type != T_STRUCT)
            skip(t, type, 0);
        else
            for (inner = 0; next_other(t, &inner, &type, of, N);)
                skip(t, type, 0);
    }
    struct parquet_chunk chunk = {.begin = of[DATA], .values = of[VALUES], .codec = (int)of[CODEC]};
    if (of[DICTIONARY] > 0 && of[DICTIONARY] < of[DATA])
        chunk.begin = of[DICTIONARY];
    if (t->is_bad || chunk.begin < 0 || of[BYTES] < 0 || chunk.values < 0 || chunk.begin > p->bytes ||
        of[BYTES] > p->bytes - chunk.begin ||
        of[TYPE] != (int64_t)p->columns[p->n_chunks % p->n_columns].node->type)
        return ot_parquet_damaged(s, NULL, "the place of a column");
    chunk.end = chunk.begin + of[BYTES];
    if (!ot_try_grow(&p->chunks, &p->chunks_capacity, p->n_chunks + 1, sizeof *p->chunks))
        return ot_source_no_memory(s);
    p->chunks[p->n_chunks++] = chunk;
    return 0;
}

static int take_group(struct ot_source *s, struct thrift *t) {
    enum { COLUMNS = 1, ROWS = 3, N };
    struct ot_parquet *p = s->parquet;
    int64_t id = 0, number[N] = {0};
    unsigned type, of;
    while (next_other(t, &id, &type, number, N)) {
        if (id != COLUMNS || type != T_LIST) {
            skip(t, type, 0);
            continue;
        }
        uint64_t n = begin_list(t, &of);
        if (n != p->n_columns || of != T_STRUCT)
            return ot_parquet_damaged(s, NULL, "the columns of a group of rows");
        for (uint64_t i = 0; i < n; i++)
            OT_TRY(take_column(s, t));
    }
    if (t->is_bad || number[ROWS] < 0 || number[ROWS] > INT64_MAX / 2 - p->rows ||
        p->n_chunks != (p->n_groups + 1) * p->n_columns)
        return ot_parquet_damaged(s, NULL, "a group of rows");
    if (!ot_try_grow(&p->group_rows, &p->groups_capacity, p->n_groups + 1, sizeof *p->group_rows))
        return ot_source_no_memory(s);
    p->group_rows[p->n_groups++] = number[ROWS];
    p->rows += number[ROWS];
    return 0;
}

static int parse(struct ot_source *s, struct thrift *t) {
    enum { SCHEMA = 2, GROUPS = 4 };
    struct ot_parquet *p = s->parquet;
    int64_t id = 0;
    unsigned type, of;
    while (next_other(t, &id, &type, NULL, 0)) {
        if (id == SCHEMA && type == T_LIST) {
            OT_TRY(take_schema(s, t));
            OT_TRY(place_nodes(s));
        } else if (id == GROUPS && type == T_LIST) {
            uint64_t n = begin_list(t, &of);
            if (p->n_columns == 0 || of != T_STRUCT)
                return ot_parquet_damaged(s, NULL, "the groups of rows");
            for (uint64_t i = 0; i < n; i++)
                OT_TRY(take_group(s, t));
        } else {
            skip(t, type, 0);
        }
    }
    return t->is_bad || p->n_columns == 0 ? ot_parquet_damaged(s, NULL, "it ends too early") : 0;
}

int ot_parquet_read_footer(struct ot_source *s) {
    enum { TAIL_BYTES = 8, MAGIC_BYTES = 4 };
    unsigned char tail[TAIL_BYTES];
    if (s->total < TAIL_BYTES + MAGIC_BYTES)
        return ot_parquet_damaged(s, NULL, "it ends too early");
    OT_TRY(ot_parquet_read(s, tail, sizeof tail, s->total - TAIL_BYTES));
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return memcmp(tail + 4, "PARE", 4) == 0
                   ? ot_fail(OT_E_INPUT, "%s: the Parquet file is encrypted; write it without encryption",
                             s->path)
                   : ot_parquet_damaged(s, NULL, "the file does not end with it, so it is truncated");
    size_t n = tail[0] | (size_t)tail[1] << 8 | (size_t)tail[2] << 16 | (size_t)tail[3] << 24;
    if (n > MOST_FOOTER_BYTES || (int64_t)n > s->total - TAIL_BYTES - MAGIC_BYTES)
        return ot_parquet_damaged(s, NULL, "its length");
    s->parquet->bytes = s->total - TAIL_BYTES - (int64_t)n;
    unsigned char *footer = malloc(n + 1);
    if (!footer)
        return ot_source_no_memory(s);
    int rc = ot_parquet_read(s, footer, n, s->parquet->bytes);
    struct thrift t = {.at = footer, .end = footer + n};
    if (rc == 0)
        rc = parse(s, &t);
    free(footer);
    return rc;
}

/* ---- headers of pages ---- */

size_t ot_parquet_parse_page(const unsigned char *bytes, size_t n, struct parquet_header *h) {
    enum { TYPE = 1, BYTES, PACKED_BYTES, CRC, OF_DATA, OF_DICTIONARY = 7, OF_DATA_V2, N };
    struct thrift t = {.at = bytes, .end = bytes + n};
    int64_t id = 0, inner, crc = INT64_MIN, of[N] = {-1, -1, -1, -1, [CRC] = INT64_MIN};
    int64_t v[8] = {[1] = -1, [7] = 1}; /* of the inner struct */
    unsigned type;
    while (next_other(&t, &id, &type, of, N))
        if (type == T_STRUCT && (id == OF_DATA || id == OF_DICTIONARY || id == OF_DATA_V2))
            for (inner = 0; next_other(&t, &inner, &type, v, 8);)
                skip(&t, type, 0);
        else
            skip(&t, type, 0);
    crc = of[CRC];
    *h = (struct parquet_header){.type = of[TYPE],
                                 .bytes = of[BYTES],
                                 .packed_bytes = of[PACKED_BYTES],
                                 .has_crc = crc != INT64_MIN,
                                 .crc = (uint32_t)crc,
                                 .values = v[1],
                                 .encoding = of[TYPE] == PARQUET_DATA_V2 ? v[4] : v[2],
                                 .definition_bytes = v[5],
                                 .repetition_bytes = v[6],
                                 .is_packed = v[7] != 0};
    return t.is_bad ? 0 : (size_t)(t.at - bytes);
}
