/* Turns ids back into text. The tokens' texts pass through the decoders of the file; each decoder turns one
 * list of texts into the next. */
#include "src/tokenizer/decode.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* ---- lists of texts ---- */

static int put_bytes(struct ot_texts *l, const char *bytes, size_t n) {
    if (n == 0)
        return 0;
    if (l->most && n > l->most - l->n)
        return ot_fail(
            OT_E_INPUT,
            "the tokenizer's decoders make more than %zu bytes of a text; its tokenizer.json is not "
            "one of a model",
            l->most);
    OT_TRY(ot_grow(&l->bytes, &l->capacity, l->n + n, 1, "decoded bytes"));
    memcpy(l->bytes + l->n, bytes, n);
    l->n += n;
    return 0;
}

static int end_text(struct ot_texts *l) {
    OT_TRY(ot_grow(&l->ends, &l->ends_capacity, l->count + 1, sizeof *l->ends, "tokens to decode"));
    l->ends[l->count++] = l->n;
    return 0;
}

static struct ot_piece text_at(const struct ot_texts *l, size_t i) {
    size_t begin = i ? l->ends[i - 1] : 0;
    const char *bytes = l->bytes ? l->bytes + begin : ""; /* bytes is NULL if all texts are empty */
    return (struct ot_piece){bytes, l->ends[i] - begin, NULL, 0};
}

static void clear(struct ot_texts *l) {
    l->n = l->count = 0;
}

/* ---- decoders ---- */

