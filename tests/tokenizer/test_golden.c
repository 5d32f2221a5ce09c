/* One small tokenizer per family against Hugging Face's results for the same texts: ids, offsets,
 * decoding. */
#include "tests/tokenizer/corpus.h"

#include "tests/support/check.h"

static void check_family(void **state) {
    const char *name = *state;
    struct corpus corpus;
    struct ot_tokenizer *t = golden_tokenizer(name);
    corpus_open(&corpus);
    check_vectors(t, name, &corpus);
    corpus_close(&corpus);
    ot_tokenizer_close(t);
}

#define FAMILY(name)                                                                                         \
    { name, check_family, NULL, NULL, name }

int main(void) {
    const struct CMUnitTest tests[] = {
        FAMILY("llama3"),       FAMILY("qwen"),    FAMILY("gpt2"),    FAMILY("bloom"),
        FAMILY("falcon"),       FAMILY("o200k"),   FAMILY("prepend"), FAMILY("words"),
        FAMILY("metaspace"),    FAMILY("gemma"),   FAMILY("unknown"), FAMILY("crossing"),
        FAMILY("unigram_ties"), FAMILY("roberta"), FAMILY("t5"),      FAMILY("unigram_bytes"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
