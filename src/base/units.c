#include "src/base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *ot_plural(int64_t count) {
    return count == 1 ? "" : "s";
}

const char *ot_text_count(int64_t value, char text[OT_TEXT_BYTES]) {
    char digits[OT_TEXT_BYTES];
    int n = snprintf(digits, sizeof digits, "%" PRId64, value);
    char *out = text;
    for (int i = 0; i < n; i++) {
        if (i && digits[i - 1] != '-' && (n - i) % 3 == 0)
            *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return text;
}

const char *ot_text_rate(double value, char text[OT_TEXT_BYTES]) {
    if (value >= 99.95)
        return ot_text_count((int64_t)round(value), text);
    snprintf(text, OT_TEXT_BYTES, "%.1f", value);
    return text;
}

double ot_three_digits(double value) {
    double digit = value > 0 ? pow(10, floor(log10(value)) - 2) : 1;
    return round(value / digit) * digit;
}

const char *ot_text_short(double value, char text[OT_TEXT_BYTES]) {
    static const char units[] = " KMBT";
    int unit = 0;
    for (; value >= 999.5 && units[unit + 1]; unit++)
        value /= 1000;
    int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    int n = snprintf(text, OT_TEXT_BYTES, "%.*f", decimals, value);
    if (unit)
        snprintf(text + n, OT_TEXT_BYTES - (size_t)n, " %c", units[unit]);
    return text;
}

const char *ot_text_params(int64_t frozen, int64_t trained, char text[OT_PARAMS_TEXT_BYTES]) {
    char base[OT_TEXT_BYTES], part[OT_TEXT_BYTES];
    ot_text_short((double)trained, part);
    if (frozen > 0)
        snprintf(text, OT_PARAMS_TEXT_BYTES, "%s frozen + %s trained parameters",
                 ot_text_short((double)frozen, base), part);
    else
        snprintf(text, OT_PARAMS_TEXT_BYTES, "%s parameters", part);
    return text;
}

const char *ot_text_bytes(int64_t bytes, char text[OT_TEXT_BYTES]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 999.95 && unit < 5; unit++)
        value /= 1024;
    snprintf(text, OT_TEXT_BYTES, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return text;
}

const char *ot_text_seconds(double seconds, char text[OT_TEXT_BYTES]) {
    static const char *const units[] = {"us", "ms", "s"};
    double value = seconds * 1e6;
    int unit = 0;
    if (!(seconds >= 0) || seconds > 1e9)
        return strcpy(text, "?");
    for (; value >= 999.5 && unit < 2; unit++)
        value /= 1000;
    snprintf(text, OT_TEXT_BYTES, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, units[unit]);
    return text;
}

const char *ot_text_duration(double seconds, char text[OT_TEXT_BYTES]) {
    if (!(seconds >= 0) || seconds > 1e9)
        return strcpy(text, "?");
    int64_t whole = (int64_t)(seconds + 0.5), minutes = whole / 60, hours = minutes / 60;
    if (seconds < 9.95)
        snprintf(text, OT_TEXT_BYTES, "%.1fs", seconds);
    else if (whole < 60)
        snprintf(text, OT_TEXT_BYTES, "%" PRId64 "s", whole);
    else if (whole < 3600)
        snprintf(text, OT_TEXT_BYTES, "%" PRId64 "m%02" PRId64 "s", minutes, whole % 60);
    else if (hours < 48)
        snprintf(text, OT_TEXT_BYTES, "%" PRId64 "h%02" PRId64 "m", hours, minutes % 60);
    else
        snprintf(text, OT_TEXT_BYTES, "%" PRId64 "d%02" PRId64 "h", hours / 24, hours % 24);
    return text;
}
