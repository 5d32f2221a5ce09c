#include "src/tokenizer/sentencepiece.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/memory.h"
#include "src/base/utf8.h"

/* The largest real models have 5 MB. */
enum { MAX_FILE_BYTES = 32 << 20 };

/* ---- protocol buffers ---- */

/* Bytes of a message that are not read yet. */
struct message {
    const uint8_t *at, *end;
};

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct field {
    uint64_t number;
    enum wire wire;
    uint64_t value;       /* varint, fixed64, fixed32 */
    struct message bytes; /* WIRE_BYTES */
};

static bool read_varint(struct message *m, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        uint8_t byte = *m->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_fixed(struct message *m, int n, uint64_t *out) {
    *out = 0;
    if (m->end - m->at < n)
        return false;
    for (int i = 0; i < n; i++)
        *out |= (uint64_t)*m->at++ << 8 * i;
    return true;
}

/* Reads the next field. False: the message is damaged. */
static bool read_field(struct message *m, struct field *f) {
    uint64_t tag, n;
    if (!read_varint(m, &tag))
        return false;
    f->number = tag >> 3;
    f->wire = (enum wire)(tag & 7);
    switch (f->wire) {
    case WIRE_VARINT:
        return read_varint(m, &f->value);
    case WIRE_FIXED64:
        return read_fixed(m, 8, &f->value);
    case WIRE_FIXED32:
        return read_fixed(m, 4, &f->value);
    case WIRE_BYTES:
        if (!read_varint(m, &n) || n > (uint64_t)(m->end - m->at))
            return false;
        f->bytes = (struct message){m->at, m->at + n};
        m->at += n;
        return true;
    }
    return false;
}

static bool is_varint(const struct field *f, uint64_t number) {
    return f->number == number && f->wire == WIRE_VARINT;
}

static bool is_bytes(const struct field *f, uint64_t number) {
    return f->number == number && f->wire == WIRE_BYTES;
}

/* ---- the model ---- */

struct reader {
    struct ot_sentencepiece *model;
    const char *path;
    struct message all;
    int64_t n; /* pieces */
    int64_t bos_id, eos_id;
    const char *bos, *eos;
    int64_t model_type;
    bool space_suffix;
};

static int fail_damaged(const struct reader *r) {
    return ot_fail(OT_E_INPUT, "%s: not a SentencePiece model, or damaged", r->path);
}

/* Counts the pieces, and checks the outermost message. */
static int count_pieces(struct reader *r) {
    struct message m = r->all;
    struct field f;
    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return fail_damaged(r);
        r->n += is_bytes(&f, 1);
    }
    if (r->n == 0)
        return ot_fail(OT_E_INPUT, "%s: not a SentencePiece model: it has no pieces", r->path);
    if (r->n > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: more than %d pieces", r->path, OT_VOCAB_MAX_ID);
    return 0;
}

static int check_text(const struct reader *r, int64_t id, const char *text, size_t n) {
    size_t length = 0;
    if (n == 0 || n > OT_TOKEN_MAX_BYTES)
        return ot_fail(OT_E_INPUT, "%s: piece %lld has %zu bytes, must have 1 to %d", r->path, (long long)id,
                       n, OT_TOKEN_MAX_BYTES);
    for (size_t i = 0; i < n; i += length) {
        length = text[i] ? ot_utf8_character(text + i, n - i) : 0;
        if (length == 0)
            return ot_fail(OT_E_INPUT, "%s: piece %lld contains a NUL, or is not valid UTF-8", r->path,
                           (long long)id);
    }
    return 0;
}

static int add_piece(struct reader *r, int64_t id, struct message m) {
    struct ot_sentencepiece *model = r->model;
    struct ot_sentencepiece_piece *piece = &model->pieces[id];
    struct message text = {NULL, NULL};
    uint64_t kind = OT_PIECE_NORMAL;
    struct field f;
    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return fail_damaged(r);
        if (is_bytes(&f, 1))
            text = f.bytes;
        else if (f.number == 2 && f.wire == WIRE_FIXED32)
            memcpy(&piece->score, &(uint32_t){(uint32_t)f.value}, 4);
        else if (is_varint(&f, 3))
            kind = f.value;
    }
    size_t n = (size_t)(text.end - text.at);
    OT_TRY(check_text(r, id, (const char *)text.at, n));
    if (kind < OT_PIECE_NORMAL || kind > OT_PIECE_BYTE || !isfinite(piece->score))
        return ot_fail(OT_E_INPUT, "%s: piece %lld has an unknown kind or a score that is no number", r->path,
                       (long long)id);
    piece->kind = (enum ot_sentencepiece_kind)kind;
    int32_t known = ot_vocab_find(&model->vocab, (const char *)text.at, n);
    if (known >= 0)
        return ot_fail(OT_E_INPUT, "%s: pieces %d and %lld are the same", r->path, known, (long long)id);
    if (kind == OT_PIECE_UNKNOWN && model->unk >= 0)
        return ot_fail(OT_E_INPUT, "%s: pieces %d and %lld both stand for unknown text", r->path, model->unk,
                       (long long)id);
    model->unk = kind == OT_PIECE_UNKNOWN ? (int32_t)id : model->unk;
    return ot_vocab_add(&model->vocab, model->arena, (const char *)text.at, n, (int32_t)id, OT_TOKEN_MODEL);
}

static int keep_text(const struct reader *r, struct message m, const char **out) {
    *out = ot_arena_strdup(r->model->arena, (const char *)m.at, (size_t)(m.end - m.at));
    return *out ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory to read the model", r->path);
}

