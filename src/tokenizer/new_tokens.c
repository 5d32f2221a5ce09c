#include "src/tokenizer/new_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/base/utf8.h"

/* A text's place, for errors. */
struct place {
    const char *option, *file; /* file NULL: in the option's value */
    size_t number;             /* of the line, or of the text; from 1 */
};

static int fail(const struct place *at, const char *what) {
    if (at->file)
        return ot_fail(OT_E_INPUT, "--%s: %s, line %zu: %s", at->option, at->file, at->number, what);
    return ot_fail(OT_E_INPUT, "--%s: token %zu of the list: %s", at->option, at->number, what);
}

static bool is_utf8(const char *text, size_t bytes) {
    size_t n = 1;
    for (size_t at = 0; at < bytes && n > 0; at += n)
        n = ot_utf8_character(text + at, bytes - at);
    return n > 0;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_known(const struct ot_new_tokens *tokens, const char *text, size_t bytes) {
    for (size_t i = 0; i < tokens->n; i++)
        if (tokens->items[i].bytes == bytes && memcmp(tokens->items[i].text, text, bytes) == 0)
            return true;
    return false;
}

/* Appends one text. */
static int add(const struct place *at, const char *text, size_t bytes, bool special,
               struct ot_new_tokens *tokens) {
    if (bytes == 0)
        return fail(at, "the token is empty");
    if (bytes > OT_NEW_TOKEN_MOST_BYTES)
        return fail(at, "the token is longer than 1024 bytes");
    if (memchr(text, 0, bytes))
        return fail(at, "the token has a NUL byte");
    if (!is_utf8(text, bytes))
        return fail(at, "the token is not UTF-8");
    if (tokens->n == OT_MOST_NEW_TOKENS)
        return fail(at, "more than 20000 tokens");
    if (is_known(tokens, text, bytes))
        return fail(at, "the token is given twice");
    OT_TRY(ot_grow(&tokens->items, &tokens->capacity, tokens->n + 1, sizeof *tokens->items, "new tokens"));
    char *copy = ot_string_copy(text, bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for new tokens");
    tokens->items[tokens->n++] = (struct ot_new_token){copy, bytes, special};
    return 0;
}

/* A text as it stands in a line or between commas. */
static int add_plain(const struct place *at, const char *text, size_t bytes, bool special,
                     struct ot_new_tokens *tokens) {
    if (bytes > 0 && (is_blank(text[0]) || is_blank(text[bytes - 1])))
        return fail(at, "the token begins or ends with a blank; if that is meant, write it as a JSON string "
                        "(\" x\") in a file");
    return add(at, text, bytes, special, tokens);
}

/* ---- a file ---- */

static int add_json(const struct place *at, const char *line, size_t bytes, bool special,
                    struct ot_new_tokens *tokens) {
    struct ot_json *root;
    size_t n = 0;
    if (ot_json_parse(line, bytes, at->file, &root) < 0)
        return fail(at, "the line is in quotes, but no JSON string");
    const char *text = ot_json_string(root, &n);
    int rc = text ? add(at, text, n, special, tokens) : fail(at, "the line is no JSON string");
    ot_json_free(root);
    return rc;
}

static int add_line(const struct place *at, const char *line, size_t bytes, bool special,
                    struct ot_new_tokens *tokens) {
    if (bytes > 0 && line[bytes - 1] == '\r')
        bytes--;
    bool is_json = bytes > 1 && line[0] == '"' && line[bytes - 1] == '"';
    return (is_json ? add_json : add_plain)(at, line, bytes, special, tokens);
}

static int read_lines(const char *option, const char *path, bool special, struct ot_new_tokens *tokens) {
    enum { MOST_FILE_BYTES = 64 << 20 };
    struct place at = {option, path, 0};
    char *text;
    size_t bytes;
    int rc = 0;
    OT_TRY(ot_read_file(path, MOST_FILE_BYTES, &text, &bytes));
    size_t first = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* a byte order mark */
    if (first == bytes)
        rc = ot_fail(OT_E_INPUT, "--%s: %s: the file has no token", option, path);
    while (first < bytes && rc == 0) {
        const char *end = memchr(text + first, '\n', bytes - first);
        size_t n = end ? (size_t)(end - text) - first : bytes - first;
        at.number++;
        rc = add_line(&at, text + first, n, special, tokens);
        first += n + 1;
    }
    free(text);
    return rc;
}

/* ---- a value ---- */

/* A JSON list begins and ends so. Tokens such as [PAD] do not. */
static bool is_json_list(const char *value) {
    size_t bytes = strlen(value);
    return bytes > 4 && strncmp(value, "[\"", 2) == 0 && strcmp(value + bytes - 2, "\"]") == 0;
}

static int read_json(const char *option, const char *value, bool special, struct ot_new_tokens *tokens) {
    struct place at = {option, NULL, 0};
    struct ot_json *root;
    char where[64];
    int rc = 0;
    snprintf(where, sizeof where, "--%s", option);
    OT_TRY(ot_json_parse(value, strlen(value), where, &root));
    for (size_t i = 0; i < ot_json_length(root) && rc == 0; i++) {
        size_t n = 0;
        const char *text = ot_json_string(ot_json_at(root, i), &n);
        at.number++;
        rc = text ? add(&at, text, n, special, tokens) : fail(&at, "the token is no string");
    }
    ot_json_free(root);
    return rc;
}

static int read_list(const char *option, const char *value, bool special, struct ot_new_tokens *tokens) {
    struct place at = {option, NULL, 0};
    size_t n;
    for (const char *text = value;; text += n + 1) {
        n = strcspn(text, ",");
        at.number++;
        OT_TRY(add_plain(&at, text, n, special, tokens));
        if (!text[n])
            return 0;
    }
}

int ot_new_tokens_read(const char *option, const char *value, bool special, struct ot_new_tokens *tokens) {
    struct stat info;
    bool exists = stat(value, &info) == 0;
    if (exists && !S_ISDIR(info.st_mode))
        return read_lines(option, value, special, tokens);
    if (!strchr(value, ',') && ot_path_has_extension(value, ".txt"))
        return ot_fail(OT_E_INPUT, "--%s: there is no file %s", option, value);
    return (is_json_list(value) ? read_json : read_list)(option, value, special, tokens);
}

void ot_new_tokens_free(struct ot_new_tokens *tokens) {
    for (size_t i = 0; i < tokens->n; i++)
        free(tokens->items[i].text);
    free(tokens->items);
    *tokens = (struct ot_new_tokens){0};
}
