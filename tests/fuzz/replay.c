/* Runs a fuzz target without libFuzzer: every file of its corpus, then mutations of these files.
 *
 *   fuzz_NAME CORPUS WORDS EXECUTIONS
 *
 * CORPUS is a folder. WORDS is a file in libFuzzer's dictionary format ("word" a line, \xNN escapes). A
 * mutation depends only on its number and the corpus, so every run is the same and a failing input can be
 * made again. That is what the first process does: it watches a second process, and writes the input of which
 * the second one died to the current folder. */
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fuzz/target.h"
#include "tests/support/damage.h"

enum { MAX_FILES = 1024, MAX_WORDS = 512, MAX_BYTES = 4096, MAX_FILE_BYTES = 1 << 16 };

struct text {
    char *bytes;
    size_t n;
};
static struct text files[MAX_FILES], words[MAX_WORDS];
static size_t n_files, n_words;

static _Noreturn void give_up(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(2);
}

/* ---- the corpus and the words ---- */

static struct text read_file(const char *path) {
    struct text text = {malloc(MAX_FILE_BYTES), 0};
    FILE *file = fopen(path, "rb");
    if (!text.bytes || !file)
        give_up("cannot be read", path);
    text.n = fread(text.bytes, 1, MAX_FILE_BYTES, file);
    fclose(file);
    return text;
}

static void read_corpus(const char *folder) {
    struct dirent **entries;
    char path[4096];
    int n = scandir(folder, &entries, NULL, alphasort);
    if (n < 0 || n > MAX_FILES)
        give_up("is no corpus", folder);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            files[n_files++] = read_file(path);
        free(entries[i]);
    }
    free(entries);
    if (n_files == 0)
        give_up("is an empty corpus", folder);
}

/* Decodes "..." with \\, \" and \xNN inside. */
static struct text unquote(const char *line) {
    struct text word = {calloc(1, strlen(line) + 1), 0};
    for (const char *at = strchr(line, '"') + 1; *at && *at != '"'; at++) {
        unsigned byte = (unsigned char)*at;
        if (*at == '\\' && at[1] == 'x' && sscanf(at + 2, "%2x", &byte) == 1)
            at += 3;
        else if (*at == '\\')
            byte = (unsigned char)*++at;
        word.bytes[word.n++] = (char)byte;
    }
    return word;
}

static void read_words(const char *path) {
    char line[256];
    FILE *file = fopen(path, "r");
    if (!file)
        give_up("cannot be read", path);
    while (fgets(line, sizeof line, file) && n_words < MAX_WORDS)
        if (line[0] == '"')
            words[n_words++] = unquote(line);
    fclose(file);
}

static void free_texts(struct text *texts, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(texts[i].bytes);
}

/* ---- mutations ---- */

/* Replaces `old` bytes at a place of the text by `by`, if there is room. */
static size_t put(char *text, size_t n, size_t at, size_t old, struct text by) {
    if (n - old + by.n > MAX_BYTES)
        return n;
    memmove(text + at + by.n, text + at + old, n - at - old);
    memcpy(text + at, by.bytes, by.n);
    return n - old + by.n;
}

static size_t mutate_once(struct dice *dice, char *text, size_t n) {
    size_t at = throw_below(dice, n + 1);
    switch (throw_below(dice, 5)) {
    case 0: /* flips a bit */
        if (at < n)
            text[at] = (char)(text[at] ^ 1 << throw_below(dice, 8));
        return n;
    case 1: { /* inserts a word, or overwrites bytes with it */
        struct text word = n_words ? words[throw_below(dice, n_words)] : (struct text){0};
        size_t old = throw_below(dice, 2) && at + word.n <= n ? word.n : 0;
        return put(text, n, at, old, word);
    }
    case 2: { /* a piece of another file replaces the end, or as many bytes */
        const struct text *file = &files[throw_below(dice, n_files)];
        size_t from = throw_below(dice, file->n + 1), most = file->n - from;
        struct text piece = {file->bytes + from, most ? 1 + throw_below(dice, most) : 0};
        size_t old = throw_below(dice, 2) ? n - at : piece.n < n - at ? piece.n : n - at;
        return put(text, n, at, old, piece);
    }
    default:
        return damage_text(dice, text, n, MAX_BYTES);
    }
}

/* Makes input `number`: an unchanged file of the corpus, or a mutation. */
static size_t make_input(size_t number, char text[MAX_FILE_BYTES]) {
    struct dice dice = {number, 0};
    bool as_is = number < n_files;
    const struct text *file = &files[as_is ? number : throw_below(&dice, n_files)];
    size_t n = as_is || file->n < MAX_BYTES ? file->n : MAX_BYTES;
    memcpy(text, file->bytes, n);
    for (size_t times = as_is ? 0 : 1 + throw_below(&dice, 4); times > 0; times--)
        n = mutate_once(&dice, text, n);
    return n;
}

/* ---- the run ---- */

static void run_all(size_t executions, volatile size_t *number) {
    static char text[MAX_FILE_BYTES];
    for (*number = 0; *number < executions; ++*number) {
        size_t n = make_input(*number, text);
        uint8_t *exact = malloc(n ? n : 1); /* exact size, so that the sanitizers see a read beyond the end */
        if (!exact)
            give_up("no memory", "replay");
        memcpy(exact, text, n);
        LLVMFuzzerTestOneInput(exact, n);
        free(exact);
    }
}

static int report(const char *program, size_t number) {
    static char text[MAX_FILE_BYTES];
    char path[64];
    size_t n = make_input(number, text);
    snprintf(path, sizeof path, "crash-%.40s-%zu",
             strrchr(program, '/') ? strrchr(program, '/') + 1 : program, number);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(text, 1, n, file) != n || fclose(file) != 0)
        give_up("cannot be written", path);
    fprintf(stderr, "%s: failed at execution %zu of %zu bytes, which is now in %s\n", program, number, n,
            path);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4)
        give_up("usage: fuzz_NAME CORPUS WORDS EXECUTIONS", argv[0]);
    read_corpus(argv[1]);
    read_words(argv[2]);
    size_t executions = n_files + strtoul(argv[3], NULL, 10);
    size_t *number = mmap(NULL, sizeof *number, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (number == MAP_FAILED)
        give_up("no memory", argv[0]);
    int status = 0, rc = 0;
    pid_t child = fork();
    if (child == 0) {
        run_all(executions, number);
    } else {
        if (child < 0 || waitpid(child, &status, 0) < 0)
            give_up("cannot fork", argv[0]);
        rc = status == 0 ? 0 : report(argv[0], *number);
        if (rc == 0)
            printf("%zu files of the corpus and %zu mutations: clean\n", n_files, executions - n_files);
    }
    free_texts(files, n_files);
    free_texts(words, n_words);
    munmap(number, sizeof *number);
    return rc;
}