static int read_trainer(struct reader *r, struct message m) {
    struct field f;
    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return fail_damaged(r);
        if (is_varint(&f, 3))
            r->model_type = (int64_t)f.value;
        else if (is_varint(&f, 24))
            r->space_suffix = f.value != 0;
        else if (is_varint(&f, 35))
            r->model->byte_fallback = f.value != 0;
        else if (is_varint(&f, 41))
            r->bos_id = (int32_t)f.value;
        else if (is_varint(&f, 42))
            r->eos_id = (int32_t)f.value;
        else if (is_bytes(&f, 46))
            OT_TRY(keep_text(r, f.bytes, &r->bos));
        else if (is_bytes(&f, 47))
            OT_TRY(keep_text(r, f.bytes, &r->eos));
    }
    return 0;
}

static int read_normalizer(struct reader *r, struct message m) {
    struct ot_sentencepiece *model = r->model;
    struct field f;
    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return fail_damaged(r);
        if (is_bytes(&f, 2) && f.bytes.at < f.bytes.end) {
            OT_TRY(keep_text(r, f.bytes, &model->charsmap));
            model->charsmap_bytes = (size_t)(f.bytes.end - f.bytes.at);
        } else if (is_varint(&f, 3)) {
            model->dummy_prefix = f.value != 0;
        } else if (is_varint(&f, 4)) {
            model->remove_extra_spaces = f.value != 0;
        } else if (is_varint(&f, 5)) {
            model->escape_spaces = f.value != 0;
        }
    }
    return 0;
}

/* Refuses settings that would change ids silently. */
static int check_model(struct reader *r) {
    static const char *const types[] = {"?", "Unigram", "BPE", "word", "char"};
    struct ot_sentencepiece *model = r->model;
    if (r->model_type != OT_SENTENCEPIECE_UNIGRAM && r->model_type != OT_SENTENCEPIECE_BPE)
        return ot_fail(OT_E_INPUT,
                       "%s: a SentencePiece model of type %s is not supported; supported: BPE, Unigram",
                       r->path, r->model_type > 0 && r->model_type < 5 ? types[r->model_type] : types[0]);
    if (model->unk < 0)
        return ot_fail(OT_E_INPUT, "%s: no piece stands for unknown text", r->path);
    if (r->space_suffix)
        return ot_fail(OT_E_INPUT, "%s: treat_whitespace_as_suffix is not supported", r->path);
    model->type = (enum ot_sentencepiece_type)r->model_type;
    model->bos = r->bos_id >= 0 ? r->bos : NULL;
    model->eos = r->eos_id >= 0 ? r->eos : NULL;
    return 0;
}

static int read_model(struct reader *r) {
    struct message m = r->all;
    struct field f;
    int64_t id = 0;
    OT_TRY(count_pieces(r));
    OT_TRY(ot_vocab_open(&r->model->vocab, r->model->arena, r->n, r->n - 1));
    r->model->pieces = ot_arena_alloc(r->model->arena, (size_t)r->n, sizeof *r->model->pieces);
    if (!r->model->pieces)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %lld pieces", r->path, (long long)r->n);
    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return fail_damaged(r);
        if (is_bytes(&f, 1))
            OT_TRY(add_piece(r, id++, f.bytes));
        else if (is_bytes(&f, 2))
            OT_TRY(read_trainer(r, f.bytes));
        else if (is_bytes(&f, 3))
            OT_TRY(read_normalizer(r, f.bytes));
    }
    return check_model(r);
}

/* A line of tiktoken's file: base64, a space, a rank. */
static bool is_tiktoken(const char *text, size_t n) {
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    size_t i = 0, digits = 0;
    while (i < n && text[i] && strchr(base64, text[i]))
        i++;
    if (i == 0 || i % 4 != 0 || i == n || text[i++] != ' ')
        return false;
    for (; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        digits++;
    return digits > 0 && i < n && (text[i] == '\n' || text[i] == '\r');
}

static int refuse_others(const char *path, const char *text, size_t n) {
    if (is_tiktoken(text, n))
        return ot_fail(
            OT_E_INPUT,
            "%s is a vocabulary of tiktoken, not a SentencePiece model; get the tokenizer.json of the "
            "same model in Hugging Face's format",
            path);
    if (n > 0 && text[0] == '{')
        return ot_fail(OT_E_INPUT, "%s is JSON, not a SentencePiece model", path);
    return 0;
}

int ot_sentencepiece_open(const char *path, struct ot_sentencepiece **out) {
    struct ot_sentencepiece *model = calloc(1, sizeof *model);
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (!model)
        return ot_fail(OT_E_BUDGET, "no memory to read %s", path);
    struct reader r = {.model = model,
                       .path = path,
                       .bos_id = 1,
                       .eos_id = 2,
                       .bos = "<s>",
                       .eos = "</s>",
                       .model_type = OT_SENTENCEPIECE_UNIGRAM};
    model->unk = -1;
    model->dummy_prefix = model->remove_extra_spaces = model->escape_spaces = true;
    OT_TRY_GOTO(ot_arena_open(&model->arena), rc, out);
    OT_TRY_GOTO(ot_read_file(path, MAX_FILE_BYTES, &text, &n), rc, out);
    OT_TRY_GOTO(refuse_others(path, text, n), rc, out);
    const uint8_t *first = (const uint8_t *)(text ? text : "");
    r.all = (struct message){first, first + n};
    OT_TRY_GOTO(read_model(&r), rc, out);
    *out = model;
    model = NULL;
out:
    free(text);
    ot_sentencepiece_close(model);
    return rc;
}

void ot_sentencepiece_close(struct ot_sentencepiece *model) {
    if (!model)
        return;
    ot_arena_close(model->arena);
    free(model);
}
