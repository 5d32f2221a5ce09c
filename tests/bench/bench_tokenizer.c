/* Tokenizer throughput on one thread: MB/s of text, row by row, and as one text. The peer is
 * peer_tokenizer.py, which does the same with Hugging Face `tokenizers`.
 *
 *     bench_tokenizer [TOKENIZER [TEXT]]            run from the repository's root
 *
 * TOKENIZER is a tokenizer.json or a SentencePiece model, of which the peer is SentencePiece.
 * Default: the byte-level test tokenizer with Llama-3's pattern, and the real SQL rows (generated rows if the
 * real ones are absent). A row is a line of TEXT. The seconds are CPU seconds, so that other programs disturb
 * them little. The best of several passes counts; the first pass, with cold caches, is printed beside it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/mman.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/tokenizer/sentencepiece.h"
#include "src/tokenizer/tokenizer.h"

enum { PASSES = 7, GENERATED_ROWS = 20000 };

static const char default_tokenizer[] = "tests/golden/tokenizers/llama3.json";
static const char default_text[] = "../shared/data/sql/sql.jsonl";

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

struct rows {
    char *text;
    size_t bytes;
};

/* peer_tokenizer.py generates the same rows. */
static struct rows generate_rows(void) {
    struct rows rows = {malloc((size_t)GENERATED_ROWS * 128), 0};
    for (int i = 0; rows.text && i < GENERATED_ROWS; i++)
        rows.bytes += (size_t)sprintf(
            rows.text + rows.bytes,
            "What is the price of city %d? SELECT price_%d FROM table_%d WHERE year_%d > %d\n", i, i % 7,
            i % 13, i % 5, i * 7919 % 10007);
    return rows;
}

static struct rows read_rows(const char *path) {
    FILE *file = fopen(path, "rb");
    struct rows rows = {0};
    if (!file)
        return generate_rows();
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    rows.text = malloc((size_t)bytes + 1);
    rows.bytes = rows.text ? fread(rows.text, 1, (size_t)bytes, file) : 0;
    fclose(file);
    return rows;
}

/* Makes one pass over all rows, or over all text at once. Returns the number of tokens, or an error. */
static int64_t encode_rows(const struct ot_tokenizer *t, const struct rows *rows, bool whole,
                           struct ot_token_list *list) {
    int64_t tokens = 0;
    for (size_t begin = 0, end; begin < rows->bytes; begin = end + 1) {
        const char *line_end = whole ? NULL : memchr(rows->text + begin, '\n', rows->bytes - begin);
        end = line_end ? (size_t)(line_end - rows->text) : rows->bytes;
        int rc = ot_tokenizer_encode(t, rows->text + begin, end - begin, 0, list);
        if (rc < 0)
            return rc;
        tokens += (int64_t)list->n;
    }
    return tokens;
}

static int measure(const struct ot_tokenizer *t, const struct rows *rows, bool whole) {
    struct ot_token_list list = {0};
    double best = 1e30, first = 0;
    int64_t tokens = 0;
    for (int pass = 0; pass < PASSES && tokens >= 0; pass++) {
        double start = cpu_seconds();
        tokens = encode_rows(t, rows, whole, &list);
        double seconds = cpu_seconds() - start;
        first = pass == 0 ? seconds : first;
        best = seconds < best ? seconds : best;
    }
    ot_token_list_free(&list);
    if (tokens < 0)
        return (int)tokens;
    printf("%-9s %8.1f MB/s   first pass %8.1f MB/s   %lld tokens\n", whole ? "one text" : "rows",
           (double)rows->bytes / best * 1e-6, (double)rows->bytes / first * 1e-6, (long long)tokens);
    return 0;
}

/* Opens the tokenizer that a directory with this SentencePiece model alone would have. */
static int open_model(const char *path, struct ot_tokenizer **out) {
    struct ot_sentencepiece *model = NULL;
    struct ot_sentencepiece_files files = {.model_type = strstr(path, "t5") ? "t5" : "llama"};
    char *text = NULL, memory[40];
    size_t bytes = 0;
    int rc = ot_sentencepiece_open(path, &model);
    if (rc == 0)
        rc = ot_sentencepiece_make(model, &files, path, &text, &bytes);
    int fd = rc == 0 ? memfd_create("tokenizer.json", MFD_CLOEXEC) : -1;
    if (rc == 0 && (fd < 0 || write(fd, text, bytes) != (ssize_t)bytes))
        rc = ot_fail(OT_E_IO, "cannot make a file in memory");
    if (rc == 0) {
        snprintf(memory, sizeof memory, "/proc/self/fd/%d", fd);
        rc = ot_tokenizer_open(memory, out);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    ot_sentencepiece_close(model);
    return rc;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : default_tokenizer;
    struct rows rows = read_rows(argc > 2 ? argv[2] : default_text);
    struct ot_tokenizer *t = NULL;
    double start = cpu_seconds();
    int rc = !rows.text               ? ot_fail(OT_E_BUDGET, "no memory for the rows")
             : strstr(path, ".model") ? open_model(path, &t)
                                      : ot_tokenizer_open(path, &t);
    if (rc == 0) {
        printf("load      %8.1f ms\n", (cpu_seconds() - start) * 1e3);
        rc = measure(t, &rows, false);
    }
    if (rc == 0)
        rc = measure(t, &rows, true);
    if (rc < 0)
        fprintf(stderr, "bench_tokenizer: %s\n", ot_error_text());
    ot_tokenizer_close(t);
    free(rows.text);
    return -rc;
}
