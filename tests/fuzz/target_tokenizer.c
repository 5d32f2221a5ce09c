/* tokenizer.json: a tokenizer that loads encodes a text (the input's own bytes too) and decodes the result.
 * Where ids have a spelling, spelling and id agree. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/fuzz/target.h"

enum { TEXT_BYTES = 96 };

static void check_vocabulary(const struct ot_tokenizer *t) {
    int32_t n = ot_tokenizer_vocab_size(t);
    FUZZ_CHECK(n > 0);
    for (int32_t id = 0; id < n && id < 64; id++) {
        size_t bytes;
        const char *text = ot_tokenizer_token(t, id, &bytes);
        FUZZ_CHECK(!text || ot_tokenizer_find(t, text, bytes) == id);
    }
    FUZZ_CHECK(!ot_tokenizer_token(t, n, NULL) && !ot_tokenizer_token(t, -1, NULL));
}

/* The joined pieces of a stream equal the decoded text, except for a part that the stream may keep back
 * (tokenizer.h). */
static void check_decoded(const struct ot_tokenizer *t, const struct ot_token_list *list) {
    struct ot_decode_stream *stream;
    char *text = NULL;
    const char *piece;
    size_t bytes, piece_bytes;
    FUZZ_CHECK(ot_tokenizer_decode(t, list->ids, list->n, false, &text, &bytes) == 0);
    FUZZ_CHECK(text[bytes] == '\0');
    free(text);
    FUZZ_CHECK(ot_decode_stream_open(t, true, &stream) == 0);
    for (size_t i = 0; i < list->n; i++)
        FUZZ_CHECK(ot_decode_stream_push(stream, list->ids[i], &piece, &piece_bytes) == 0);
    FUZZ_CHECK(ot_decode_stream_finish(stream, &piece, &piece_bytes) == 0);
    ot_decode_stream_close(stream);
}

static void check_text(const struct ot_tokenizer *t, const char *text, size_t bytes, unsigned flags) {
    struct ot_token_list list = {0};
    int rc = ot_tokenizer_encode(t, text, bytes, flags, &list);
    if (rc < 0) {
        FUZZ_CHECK(list.n == 0);
        fuzz_check_refusal(rc, OT_E_INPUT); /* a pattern that needs too much work */
    }
    for (size_t i = 0; i < list.n; i++) {
        FUZZ_CHECK(list.ids[i] >= 0 && list.ids[i] < ot_tokenizer_vocab_size(t));
        FUZZ_CHECK(list.start[i] <= bytes);
    }
    check_decoded(t, &list);
    ot_token_list_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello  w\xc3\xb6rld 123's\n\t<s>ab \xe2\x96\x81x\xf0\x9f\x98\x80</s>";
    struct ot_tokenizer *t = NULL;
    int rc = ot_tokenizer_open(fuzz_file(data, size), &t);
    if (rc < 0) {
        FUZZ_CHECK(!t);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    check_vocabulary(t);
    check_text(t, text, sizeof text, OT_TOKENIZER_ADD_SPECIAL); /* including its NUL */
    size_t some = size < TEXT_BYTES ? size : TEXT_BYTES;
    check_text(t, (const char *)data + (size - some), some, OT_TOKENIZER_SPECIALS_AS_TEXT);
    ot_tokenizer_close(t);
    return 0;
}
