/* JSON: a parser, getters that make the error sentence ("FILE: key 'lr' is missing"), and a writer.
 *
 * Parsing is strict (RFC 8259) and bounded (depth 64; the caller limits the bytes). An error names the byte
 * where it is. Strings are valid UTF-8, with lone surrogate escapes replaced by U+FFFD. A string may contain
 * NUL, so it has a length; a key may not. Integers outside int64_t become reals. If a key is repeated, its
 * last value counts. A byte order mark at the start is ignored. Parsing makes one tree per document;
 * ot_json_free frees it. Getters return borrowed pointers into the tree. Several threads may read one tree.
 */
#ifndef OT_BASE_JSON_H
#define OT_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/text.h"

struct ot_json;
struct ot_arena;

enum ot_json_type {
    OT_JSON_NULL,
    OT_JSON_BOOL,
    OT_JSON_INT,
    OT_JSON_REAL,
    OT_JSON_STRING,
    OT_JSON_ARRAY,
    OT_JSON_OBJECT
};

/* where: the name of the document in errors (a path, or "FILE:LINE"). Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_json_parse(const char *text, size_t bytes, const char *where, struct ot_json **out);
/* As ot_json_parse, for a row as Python writes it: NaN, Infinity and -Infinity are reals, and a string with
 * half of a surrogate pair is marked (ot_json_is_torn). In a key such a half is an error. */
int ot_json_parse_row(const char *text, size_t bytes, const char *where, struct ot_json **out);
/* The memory in which one row after the other is parsed. Set to zero before the first use. One thread at a
 * time. */
struct ot_json_reader {
    struct ot_arena *arena;
    struct ot_json_member *open; /* of the containers that are not closed yet */
    size_t open_capacity;
};
/* As ot_json_parse_row; *out belongs to the reader, and is valid until its next row. */
int ot_json_read_row(struct ot_json_reader *reader, const char *text, size_t bytes, const char *where,
                     struct ot_json **out);
void ot_json_reader_free(struct ot_json_reader *reader);
/* True if the value is a string in which U+FFFD replaces half of a surrogate pair, in a row. */
bool ot_json_is_torn(const struct ot_json *value);
/* Errors: OT_E_IO (cannot read), OT_E_INPUT (not JSON, or more than max_bytes), OT_E_BUDGET. */
int ot_json_read_file(const char *path, size_t max_bytes, struct ot_json **out);
void ot_json_free(struct ot_json *root);

enum ot_json_type ot_json_type(const struct ot_json *value); /* NULL counts as OT_JSON_NULL */
const char *ot_json_type_name(enum ot_json_type type);       /* "an object", "a string", ... for sentences */

/* Plain access. NULL: missing, null, or of another type. */
struct ot_json *ot_json_get(const struct ot_json *object, const char *key);
/* True if the object has the key, also if its value is null. */
bool ot_json_has(const struct ot_json *object, const char *key);
size_t ot_json_length(const struct ot_json *array); /* 0 if not an array */
struct ot_json *ot_json_at(const struct ot_json *array, size_t index);
/* NULL if not a string; bytes may be NULL. */
const char *ot_json_string(const struct ot_json *value, size_t *bytes);
bool ot_json_bool(const struct ot_json *value, bool fallback);
int64_t ot_json_int(const struct ot_json *value, int64_t fallback);
double ot_json_real(const struct ot_json *value, double fallback); /* ints count */

/* Renames keys of an object, all at once, so two members may exchange their keys. A member that already has a
 * new key is removed; names that are missing are ignored. The new keys must outlive the object. No other
 * thread may read the tree meanwhile. At most 64 names. */
struct ot_json_name {
    const char *from, *to;
};
void ot_json_rename(struct ot_json *object, const struct ot_json_name *names, size_t n);

/* True if both values are the same: members may have another order. */
bool ot_json_equal(const struct ot_json *a, const struct ot_json *b);
/* Shortens an array to its items, or a string to its bytes, from `first` on, at most n of them. */
void ot_json_keep(struct ot_json *value, size_t first, size_t n);

/* Iterates over the members of an object in file order. False after the last one. Start with *cursor = NULL.
 */
bool ot_json_next(const struct ot_json *object, void **cursor, const char **key, struct ot_json **value);

/* Typed access with an error sentence; `where` names the file. Errors: OT_E_INPUT: the key is missing and
 * `required`, the type is wrong, or the value is outside [min, max]. If a key that is not required is
 * missing, *out keeps its value. JSON null counts as missing. */
int ot_json_need_int(const struct ot_json *object, const char *where, const char *key, bool required,
                     int64_t min, int64_t max, int64_t *out);
int ot_json_need_real(const struct ot_json *object, const char *where, const char *key, bool required,
                      double min, double max, double *out);
int ot_json_need_bool(const struct ot_json *object, const char *where, const char *key, bool required,
                      bool *out);
int ot_json_need_string(const struct ot_json *object, const char *where, const char *key, bool required,
                        const char **out);

/* Writer: appends to a growing text; used for log.jsonl, --json, index and config files. If an allocation
 * fails, ot_json_writer_take reports it. Keys and strings are escaped. Numbers that are not finite become
 * null. */
struct ot_json_writer {
    struct ot_string_builder out;
    bool comma;
    int indent; /* < 0: one line; else one value per line, 2 spaces per level (set before the first call) */
    int depth;
};
/* key: NULL inside arrays and at the root. */
void ot_json_begin_object(struct ot_json_writer *w, const char *key);
void ot_json_end_object(struct ot_json_writer *w);
void ot_json_begin_array(struct ot_json_writer *w, const char *key);
void ot_json_end_array(struct ot_json_writer *w);
void ot_json_put_string(struct ot_json_writer *w, const char *key, const char *value, size_t bytes);
void ot_json_put_text(struct ot_json_writer *w, const char *key, const char *value); /* NUL-terminated */
void ot_json_put_int(struct ot_json_writer *w, const char *key, int64_t value);
void ot_json_put_real(struct ot_json_writer *w, const char *key, double value); /* %.9g */
/* As a real, with enough digits to read the same bits back. */
void ot_json_put_exact(struct ot_json_writer *w, const char *key, double value);
void ot_json_put_bool(struct ot_json_writer *w, const char *key, bool value);
void ot_json_put_null(struct ot_json_writer *w, const char *key);
/* Writes a parsed tree. */
void ot_json_put_value(struct ot_json_writer *w, const char *key, const struct ot_json *value);
/* Hands over the text (NUL-terminated; the caller frees it) and resets the writer. Errors: OT_E_BUDGET. */
int ot_json_writer_take(struct ot_json_writer *w, char **text, size_t *bytes);
/* Takes the text and prints it as a line of stdout. main() checks later that stdout accepted it. Errors:
 * OT_E_BUDGET. */
int ot_json_print(struct ot_json_writer *w);

#endif
