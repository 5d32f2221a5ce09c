/* Rows of data: the first byte selects options, the rest is the file, plain or gzip. Every accepted row gives
 * ids of the vocabulary, in pieces that each train at least one token. */
#include <string.h>

#include "src/base/error.h"
#include "src/data/pipeline.h"
#include "src/data/source.h"
#include "tests/fuzz/target.h"

enum { MAX_ROWS = 32, SEQ_LEN = 24 };

static const char *const templates[] = {NULL, "llama-2", "llama-3", "chatml", "mistral", "zephyr", "alpaca"};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

static struct ot_tokenizer *tokenizer;

static void open_tokenizer(void) {
    const char *path = fuzz_file("", 0);
    FUZZ_CHECK(ot_tokenizer_write_byte_level(path) == 0);
    FUZZ_CHECK(ot_tokenizer_open(path, &tokenizer) == 0);
}

static struct ot_dataset_config pick_config(uint8_t byte, const char *path) {
    int kind = byte % 8;
    return (struct ot_dataset_config){
        .path = path,
        .tokenizer = tokenizer,
        .specials = {.bos_id = OT_BYTE_LEVEL_BOS,
                     .add_bos = (byte & 64) != 0,
                     .n_eos = 1,
                     .eos_ids = {OT_BYTE_LEVEL_EOS}},
        .vocab_size = OT_BYTE_LEVEL_VOCAB,
        .seq_len = (byte & 128) ? SEQ_LEN : 1 << 12,
        .chat.named = kind < N_TEMPLATES ? templates[kind] : NULL,
        .prompt_format = kind < N_TEMPLATES ? NULL : "{question}\\n{context}: {prompt}{{{text}}}",
        .train_prompt = (byte & 8) != 0,
        .no_eos = (byte & 16) != 0,
    };
}

static void check_sample(const struct ot_sample *sample, int64_t seq_len) {
    int64_t trained = 0;
    if (sample->piece_tokens == 0)
        return;
    FUZZ_CHECK(sample->n_tokens >= 2 && (int64_t)sample->piece_tokens <= seq_len);
    for (size_t i = 0; i < sample->n_tokens; i++) {
        FUZZ_CHECK(ot_token_id(sample->tokens[i]) < OT_BYTE_LEVEL_VOCAB);
        trained += ot_token_trained(sample->tokens[i]);
        FUZZ_CHECK(i % sample->piece_tokens != 0 || !ot_token_trained(sample->tokens[i]));
    }
    FUZZ_CHECK(trained == sample->trained && trained > 0);
}

static int run_rows(struct ot_source *source, const struct ot_dataset_config *config,
                    struct ot_pipeline *pipeline, struct ot_row_scratch *scratch) {
    const char *text;
    size_t bytes;
    int64_t line, last_line = 0;
    for (int rows = 0; rows < MAX_ROWS; rows++) {
        int rc = ot_source_next(source, &text, &bytes, &line);
        if (rc <= 0)
            return rc;
        FUZZ_CHECK(bytes > 0 && line >= last_line && line > 0);
        last_line = line;
        OT_TRY(ot_pipeline_detect(pipeline, text, bytes, line));
        OT_TRY(ot_pipeline_make(pipeline, text, bytes, line, scratch));
        check_sample(&scratch->sample, config->seq_len);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_source *source = NULL;
    struct ot_pipeline pipeline = {0};
    struct ot_row_scratch scratch = {0};
    if (size == 0)
        return 0;
    if (!tokenizer)
        open_tokenizer();
    struct ot_dataset_config config = pick_config(data[0], fuzz_file(data + 1, size - 1));
    FUZZ_CHECK(ot_pipeline_open(&pipeline, &config) == 0);
    int rc = ot_source_open(config.path, config.text_by, &source);
    if (rc == 0)
        rc = run_rows(source, &config, &pipeline, &scratch);
    if (rc < 0)
        fuzz_check_refusal(rc, rc == -OT_E_USAGE ? OT_E_USAGE : OT_E_INPUT);
    ot_row_scratch_free(&scratch);
    ot_pipeline_close(&pipeline);
    ot_source_close(source);
    return 0;
}
