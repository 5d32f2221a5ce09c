#include "src/base/base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

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
