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

/* ---- base64 ---- */

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The six bits of a letter, or -1. */
static int value_of(char c) {
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

int ot_base64_decode(const char *text, size_t n, const char *where, char **bytes, size_t *n_bytes) {
    size_t padding = n > 0 && text[n - 1] == '=' ? 1 + (n > 1 && text[n - 2] == '=') : 0;
    if (n % 4 != 0)
        return ot_fail(OT_E_INPUT, "%s is not base64: its length, %zu, is no multiple of 4", where, n);
    uint8_t *out = malloc(n / 4 * 3 + 1);
    if (!out)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %zu bytes", where, n);
    size_t at = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = i + k >= n - padding ? 0 : value_of(text[i + k]);
            if (value < 0) {
                free(out);
                return ot_fail(OT_E_INPUT, "%s is not base64: byte %zu is none of its letters", where, i + k);
            }
            bits = bits << 6 | (uint32_t)value;
        }
        out[at++] = (uint8_t)(bits >> 16);
        out[at++] = (uint8_t)(bits >> 8);
        out[at++] = (uint8_t)bits;
    }
    *n_bytes = at - padding;
    out[*n_bytes] = 0;
    *bytes = (char *)out;
    return 0;
}

int ot_base64_encode(const void *bytes, size_t n, char **text, size_t *n_text) {
    const uint8_t *in = bytes;
    char *out = malloc((n + 2) / 3 * 4 + 1), *at = out;
    if (!out)
        return ot_fail(OT_E_BUDGET, "no memory to write %zu bytes as base64", n);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = (uint32_t)in[i] << 16;
        bits |= i + 1 < n ? (uint32_t)in[i + 1] << 8 : 0;
        bits |= i + 2 < n ? in[i + 2] : 0;
        *at++ = letters[bits >> 18];
        *at++ = letters[bits >> 12 & 63];
        *at++ = i + 1 < n ? letters[bits >> 6 & 63] : '=';
        *at++ = i + 2 < n ? letters[bits & 63] : '=';
    }
    *at = '\0';
    *text = out;
    *n_text = (size_t)(at - out);
    return 0;
}
