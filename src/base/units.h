/* Formats numbers for people. Each function writes into the caller's buffer and returns it. */
#ifndef OT_BASE_UNITS_H
#define OT_BASE_UNITS_H

#include <stdint.h>

enum { OT_TEXT_BYTES = 32 };

const char *ot_plural(int64_t count);                               /* "s"; "" for 1: "1 step", "2 steps" */
const char *ot_text_count(int64_t value, char text[OT_TEXT_BYTES]); /* 78,577 */
const char *ot_text_rate(double value, char text[OT_TEXT_BYTES]);   /* 3,024, 18.7 */
const char *ot_text_short(double value, char text[OT_TEXT_BYTES]);  /* 656 K, 6.74 B */
const char *ot_text_bytes(int64_t bytes, char text[OT_TEXT_BYTES]); /* 61.2 MiB */
const char *ot_text_seconds(double seconds, char text[OT_TEXT_BYTES]);  /* 83.4 us, 12.5 ms, 1.24 s, 128 s */
const char *ot_text_duration(double seconds, char text[OT_TEXT_BYTES]); /* 0.4s, 12s, 3m09s, 3h13m, 2d04h */
/* "6.74 B parameters"; "656 K frozen + 38.9 K trained parameters". */
enum { OT_PARAMS_TEXT_BYTES = 3 * OT_TEXT_BYTES };
const char *ot_text_params(int64_t frozen, int64_t trained, char text[OT_PARAMS_TEXT_BYTES]);
/* Rounds to three digits, for estimates: 3024.2 -> 3020. */
double ot_three_digits(double value);

#endif
