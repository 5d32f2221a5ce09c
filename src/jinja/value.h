/* The values of a template, and the memory in which one rendering makes them.
 *
 * A value is small and copied freely. What it points to lives in the arena of the rendering, or in the arena
 * of the template for constants, and nothing is freed before the end. Strings never change; lists and dicts
 * do not change after they are made. A generator is a list that can be read once, as in Python: it is always
 * true, and the items that were read are gone.
 *
 * Threads: a heap belongs to one thread.
 */
#ifndef OT_JINJA_VALUE_H
#define OT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_arena;
struct ot_json;

enum ot_jinja_kind {
    OT_JINJA_ABSENT, /* no value: an argument that was not given */
    OT_JINJA_UNDEFINED,
    OT_JINJA_NONE,
    OT_JINJA_BOOL,
    OT_JINJA_INT,
    OT_JINJA_REAL,
    OT_JINJA_STRING,
    OT_JINJA_LIST, /* from here to GENERATOR: as.list */
    OT_JINJA_TUPLE,
    OT_JINJA_RANGE,
    OT_JINJA_VIEW, /* of a dict: keys(), values(), items() */
    OT_JINJA_GENERATOR,
    OT_JINJA_DICT,      /* as.dict */
    OT_JINJA_NAMESPACE, /* as.dict */
    OT_JINJA_LOOP,
    OT_JINJA_MACRO,
    OT_JINJA_FUNCTION,
    OT_JINJA_METHOD
};

struct ot_jinja_string {
    const char *text; /* UTF-8; not always NUL-terminated */
    size_t bytes, chars;
};

struct ot_jinja_value {
    enum ot_jinja_kind kind;
    bool safe; /* a string that the filters `e` and `safe` made: + escapes what is added to it */
    union {
        bool flag;
        int64_t integer;
        double real;
        const struct ot_jinja_string *string; /* UNDEFINED: the undefined name, for errors; NULL: unknown */
        struct ot_jinja_list *list;
        struct ot_jinja_dict *dict;
        struct ot_jinja_loop *loop;
        struct ot_jinja_macro *macro;
        const struct ot_jinja_function *function;
        const struct ot_jinja_method *method; /* bound to its object */
    } as;
};

struct ot_jinja_list {
    struct ot_jinja_value *items;
    size_t n, capacity;
    size_t read;       /* GENERATOR: items that were read */
    const char *label; /* VIEW: the name of its type in Python */
};

struct ot_jinja_pair {
    struct ot_jinja_value key, value;
};

struct ot_jinja_dict {
    struct ot_jinja_pair *pairs; /* in the order of insertion */
    size_t n, capacity;
};

/* Memory and bounds of one rendering, or of parsing a template. */
struct ot_jinja_heap {
    struct ot_arena *arena;
    const char *name; /* of the template */
    int line;         /* of the construct at work */
    size_t bytes, most_bytes;
    size_t steps, most_steps;
    int depth, error;
    int year, month, day; /* what strftime_now writes */
};

