/* Decodes id by id. The text of a token depends on the tokens before it: a leading space may be stripped,
 * bytes join to characters. So each push decodes a window of ids again, and returns only the new text. The
 * window holds the tokens of the last output, as context, and the tokens after them. */
#include "src/base/grow.h"
#include "src/tokenizer/decode.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

struct ot_decode_stream {
    const struct ot_tokenizer *tokenizer;
    struct ot_decoding decoding;
    bool skip_special;
    int32_t *ids; /* the window */
    size_t n, capacity;
    size_t context; /* ids of the window whose text was returned before */
    size_t given;   /* bytes of the window's text that were returned before */
    char *out;      /* the text that the last call returned */
    size_t out_capacity;
};

int ot_decode_stream_open(const struct ot_tokenizer *tokenizer, bool skip_special,
                          struct ot_decode_stream **out) {
    struct ot_decode_stream *s = calloc(1, sizeof *s);
    if (!s)
        return ot_fail(OT_E_BUDGET, "no memory to decode");
    s->tokenizer = tokenizer;
    s->skip_special = skip_special;
    int rc = ot_decoding_open(&s->decoding);
    if (rc < 0)
        ot_decode_stream_close(s);
    else
        *out = s;
    return rc;
}

void ot_decode_stream_close(struct ot_decode_stream *s) {
    if (!s)
        return;
    ot_decoding_close(&s->decoding);
    free(s->ids);
    free(s->out);
    free(s);
}

/* Decodes the window and copies the new text to s->out. *bytes is 0 while the window ends inside a character,
 * unless `all`. */
static int decode_window(struct ot_decode_stream *s, bool all, const char **text, size_t *bytes) {
    struct ot_decoding *x = &s->decoding;
    OT_TRY(ot_decode(s->tokenizer, x, s->ids, s->n, s->skip_special));
    size_t given = ot_min(s->given, x->bytes);
    while (given < x->bytes &&
           ((unsigned char)x->text[given] & 0xc0) == 0x80) /* a run of bytes that became invalid */
        given++;
    size_t n = x->open && !all ? 0 : x->bytes - given;
    OT_TRY(ot_grow(&s->out, &s->out_capacity, n + 1, 1, "decoded bytes"));
    memcpy(s->out, x->text + given, n);
    s->out[n] = '\0';
    *text = s->out;
    *bytes = n;
    return 0;
}

/* Drops the old context. The text just returned is the new context: decodes it alone to know how many bytes
 * of later windows were returned before. */
static int slide(struct ot_decode_stream *s) {
    s->n -= s->context;
    memmove(s->ids, s->ids + s->context, s->n * sizeof *s->ids);
    s->context = s->n;
    OT_TRY(ot_decode(s->tokenizer, &s->decoding, s->ids, s->n, s->skip_special));
    s->given = s->decoding.bytes;
    return 0;
}

int ot_decode_stream_push(struct ot_decode_stream *s, int32_t id, const char **text, size_t *bytes) {
    *text = "";
    *bytes = 0;
    if (!ot_decode_gives_text(s->tokenizer, id, s->skip_special))
        return 0;
    OT_TRY(ot_grow(&s->ids, &s->capacity, s->n + 1, sizeof *s->ids, "tokens to decode"));
    s->ids[s->n++] = id;
    OT_TRY(decode_window(s, false, text, bytes));
    return *bytes > 0 ? slide(s) : 0;
}

int ot_decode_stream_finish(struct ot_decode_stream *s, const char **text, size_t *bytes) {
    OT_TRY(decode_window(s, true, text, bytes));
    s->n = s->context = s->given = 0;
    return 0;
}
