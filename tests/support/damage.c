#include "tests/support/damage.h"

#include <string.h>

#include "src/base/random.h"

size_t throw_below(struct dice *dice, size_t bound) {
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, dice->round, 0);
    return (size_t)ot_random_below(7, stream, dice->throws++, bound);
}

static size_t replace(char *text, size_t n, size_t most, size_t at, size_t old, const char *by,
                      size_t bytes) {
    if (n - old + bytes > most)
        return n;
    memmove(text + at + bytes, text + at + old, n - at - old);
    memcpy(text + at, by, bytes);
    return n - old + bytes;
}

/* Replaces the first number after position `at`, if there is one. */
static size_t absurd_number(struct dice *dice, char *text, size_t n, size_t most, size_t at) {
    static const char *const numbers[] = {"0",
                                          "-1",
                                          "0.5",
                                          "1e308",
                                          "1e999",
                                          "true",
                                          "null",
                                          "\"1\"",
                                          "2147483647",
                                          "4294967296",
                                          "9223372036854775807",
                                          "18446744073709551616",
                                          "[]",
                                          "{}"};
    static const char digits[] = "0123456789";
    const char *by = numbers[throw_below(dice, sizeof numbers / sizeof *numbers)];
    size_t length = 0;
    while (at < n && !memchr(digits, text[at], 10))
        at++;
    while (at + length < n && memchr(digits, text[at + length], 10))
        length++;
    return length ? replace(text, n, most, at, length, by, strlen(by)) : n;
}

size_t damage_text(struct dice *dice, char *text, size_t n, size_t most) {
    static const char liked[] = "{}[]\",:\\\n\r\xff\xc3\x80<|";
    for (size_t times = 1 + throw_below(dice, 2); times > 0 && n > 1; times--) {
        size_t at = throw_below(dice, n), length = 1 + throw_below(dice, n - at);
        switch (throw_below(dice, 6)) {
        case 0:
            text[at] = (char)throw_below(dice, 256);
            break;
        case 1:
            text[at] = liked[throw_below(dice, sizeof liked)];
            break;
        case 2:
            n = replace(text, n, most, at, length, "", 0);
            break;
        case 3:
            if (n + length <= most) {
                memmove(text + at + length, text + at, n - at);
                n += length;
            }
            break;
        case 4:
            n = absurd_number(dice, text, n, most, at);
            break;
        default:
            n = at;
        }
    }
    return n;
}