/* Fails with the template's name and the present line in front. Returns -OT_E_INPUT. */
int ot_jinja_fail(const struct ot_jinja_heap *heap, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* The same for a feature of jinja2 that this engine lacks: "... is not supported in chat templates". */
int ot_jinja_unsupported(const struct ot_jinja_heap *heap, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Counts work. Errors: OT_E_INPUT (too many steps). */
int ot_jinja_step(struct ot_jinja_heap *heap, size_t steps);
/* Zeroed memory. NULL: heap->error is the error. */
void *ot_jinja_alloc(struct ot_jinja_heap *heap, size_t count, size_t size);
/* Makes room behind the n elements of an array of the heap, which is copied if it is full: to twice as many
 * elements, or to `least` if it is empty. array: the address of the pointer to the elements. Errors: as
 * ot_jinja_alloc. */
int ot_jinja_grow(struct ot_jinja_heap *heap, void *array, size_t n, size_t *capacity, size_t each,
                  size_t least);

static inline struct ot_jinja_value ot_jinja_bool(bool flag) {
    return (struct ot_jinja_value){.kind = OT_JINJA_BOOL, .as.flag = flag};
}
static inline struct ot_jinja_value ot_jinja_int(int64_t integer) {
    return (struct ot_jinja_value){.kind = OT_JINJA_INT, .as.integer = integer};
}
static inline struct ot_jinja_value ot_jinja_real(double real) {
    return (struct ot_jinja_value){.kind = OT_JINJA_REAL, .as.real = real};
}
static inline struct ot_jinja_value ot_jinja_none(void) {
    return (struct ot_jinja_value){.kind = OT_JINJA_NONE};
}
static inline struct ot_jinja_value ot_jinja_undefined(const struct ot_jinja_string *name) {
    return (struct ot_jinja_value){.kind = OT_JINJA_UNDEFINED, .as.string = name};
}
static inline struct ot_jinja_value ot_jinja_of_list(enum ot_jinja_kind kind, struct ot_jinja_list *list) {
    return (struct ot_jinja_value){.kind = kind, .as.list = list};
}
static inline bool ot_jinja_is_list(const struct ot_jinja_value *v) {
    return v->kind >= OT_JINJA_LIST && v->kind <= OT_JINJA_GENERATOR;
}
/* True for the kinds that Python counts as integers: True and False are. */
static inline bool ot_jinja_is_int(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_INT || v->kind == OT_JINJA_BOOL;
}
static inline bool ot_jinja_is_number(const struct ot_jinja_value *v) {
    return ot_jinja_is_int(v) || v->kind == OT_JINJA_REAL;
}
static inline int64_t ot_jinja_to_int(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_BOOL ? v->as.flag : v->as.integer;
}
static inline double ot_jinja_to_real(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_REAL ? v->as.real : (double)ot_jinja_to_int(v);
}

const char *ot_jinja_kind_name(const struct ot_jinja_value *v); /* "a string", "a list", ... */
size_t ot_jinja_count_chars(const char *text, size_t bytes);
bool ot_jinja_is(const struct ot_jinja_string *string, const char *text); /* the same characters */
/* words: separated by one space. */
bool ot_jinja_is_among(const struct ot_jinja_string *string, const char *words);

/* Makes a string value. copy: false if the text outlives the heap. Errors: as ot_jinja_alloc. */
int ot_jinja_string(struct ot_jinja_heap *heap, const char *text, size_t bytes, bool copy,
                    struct ot_jinja_value *out);
int ot_jinja_text(struct ot_jinja_heap *heap, const char *text, struct ot_jinja_value *out);
/* True if the value is this string. */
bool ot_jinja_is_text(const struct ot_jinja_value *v, const char *text);

int ot_jinja_new_list(struct ot_jinja_heap *heap, size_t capacity, struct ot_jinja_list **out);
int ot_jinja_add(struct ot_jinja_heap *heap, struct ot_jinja_list *list, struct ot_jinja_value item);
int ot_jinja_new_tuple(struct ot_jinja_heap *heap, struct ot_jinja_value a, struct ot_jinja_value b,
                       struct ot_jinja_value *out);
int ot_jinja_new_dict(struct ot_jinja_heap *heap, struct ot_jinja_dict **out);
/* Sets a key, in the place of an equal key if there is one. Errors: OT_E_INPUT (not hashable). */
int ot_jinja_put(struct ot_jinja_heap *heap, struct ot_jinja_dict *dict, struct ot_jinja_value key,
                 struct ot_jinja_value value);
/* The value of a key; NULL: there is no such key. */
struct ot_jinja_value *ot_jinja_find(struct ot_jinja_heap *heap, const struct ot_jinja_dict *dict,
                                     const struct ot_jinja_value *key);
struct ot_jinja_value *ot_jinja_find_text(const struct ot_jinja_dict *dict, const char *text, size_t bytes);

bool ot_jinja_truth(const struct ot_jinja_value *v);
/* Python's ==. Nested deeper than a bound, values are unequal. */
bool ot_jinja_equal(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                    const struct ot_jinja_value *b);

/* Converts JSON. most: limits the items of an array. */
int ot_jinja_from_json(struct ot_jinja_heap *heap, const struct ot_json *json, size_t most,
                       struct ot_jinja_value *out);

/* Reads the items of a value, as `for` does. */
struct ot_jinja_reader {
    struct ot_jinja_value source;
    size_t at;
};
/* Errors: OT_E_INPUT (the value is not iterable). */
int ot_jinja_read_begin(const struct ot_jinja_heap *heap, const struct ot_jinja_value *source,
                        struct ot_jinja_reader *reader);
/* Returns 1 and an item, or 0 at the end. */
int ot_jinja_read(struct ot_jinja_heap *heap, struct ot_jinja_reader *reader, struct ot_jinja_value *item);
size_t ot_jinja_left(const struct ot_jinja_reader *reader); /* number of items that are left */
/* All items of a value in a new list. */
int ot_jinja_collect(struct ot_jinja_heap *heap, const struct ot_jinja_value *source,
                     struct ot_jinja_list **out);

#endif
