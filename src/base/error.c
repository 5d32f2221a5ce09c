#include "src/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/utf8.h"

static _Thread_local struct ot_error last_error;

/* A sentence with a very long file name may be too long. Then its middle is cut out, because the reason is at
 * the end. */
static void format_sentence(char text[OT_ERROR_TEXT_BYTES], const char *format, va_list args) {
    static const char gap[] = " ... ";
    va_list again;
    char *whole;
    va_copy(again, args);
    int length = vsnprintf(text, OT_ERROR_TEXT_BYTES, format, args);
    if (length >= OT_ERROR_TEXT_BYTES && vasprintf(&whole, format, again) == length) {
        size_t head = OT_ERROR_TEXT_BYTES / 2, tail = (size_t)length - (OT_ERROR_TEXT_BYTES / 2 - sizeof gap);
        while (head > 0 && (whole[head] & 0xc0) == 0x80) /* not in the middle of a character */
            head--;
        while ((whole[tail] & 0xc0) == 0x80)
            tail++;
        snprintf(text, OT_ERROR_TEXT_BYTES, "%.*s%s%s", (int)head, whole, gap, whole + tail);
        free(whole);
    }
    va_end(again);
}

static int record(enum ot_error_code code, enum ot_error_cause cause, const char *format, va_list args) {
    char text[OT_ERROR_TEXT_BYTES]; /* the arguments may point into the record */
    format_sentence(text, format, args);
    ot_utf8_keep_line(text); /* a file name or a library's message may have control characters */
    last_error.code = (int)code;
    last_error.cause = cause;
    last_error.help_bytes = last_error.cure_bytes = 0;
    memcpy(last_error.text, text, sizeof text);
    return -(int)code;
}

int ot_fail(enum ot_error_code code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = record(code, OT_CAUSE_UNKNOWN, format, args);
    va_end(args);
    return rc;
}

int ot_fail_cause(enum ot_error_code code, enum ot_error_cause cause, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = record(code, cause, format, args);
    va_end(args);
    return rc;
}

int ot_fail_errno(enum ot_error_code code, int errno_value, const char *format, ...) {
    va_list args;
    char text[OT_ERROR_TEXT_BYTES];
    va_start(args, format);
    format_sentence(text, format, args);
    va_end(args);
    return ot_fail(code, "%s: %s", text, strerror(errno_value));
}

int ot_fail_context(int rc, const char *format, ...) {
    va_list args;
    char context[OT_ERROR_TEXT_BYTES];
    int help_bytes = last_error.help_bytes, cure_bytes = last_error.cure_bytes;
    va_start(args, format);
    format_sentence(context, format, args);
    va_end(args);
    ot_fail_cause((enum ot_error_code)(rc < 0 ? -rc : OT_E_INTERNAL), last_error.cause, "%s: %s", context,
                  last_error.text);
    last_error.help_bytes = help_bytes; /* also right if the sentence was cut: its end is kept */
    last_error.cure_bytes = cure_bytes;
    return rc;
}

int ot_fail_add_cures(int rc, const char *lead, const char *cures) {
    ot_fail_cause((enum ot_error_code) - rc, last_error.cause, "%s%s%s", last_error.text, lead, cures);
    last_error.help_bytes = (int)(strlen(lead) + strlen(cures));
    last_error.cure_bytes = (int)strlen(cures);
    return rc;
}

const char *ot_error_text(void) {
    return last_error.text;
}

enum ot_error_cause ot_error_cause(void) {
    return last_error.cause;
}

const char *ot_error_cures(void) {
    return last_error.text + strlen(last_error.text) - last_error.cure_bytes;
}

int ot_error_reason_bytes(void) {
    return last_error.help_bytes ? (int)strlen(last_error.text) - last_error.help_bytes : -1;
}

void ot_error_clear(void) {
    last_error = (struct ot_error){0};
}

void ot_error_save(struct ot_error *out, int rc) {
    *out = last_error;
    out->code = rc < 0 ? -rc : 0;
}

int ot_error_load(const struct ot_error *error) {
    last_error = *error;
    return -error->code;
}
