/* A SentencePiece model with a tokenizer_config.json: the input is this JSON, a NUL, and the model. A model
 * that is read makes a tokenizer.json with these settings, or is refused; the tokenizer opens, and encodes
 * and decodes a text. JSON that is damaged counts as absent. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/tokenizer/sentencepiece.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/fuzz/target.h"

static void check_tokenizer(const char *json, size_t n) {
    static const char text[] = "Hello  w\xc3\xb6rld 123's\n\t<s>ab \xe2\x96\x81x\xf0\x9f\x98\x80 ab</s>";
    struct ot_tokenizer *t = NULL;
    struct ot_token_list list = {0};
    char *decoded = NULL;
    int rc = ot_tokenizer_open(fuzz_file(json, n), &t);
    if (rc < 0) { /* two added tokens of the config may have one normalised text */
        fuzz_check_refusal(rc, OT_E_INPUT);
        return;
    }
    rc = ot_tokenizer_encode(t, text, sizeof text - 1, OT_TOKENIZER_ADD_SPECIAL, &list);
    if (rc < 0)
        fuzz_check_refusal(rc, OT_E_INPUT);
    for (size_t i = 0; i < list.n; i++)
        FUZZ_CHECK(list.ids[i] >= 0 && list.ids[i] < ot_tokenizer_vocab_size(t));
    FUZZ_CHECK(ot_tokenizer_decode(t, list.ids, list.n, true, &decoded, NULL) == 0);
    free(decoded);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static void check_model(const struct ot_sentencepiece *model, const struct ot_json *config) {
    struct ot_sentencepiece_files files = {.tokenizer_config = config,
                                           .special_tokens_map = ot_json_get(config, "special_tokens_map"),
                                           .added_tokens = ot_json_get(config, "added_tokens")};
    char *text = NULL;
    size_t n;
    FUZZ_CHECK(model->vocab.n > 0 && model->unk >= 0 && model->unk < model->vocab.n);
    int rc = ot_sentencepiece_make(model, &files, "here", &text, &n);
    if (rc < 0) {
        FUZZ_CHECK(!text);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return;
    }
    check_tokenizer(text, n);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_sentencepiece *model = NULL;
    struct ot_json *config = NULL;
    const uint8_t *nul = size > 0 ? memchr(data, '\0', size) : NULL;
    if (!nul || ot_json_parse((const char *)data, (size_t)(nul - data), "here", &config) < 0)
        config = NULL;
    const uint8_t *bytes = nul ? nul + 1 : data;
    int rc = ot_sentencepiece_open(fuzz_file(bytes, size - (size_t)(bytes - data)), &model);
    if (rc < 0) {
        FUZZ_CHECK(!model);
        fuzz_check_refusal(rc, OT_E_INPUT);
    } else {
        check_model(model, config);
    }
    ot_sentencepiece_close(model);
    ot_json_free(config);
    return 0;
}
