/* The byte-level alphabet of GPT-2, and the tokenizer.json of a byte-level BPE without merges. */
#include "src/tokenizer/tokenizer_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/tokenizer/sentencepiece.h"

/* A printable Latin-1 byte is its own character. The n-th other byte, from 0, is the character 256 + n. */
static bool is_printable(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

uint32_t ot_byte_level_char(uint8_t byte) {
    if (is_printable(byte))
        return byte;
    if (byte <= 0x20)
        return 256u + byte;
    return byte == 0xad ? 256u + 67 : 256u + 33 + (byte - 0x7fu);
}

int ot_byte_level_byte(uint32_t cp) {
    if (cp < 256)
        return is_printable(cp) ? (int)cp : -1;
    uint32_t n = cp - 256;
    if (n > 67)
        return -1;
    return n <= 0x20 ? (int)n : n == 67 ? 0xad : (int)(0x7f + n - 33);
}

static const char *const specials[] = {"<|bos|>", "<|eos|>", "<|pad|>"};

static void put_specials(struct ot_json_writer *w) {
    ot_json_begin_array(w, "added_tokens");
    for (int i = 0; i < 3; i++)
        ot_added_token_put(w, &(struct ot_sentencepiece_added){.text = specials[i],
                                                               .bytes = strlen(specials[i]),
                                                               .id = OT_BYTE_LEVEL_BOS + i,
                                                               .special = true});
    ot_json_end_array(w);
}

static void put_byte_level(struct ot_json_writer *w, const char *key) {
    ot_json_begin_object(w, key);
    ot_json_put_text(w, "type", "ByteLevel");
    ot_json_put_bool(w, "add_prefix_space", false);
    ot_json_put_bool(w, "trim_offsets", false);
    ot_json_put_bool(w, "use_regex", false);
    ot_json_end_object(w);
}

static void put_template_piece(struct ot_json_writer *w, const char *kind, const char *id, int type) {
    ot_json_begin_object(w, NULL);
    ot_json_begin_object(w, kind);
    ot_json_put_text(w, "id", id);
    ot_json_put_int(w, "type_id", type);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_template(struct ot_json_writer *w) {
    ot_json_begin_object(w, "post_processor");
    ot_json_put_text(w, "type", "TemplateProcessing");
    ot_json_begin_array(w, "single");
    put_template_piece(w, "SpecialToken", specials[0], 0);
    put_template_piece(w, "Sequence", "A", 0);
    ot_json_end_array(w);
    ot_json_begin_array(w, "pair");
    put_template_piece(w, "SpecialToken", specials[0], 0);
    put_template_piece(w, "Sequence", "A", 0);
    put_template_piece(w, "Sequence", "B", 1);
    ot_json_end_array(w);
    ot_json_begin_object(w, "special_tokens");
    ot_json_begin_object(w, specials[0]);
    ot_json_put_text(w, "id", specials[0]);
    ot_json_begin_array(w, "ids");
    ot_json_put_int(w, NULL, OT_BYTE_LEVEL_BOS);
    ot_json_end_array(w);
    ot_json_begin_array(w, "tokens");
    ot_json_put_text(w, NULL, specials[0]);
    ot_json_end_array(w);
    ot_json_end_object(w);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_model(struct ot_json_writer *w) {
    ot_json_begin_object(w, "model");
    ot_json_put_text(w, "type", "BPE");
    ot_json_put_null(w, "dropout");
    ot_json_put_null(w, "unk_token");
    ot_json_put_null(w, "continuing_subword_prefix");
    ot_json_put_null(w, "end_of_word_suffix");
    ot_json_put_bool(w, "fuse_unk", false);
    ot_json_put_bool(w, "byte_fallback", false);
    ot_json_put_bool(w, "ignore_merges", false);
    ot_json_begin_object(w, "vocab");
    for (int byte = 0; byte < 256; byte++) {
        char key[5] = {0};
        ot_utf8_encode(ot_byte_level_char((uint8_t)byte), key);
        ot_json_put_int(w, key, byte);
    }
    for (int i = 0; i < 3; i++)
        ot_json_put_int(w, specials[i], OT_BYTE_LEVEL_BOS + i);
    ot_json_end_object(w);
    ot_json_begin_array(w, "merges");
    ot_json_end_array(w);
    ot_json_end_object(w);
}

static int write_text(const char *path, const char *text, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file)
        return ot_fail_errno(OT_E_IO, errno, "cannot create %s", path);
    bool good = fwrite(text, 1, bytes, file) == bytes;
    int why = errno;
    if (fclose(file) != 0 && good) {
        good = false;
        why = errno;
    }
    return good ? 0 : ot_fail_errno(OT_E_IO, why, "cannot write %s", path);
}

int ot_tokenizer_write_byte_level(const char *path) {
    struct ot_json_writer w = {.indent = 1};
    char *text = NULL;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", "1.0");
    ot_json_put_null(&w, "truncation");
    ot_json_put_null(&w, "padding");
    put_specials(&w);
    ot_json_put_null(&w, "normalizer");
    put_byte_level(&w, "pre_tokenizer");
    put_template(&w);
    put_byte_level(&w, "decoder");
    put_model(&w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = write_text(path, text, bytes);
    free(text);
    return rc;
}
