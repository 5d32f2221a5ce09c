#include "src/base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"

static bool reserve(struct ot_string_builder *b, size_t bytes) {
    if (!b->failed) /* one more for the NUL */
        b->failed = !ot_try_grow(&b->text, &b->capacity, b->bytes + bytes + 1, 1);
    return !b->failed;
}

void ot_string_append(struct ot_string_builder *b, const char *text, size_t bytes) {
    if (!reserve(b, bytes))
        return;
    if (bytes > 0)
        memcpy(b->text + b->bytes, text, bytes);
    b->bytes += bytes;
    b->text[b->bytes] = '\0';
}

void ot_string_append_text(struct ot_string_builder *b, const char *text) {
    ot_string_append(b, text, strlen(text));
}

void ot_string_append_format(struct ot_string_builder *b, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    if (length < 0)
        b->failed = true;
    else if (reserve(b, (size_t)length))
        b->bytes += (size_t)vsnprintf(b->text + b->bytes, (size_t)length + 1, format, again);
    va_end(again);
    va_end(args);
}

char *ot_string_copy(const char *text, size_t bytes) {
    char *copy = bytes < SIZE_MAX ? malloc(bytes + 1) : NULL;
    if (!copy)
        return NULL;
    if (bytes > 0)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

int ot_string_format(char **out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vasprintf(out, format, args);
    va_end(args);
    if (length >= 0)
        return 0;
    *out = NULL;
    return ot_fail(OT_E_BUDGET, "no memory for a text");
}

const char *ot_words_at(const char *words, int index, size_t *bytes) {
    for (; *words; words += *bytes + (words[*bytes] == ' ')) {
        *bytes = strcspn(words, " ");
        if (index-- == 0)
            return words;
    }
    return NULL;
}

int ot_words_find(const char *words, const char *text, size_t bytes) {
    const char *word;
    size_t n;
    for (int i = 0; (word = ot_words_at(words, i, &n)); i++)
        if (n == bytes && memcmp(word, text, n) == 0)
            return i;
    return -1;
}

bool ot_words_have(const char *words, const char *text) {
    return ot_words_find(words, text, strlen(text)) >= 0;
}