static int replace(const struct ot_decoder *d, struct ot_decoding *x, const struct ot_texts *in,
                   struct ot_texts *out) {
    for (size_t i = 0; i < in->count; i++) {
        struct ot_piece text = text_at(in, i);
        struct ot_finder finder = {0};
        size_t done = 0, begin, end;
        int found;
        while ((found = ot_pattern_next(&d->pattern, x->regex, &text, &finder, &begin, &end)) > 0) {
            OT_TRY(put_bytes(out, text.bytes + done, begin - done));
            OT_TRY(put_bytes(out, d->content.text, d->content.bytes));
            done = end;
        }
        OT_TRY(found);
        OT_TRY(put_bytes(out, text.bytes + done, text.n - done));
        OT_TRY(end_text(out));
    }
    return 0;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that "<0xNN>" names, or -1. Accepts "+7" as NN, as Rust does. */
static int named_byte(const struct ot_piece *text) {
    const char *s = text->bytes;
    if (text->n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int high = s[3] == '+' ? 0 : hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Ends a run of byte tokens: gives their text if it is valid UTF-8, else one U+FFFD for each token. */
static int end_bytes(const struct ot_texts *run, struct ot_texts *out) {
    if (run->n == 0)
        return 0;
    if (ot_utf8_valid(run->bytes, run->n) == run->n) {
        OT_TRY(put_bytes(out, run->bytes, run->n));
        return end_text(out);
    }
    for (size_t i = 0; i < run->n; i++) {
        OT_TRY(put_bytes(out, replacement, 3));
        OT_TRY(end_text(out));
    }
    return 0;
}

static int byte_fallback(struct ot_decoding *x, const struct ot_texts *in, struct ot_texts *out) {
    struct ot_texts *run = &x->run;
    clear(run);
    for (size_t i = 0; i < in->count; i++) {
        struct ot_piece text = text_at(in, i);
        int byte = named_byte(&text);
        if (byte >= 0) {
            char one = (char)byte;
            OT_TRY(put_bytes(run, &one, 1));
            continue;
        }
        OT_TRY(end_bytes(run, out));
        clear(run);
        OT_TRY(put_bytes(out, text.bytes, text.n));
        OT_TRY(end_text(out));
    }
    size_t valid = ot_utf8_valid(run->bytes, run->n);
    if (valid < run->n)
        ot_utf8_invalid(run->bytes + valid, run->n - valid, &x->open);
    return end_bytes(run, out);
}

static int fuse(const struct ot_texts *in, struct ot_texts *out) {
    OT_TRY(put_bytes(out, in->bytes, in->n));
    return end_text(out);
}

static bool starts_with(const struct ot_piece *text, const struct ot_string *c) {
    return text->n >= c->bytes && memcmp(text->bytes, c->text, c->bytes) == 0;
}

static int strip(const struct ot_decoder *d, const struct ot_texts *in, struct ot_texts *out) {
    const struct ot_string *c = &d->content;
    for (size_t i = 0; i < in->count; i++) {
        struct ot_piece text = text_at(in, i);
        for (size_t k = 0; k < d->start && starts_with(&text, c); k++)
            text = ot_piece_slice(&text, c->bytes, text.n);
        for (size_t k = 0; k < d->stop && text.n >= c->bytes; k++) {
            struct ot_piece tail = ot_piece_slice(&text, text.n - c->bytes, text.n);
            if (!starts_with(&tail, c))
                break;
            text.n -= c->bytes;
        }
        OT_TRY(put_bytes(out, text.bytes, text.n));
        OT_TRY(end_text(out));
    }
    return 0;
}

/* Turns a token's characters into bytes. A token with a character outside the alphabet is plain text (an
 * added token). */
static int spell_bytes(const struct ot_piece *text, struct ot_texts *out) {
    size_t length, n = out->n;
    for (size_t i = 0; i < text->n; i += length) {
        int byte = ot_byte_level_byte(ot_utf8_decode(text->bytes + i, &length));
        if (byte < 0) {
            out->n = n;
            return put_bytes(out, text->bytes, text->n);
        }
        char one = (char)byte;
        OT_TRY(put_bytes(out, &one, 1));
    }
    return 0;
}

static int byte_level(struct ot_decoding *x, const struct ot_texts *in, struct ot_texts *out) {
    struct ot_texts *run = &x->run;
    clear(run);
    for (size_t i = 0; i < in->count; i++) {
        struct ot_piece text = text_at(in, i);
        OT_TRY(spell_bytes(&text, run));
    }
    for (size_t i = 0; i < run->n;) {
        size_t valid = ot_utf8_valid(run->bytes + i, run->n - i);
        OT_TRY(put_bytes(out, run->bytes + i, valid));
        i += valid;
        if (i < run->n) {
            i += ot_utf8_invalid(run->bytes + i, run->n - i, &x->open);
            OT_TRY(put_bytes(out, replacement, 3));
        }
    }
    return end_text(out);
}

static int metaspace(const struct ot_decoder *d, const struct ot_texts *in, struct ot_texts *out) {
    for (size_t i = 0; i < in->count; i++) {
        struct ot_piece text = text_at(in, i);
        while (text.n > 0) {
            size_t n = 1;
            bool mark = starts_with(&text, &d->content);
            if (!mark)
                ot_utf8_decode(text.bytes, &n);
            if (!mark)
                OT_TRY(put_bytes(out, text.bytes, n));
            else if (i > 0 || !d->drop_first)
                OT_TRY(put_bytes(out, " ", 1));
            text = ot_piece_slice(&text, mark ? d->content.bytes : n, text.n);
        }
        OT_TRY(end_text(out));
    }
    return 0;
}

static int run_decoder(const struct ot_decoder *d, struct ot_decoding *x, const struct ot_texts *in,
                       struct ot_texts *out) {
    switch (d->kind) {
    case OT_DECODE_REPLACE:
        return replace(d, x, in, out);
    case OT_DECODE_BYTE_FALLBACK:
        return byte_fallback(x, in, out);
    case OT_DECODE_FUSE:
        return fuse(in, out);
    case OT_DECODE_STRIP:
        return strip(d, in, out);
    case OT_DECODE_BYTE_LEVEL:
        return byte_level(x, in, out);
    case OT_DECODE_METASPACE:
        return metaspace(d, in, out);
    }
    return 0;
}

/* ---- decoding ---- */

bool ot_decode_gives_text(const struct ot_tokenizer *t, int32_t id, bool skip_special) {
    const struct ot_token *token = ot_vocab_token(&t->vocab, id);
    return token && !(skip_special && (token->flags & OT_TOKEN_SPECIAL));
}

/* Lists the texts of the ids. If the file has no decoder, puts spaces between them. */
static int put_tokens(const struct ot_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct ot_texts *out) {
    for (size_t i = 0; i < n; i++) {
        const struct ot_token *token = ot_vocab_token(&t->vocab, ids[i]);
        if (!ot_decode_gives_text(t, ids[i], skip_special))
            continue;
        if (!t->has_decoder && out->count > 0)
            OT_TRY(put_bytes(out, " ", 1));
        if (t->decoded && t->decoded[ids[i]].text)
            OT_TRY(put_bytes(out, t->decoded[ids[i]].text, t->decoded[ids[i]].bytes));
        else
            OT_TRY(put_bytes(out, token->text, token->bytes));
        OT_TRY(end_text(out));
    }
    return 0;
}

int ot_decode(const struct ot_tokenizer *t, struct ot_decoding *x, const int32_t *ids, size_t n,
              bool skip_special) {
    int side = 0;
    x->open = false;
    clear(&x->lists[0]);
    x->lists[0].most = 0;
    OT_TRY(put_tokens(t, ids, n, skip_special, &x->lists[0]));
    x->lists[0].most = x->lists[1].most = OT_GROWTH_BYTES + OT_GROWTH * x->lists[0].n;
    for (int i = 0; i < t->n_decoders; i++) {
        clear(&x->lists[!side]);
        OT_TRY(run_decoder(&t->decoders[i], x, &x->lists[side], &x->lists[!side]));
        side = !side;
    }
    OT_TRY(put_bytes(&x->lists[side], "", 1));
    x->text = x->lists[side].bytes;
    x->bytes = x->lists[side].n - 1;
    return 0;
}

static int decoding_open(struct ot_decoding *x) {
    *x = (struct ot_decoding){0};
    return ot_regex_scratch_open(&x->regex);
}

static void decoding_close(struct ot_decoding *x) {
    struct ot_texts *lists[] = {&x->lists[0], &x->lists[1], &x->run};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        free(lists[i]->bytes);
        free(lists[i]->ends);
    }
    ot_regex_scratch_close(x->regex);
}

int ot_tokenizer_decode(const struct ot_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                        char **text, size_t *bytes) {
    struct ot_decoding x;
    OT_TRY(decoding_open(&x));
    int rc = ot_decode(t, &x, ids, n, skip_special);
    if (rc == 0) {
        *text = malloc(x.bytes + 1);
        if (*text)
            memcpy(*text, x.text, x.bytes + 1);
        else
            rc = ot_fail(OT_E_BUDGET, "no memory for a text of %zu bytes", x.bytes);
        if (bytes)
            *bytes = x.bytes;
    }
    decoding_close(&x);
    return rc;
}

/* ---- one id at a time ---- */

/* Decodes id by id. The text of a token depends on the tokens before it: a leading space may be stripped,
 * bytes join to characters. So each push decodes a window of ids again, and returns only the new text. The
 * window holds the tokens of the last output, as context, and the tokens after them. */

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
    int rc = decoding_open(&s->decoding);
    if (rc < 0)
        ot_decode_stream_close(s);
    else
        *out = s;
    return rc;
}

void ot_decode_stream_close(struct ot_decode_stream *s) {
    if (!s)
        return;
    decoding_close(&s->decoding);
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
