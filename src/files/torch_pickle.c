#include "src/files/torch_pickle.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

/* A tensor takes about 30 instructions, so this is enough for 100000 tensors. The values of so many
 * instructions take at most a few hundred MiB. */
enum { MAX_INSTRUCTIONS = 1 << 22 };

/* The instructions of pickle, as Python's pickletools names them. */
enum op {
    PROTO = 0x80,
    STOP = '.',
    MARK = '(',
    NONE = 'N',
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    BININT = 'J',
    BININT1 = 'K',
    BININT2 = 'M',
    LONG1 = 0x8a,
    BINFLOAT = 'G',
    BINUNICODE = 'X',
    SHORT_BINSTRING = 'U',
    EMPTY_TUPLE = ')',
    TUPLE = 't',
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    EMPTY_LIST = ']',
    APPEND = 'a',
    APPENDS = 'e',
    EMPTY_DICT = '}',
    SETITEM = 's',
    SETITEMS = 'u',
    BINPUT = 'q',
    LONG_BINPUT = 'r',
    BINGET = 'h',
    LONG_BINGET = 'j',
    GLOBAL = 'c',
    REDUCE = 'R',
    BUILD = 'b',
    BINPERSID = 'Q',
};

/* The others, which are refused. */
static const struct {
    unsigned char op;
    const char *name;
} refused_ops[] = {
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'F', "FLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {0x8b, "LONG4"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'V', "UNICODE"},
    {'d', "DICT"},
    {'g', "GET"},
    {'i', "INST"},
    {'l', "LIST"},
    {'o', "OBJ"},
    {'p', "PUT"},
    {'B', "BINBYTES"},
    {'C', "SHORT_BINBYTES"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x8c, "SHORT_BINUNICODE"},
    {0x8d, "BINUNICODE8"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x93, "STACK_GLOBAL"},
    {0x94, "MEMOIZE"},
    {0x95, "FRAME"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

enum function { REBUILD_TENSOR, REBUILD_PARAMETER, ORDERED_DICT };

/* All functions and classes that a pickle may name: "MODULE NAME". */
static const struct {
    const char *name;
    const char *dtype; /* of a class of storages; NULL: `function` */
    enum function function;
} globals[] = {
    {"torch._utils _rebuild_tensor_v2", NULL, REBUILD_TENSOR},
    {"torch._utils _rebuild_parameter", NULL, REBUILD_PARAMETER},
    {"collections OrderedDict", NULL, ORDERED_DICT},
    {"torch FloatStorage", "F32", 0},
    {"torch HalfStorage", "F16", 0},
    {"torch BFloat16Storage", "BF16", 0},
    {"torch DoubleStorage", "F64", 0},
    {"torch LongStorage", "I64", 0},
    {"torch IntStorage", "I32", 0},
    {"torch ShortStorage", "I16", 0},
    {"torch CharStorage", "I8", 0},
    {"torch ByteStorage", "U8", 0},
    {"torch BoolStorage", "BOOL", 0},
    {"torch ComplexFloatStorage", "C64", 0},
};

struct reader {
    const char *path;
    const unsigned char *data;
    size_t bytes, at;
    size_t op_at; /* where the present instruction begins */
    struct ot_arena *arena;
    struct ot_pickle_value *stack, *memo;
    size_t depth, stack_room, n_memo, memo_room;
};

const char *ot_pickle_kind_name(enum ot_pickle_kind kind) {
    static const char *const names[] = {"None",      "a bool",   "an integer", "a float", "a text",
                                        "a tuple",   "a list",   "a dict",     "a class", "a function",
                                        "a storage", "a tensor", "a mark"};
    return names[kind];
}

static int fail(const struct reader *r, const char *what) {
    return ot_fail(OT_E_INPUT, "%s: data.pkl, byte %zu: %s; the file is damaged, get it again", r->path,
                   r->op_at, what);
}

/* ---- bytes, stack and containers ---- */

/* The next bytes; NULL after an error. */
static const unsigned char *take_bytes(struct reader *r, size_t bytes) {
    const unsigned char *data = r->data + r->at;
    if (bytes > r->bytes - r->at) {
        (void)fail(r, "an instruction goes past the end");
        return NULL;
    }
    r->at += bytes;
    return data;
}

/* A little-endian number of 1 to 8 bytes. */
static int take_number(struct reader *r, size_t bytes, bool is_signed, int64_t *number) {
    const unsigned char *raw = take_bytes(r, bytes);
    uint64_t value = 0;
    if (!raw)
        return -OT_E_INPUT;
    if (is_signed && bytes > 0 && raw[bytes - 1] & 0x80)
        value = UINT64_MAX;
    for (size_t i = bytes; i > 0; i--)
        value = value << 8 | raw[i - 1];
    *number = (int64_t)value;
    return 0;
}

static int push(struct reader *r, struct ot_pickle_value value) {
    OT_TRY(ot_grow(&r->stack, &r->stack_room, r->depth + 1, sizeof *r->stack, "values of a pickle"));
    r->stack[r->depth++] = value;
    return 0;
}

static int push_int(struct reader *r, enum ot_pickle_kind kind, int64_t number) {
    return push(r, (struct ot_pickle_value){.kind = kind, .number = number});
}

/* Points to the top n values, none of which is a mark; NULL after an error. */
static struct ot_pickle_value *top(struct reader *r, size_t n) {
    for (size_t i = 1; i <= n; i++)
        if (i > r->depth || r->stack[r->depth - i].kind == OT_PICKLE_MARK) {
            (void)fail(r, "an instruction has no value to work on");
            return NULL;
        }
    return r->stack + r->depth - n;
}

/* Removes the mark; *first: the values that were above it, which stay until the next push. */
static int pop_mark(struct reader *r, struct ot_pickle_value **first, size_t *n) {
    size_t at = r->depth;
    while (at > 0 && r->stack[at - 1].kind != OT_PICKLE_MARK)
        at--;
    if (at == 0)
        return fail(r, "an instruction has no mark");
    *first = r->stack + at;
    *n = r->depth - at;
    r->depth = at - 1;
    return 0;
}

static int extend(struct reader *r, struct ot_pickle_items *items, const struct ot_pickle_value *values,
                  size_t n) {
    if (n > items->room - items->n) {
        size_t room = items->n + ot_max(n, items->n);
        struct ot_pickle_value *at = ot_arena_alloc(r->arena, room, sizeof *at);
        if (!at)
            return -OT_E_BUDGET;
        if (items->n > 0)
            memcpy(at, items->at, items->n * sizeof *at);
        items->at = at;
        items->room = room;
    }
    if (n > 0)
        memcpy(items->at + items->n, values, n * sizeof *values);
    items->n += n;
    return 0;
}

/* Pushes a container of these values, which may be the top of the stack or above it. */
static int push_items(struct reader *r, enum ot_pickle_kind kind, const struct ot_pickle_value *values,
                      size_t n) {
    struct ot_pickle_items *items = ot_arena_alloc(r->arena, 1, sizeof *items);
    if (!items)
        return -OT_E_BUDGET;
    OT_TRY(extend(r, items, values, n));
    return push(r, (struct ot_pickle_value){.kind = kind, .items = items});
}

/* Adds values to the container on top of the stack. */
static int add_to(struct reader *r, enum ot_pickle_kind kind, const struct ot_pickle_value *values,
                  size_t n) {
    const struct ot_pickle_value *to = top(r, 1);
    if (!to)
        return -OT_E_INPUT;
    if (to->kind != kind)
        return fail(r, "an instruction adds values to something that is no list or dict");
    if (kind == OT_PICKLE_DICT && n % 2 != 0)
        return fail(r, "a key of a dict has no value");
    return extend(r, to->items, values, n);
}

static int add_marked(struct reader *r, enum ot_pickle_kind kind) {
    struct ot_pickle_value *values = NULL;
    size_t n = 0;
    OT_TRY(pop_mark(r, &values, &n));
    return add_to(r, kind, values, n);
}

static int add_top(struct reader *r, enum ot_pickle_kind kind, size_t n) {
    const struct ot_pickle_value *values = top(r, n);
    if (!values)
        return -OT_E_INPUT;
    r->depth -= n;
    return add_to(r, kind, values, n);
}

static int push_tuple(struct reader *r, size_t n) {
    const struct ot_pickle_value *values = top(r, n);
    if (!values)
        return -OT_E_INPUT;
    r->depth -= n;
    return push_items(r, OT_PICKLE_TUPLE, values, n);
}

static int push_marked_tuple(struct reader *r) {
    struct ot_pickle_value *values = NULL;
    size_t n = 0;
    OT_TRY(pop_mark(r, &values, &n));
    return push_items(r, OT_PICKLE_TUPLE, values, n);
}

static int push_text(struct reader *r, size_t length_bytes) {
    int64_t bytes = 0;
    OT_TRY(take_number(r, length_bytes, false, &bytes));
    const char *text = (const char *)take_bytes(r, (size_t)bytes);
    if (!text)
        return -OT_E_INPUT;
    return push(r, (struct ot_pickle_value){.kind = OT_PICKLE_TEXT, .text = text, .bytes = (size_t)bytes});
}

/* ---- the memo ---- */

static int put(struct reader *r, size_t index_bytes) {
    const struct ot_pickle_value *value = top(r, 1);
    int64_t index = 0;
    if (!value)
        return -OT_E_INPUT;
    OT_TRY(take_number(r, index_bytes, false, &index));
    if (index >= MAX_INSTRUCTIONS)
        return fail(r, "the memo has too many values");
    size_t n = (size_t)index + 1;
    OT_TRY(ot_grow(&r->memo, &r->memo_room, n, sizeof *r->memo, "remembered values of a pickle"));
    for (; r->n_memo < n; r->n_memo++)
        r->memo[r->n_memo].kind = OT_PICKLE_MARK; /* not put yet */
    r->memo[index] = *value;
    return 0;
}

static int get(struct reader *r, size_t index_bytes) {
    int64_t index = 0;
    OT_TRY(take_number(r, index_bytes, false, &index));
    if ((size_t)index >= r->n_memo || r->memo[index].kind == OT_PICKLE_MARK)
        return fail(r, "an instruction takes a value that was not remembered");
    return push(r, r->memo[index]);
}

/* ---- functions and classes ---- */

/* Takes a line and its end. */
static const char *take_line(struct reader *r, size_t *bytes) {
    const char *line = (const char *)r->data + r->at, *end = memchr(line, '\n', r->bytes - r->at);
    if (!end) {
        (void)fail(r, "a name has no end");
        return NULL;
    }
    *bytes = (size_t)(end - line);
    r->at += *bytes + 1;
    return line;
}

static int push_global(struct reader *r) {
    size_t module_bytes = 0, name_bytes = 0;
    const char *module = take_line(r, &module_bytes), *name = module ? take_line(r, &name_bytes) : NULL;
    if (!name)
        return -OT_E_INPUT;
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        const char *known = globals[i].name;
        if (strlen(known) != module_bytes + 1 + name_bytes || memcmp(known, module, module_bytes) != 0 ||
            known[module_bytes] != ' ' || memcmp(known + module_bytes + 1, name, name_bytes) != 0)
            continue;
        if (!globals[i].dtype)
            return push_int(r, OT_PICKLE_FUNCTION, globals[i].function);
        return push(r, (struct ot_pickle_value){.kind = OT_PICKLE_STORAGE_CLASS,
                                                .text = globals[i].dtype,
                                                .bytes = strlen(globals[i].dtype)});
    }
    return ot_fail(
        OT_E_INPUT,
        "%s: data.pkl, byte %zu: names %.*s.%.*s, which a file of weights does not need, so the "
        "file is refused and nothing in it is run; if you trust the file, load it with PyTorch and "
        "save only the dict of its tensors",
        r->path, r->op_at, (int)ot_min(module_bytes, (size_t)100), module,
        (int)ot_min(name_bytes, (size_t)100), name);
}

/* Replaces a function and its arguments by the value that the call would give. */
static int reduce(struct reader *r) {
    struct ot_pickle_value *call = top(r, 2);
    if (!call)
        return -OT_E_INPUT;
    if (call[0].kind != OT_PICKLE_FUNCTION || call[1].kind != OT_PICKLE_TUPLE)
        return fail(r, "calls something that is no function, or without a tuple of arguments");
    struct ot_pickle_items *args = call[1].items;
    r->depth -= 2;
    switch ((enum function)call[0].number) {
    case REBUILD_TENSOR:
        return push(r, (struct ot_pickle_value){.kind = OT_PICKLE_TENSOR, .items = args});
    case REBUILD_PARAMETER:
        if (args->n != 3 || args->at[0].kind != OT_PICKLE_TENSOR)
            return fail(r, "a parameter is not made from a tensor and two more arguments");
        return push(r, args->at[0]);
    case ORDERED_DICT:
        if (args->n != 0)
            return fail(r, "an OrderedDict is made with arguments");
        return push_items(r, OT_PICKLE_DICT, NULL, 0);
    }
    return fail(r, "calls an unknown function");
}

/* An OrderedDict has attributes: PyTorch keeps versions of modules there, which no load needs. */
static int build(struct reader *r) {
    const struct ot_pickle_value *pair = top(r, 2);
    if (!pair)
        return -OT_E_INPUT;
    if (pair[0].kind != OT_PICKLE_DICT || pair[1].kind != OT_PICKLE_DICT)
        return fail(r, "sets the attributes of something that is no OrderedDict");
    r->depth--;
    return 0;
}

static int persistent(struct reader *r) {
    struct ot_pickle_value *id = top(r, 1);
    if (!id)
        return -OT_E_INPUT;
    if (id->kind != OT_PICKLE_TUPLE)
        return fail(r, "a persistent id is no tuple");
    id->kind = OT_PICKLE_STORAGE;
    return 0;
}

/* ---- instructions ---- */

static int refuse_op(const struct reader *r, unsigned char op) {
    for (size_t i = 0; i < sizeof refused_ops / sizeof *refused_ops; i++)
        if (refused_ops[i].op == op)
            return ot_fail(OT_E_INPUT,
                           "%s: data.pkl, byte %zu: the instruction %s is not one of those that a file of "
                           "weights needs, so the file is refused and nothing in it is run; if you trust the "
                           "file, load it with PyTorch and save the dict of its tensors with torch.save",
                           r->path, r->op_at, refused_ops[i].name);
    return ot_fail(OT_E_INPUT,
                   "%s: data.pkl, byte %zu: 0x%02x is no instruction of a pickle; get the file again",
                   r->path, r->op_at, op);
}

static int run_constant(struct reader *r, unsigned char op) {
    int64_t number = 0;
    switch (op) {
    case NONE:
        return push_int(r, OT_PICKLE_NONE, 0);
    case NEWTRUE:
    case NEWFALSE:
        return push_int(r, OT_PICKLE_BOOL, op == NEWTRUE);
    case BINFLOAT: /* no tensor needs its value */
        return take_bytes(r, 8) ? push_int(r, OT_PICKLE_FLOAT, 0) : -OT_E_INPUT;
    case BININT:
    case BININT1:
    case BININT2:
        OT_TRY(take_number(r, op == BININT ? 4 : op == BININT2 ? 2 : 1, op == BININT, &number));
        return push_int(r, OT_PICKLE_INT, number);
    case LONG1:
        OT_TRY(take_number(r, 1, false, &number));
        if (number > 8)
            return fail(r, "a number does not fit in 64 bits");
        OT_TRY(take_number(r, (size_t)number, true, &number));
        return push_int(r, OT_PICKLE_INT, number);
    case BINUNICODE:
        return push_text(r, 4);
    case SHORT_BINSTRING:
        return push_text(r, 1);
    default:
        return refuse_op(r, op);
    }
}

static int run(struct reader *r, unsigned char op) {
    switch (op) {
    case MARK:
        return push_int(r, OT_PICKLE_MARK, 0);
    case EMPTY_TUPLE:
        return push_items(r, OT_PICKLE_TUPLE, NULL, 0);
    case TUPLE1:
    case TUPLE2:
    case TUPLE3:
        return push_tuple(r, (size_t)(op - TUPLE1) + 1);
    case TUPLE:
        return push_marked_tuple(r);
    case EMPTY_LIST:
        return push_items(r, OT_PICKLE_LIST, NULL, 0);
    case EMPTY_DICT:
        return push_items(r, OT_PICKLE_DICT, NULL, 0);
    case APPEND:
        return add_top(r, OT_PICKLE_LIST, 1);
    case APPENDS:
        return add_marked(r, OT_PICKLE_LIST);
    case SETITEM:
        return add_top(r, OT_PICKLE_DICT, 2);
    case SETITEMS:
        return add_marked(r, OT_PICKLE_DICT);
    case BINPUT:
    case LONG_BINPUT:
        return put(r, op == BINPUT ? 1 : 4);
    case BINGET:
    case LONG_BINGET:
        return get(r, op == BINGET ? 1 : 4);
    case GLOBAL:
        return push_global(r);
    case REDUCE:
        return reduce(r);
    case BUILD:
        return build(r);
    case BINPERSID:
        return persistent(r);
    default:
        return run_constant(r, op);
    }
}

static int run_all(struct reader *r) {
    if (r->bytes < 2 || r->data[0] != PROTO || r->data[1] != 2)
        return ot_fail(OT_E_INPUT,
                       "%s: data.pkl is not a pickle of protocol 2, which torch.save writes unless told "
                       "otherwise; load the file with PyTorch and save it again",
                       r->path);
    r->at = 2;
    for (int n = 0; n < MAX_INSTRUCTIONS; n++) {
        r->op_at = r->at;
        const unsigned char *op = take_bytes(r, 1);
        if (!op)
            return -OT_E_INPUT;
        if (*op == STOP)
            return top(r, 1) ? 0 : -OT_E_INPUT;
        OT_TRY(run(r, *op));
    }
    return ot_fail(OT_E_INPUT, "%s: data.pkl has more than %d instructions, more than any model needs",
                   r->path, MAX_INSTRUCTIONS);
}

int ot_pickle_read(const char *path, const void *data, size_t bytes, struct ot_arena *arena,
                   struct ot_pickle_value *root) {
    struct reader r = {.path = path, .data = data, .bytes = bytes, .arena = arena};
    int rc = run_all(&r);
    if (rc == 0)
        *root = r.stack[r.depth - 1];
    free(r.stack);
    free(r.memo);
    return rc;
}
