#include "tests/data/data_support.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "src/base/thread.h"

void use_template(struct data_fixture *f, const char *jinja) {
    ot_chat_renderer_close(f->own);
    check_ok(ot_chat_renderer_open(jinja, strlen(jinja), "the template", NULL, &f->own));
    f->config.chat.of_model = f->own;
}

int render_builtin(const char *name, struct ot_message *turns, size_t n, const struct ot_chat_marks *marks,
                   struct ot_rendered *r) {
    struct ot_conversation c = {.messages = turns, .n = n};
    struct ot_chat_renderer *builtin;
    check_ok(ot_chat_renderer_open_builtin(ot_chat_template_find(name), &builtin));
    int rc = ot_chat_renderer_render(builtin, &c, NULL, marks, "f:1", r);
    ot_chat_renderer_close(builtin);
    return rc;
}

int open_data_fixture(void **state) {
    struct data_fixture *f = calloc(1, sizeof *f);
    char path[512];
    assert_non_null(f);
    f->folder = make_folder();
    snprintf(path, sizeof path, "%s/tokenizer.json", f->folder);
    check_ok(ot_tokenizer_write_byte_level(path));
    check_ok(ot_tokenizer_open(path, &f->tokenizer));
    check_ok(ot_pool_open(2, "data", &f->pool));
    f->config = (struct ot_dataset_config){.path = f->path,
                                           .tokenizer = f->tokenizer,
                                           .specials = {.bos_id = OT_BYTE_LEVEL_BOS,
                                                        .add_bos = true,
                                                        .n_eos = 1,
                                                        .eos_ids = {OT_BYTE_LEVEL_EOS}},
                                           .vocab_size = OT_BYTE_LEVEL_VOCAB,
                                           .seq_len = 64,
                                           .pool = f->pool};
    char *jinja;
    size_t bytes;
    check_ok(ot_chat_template_write(ot_chat_template_find("zephyr"), false, &jinja, &bytes));
    use_template(f, jinja);
    free(jinja);
    *state = f;
    return 0;
}

int close_data_fixture(void **state) {
    struct data_fixture *f = *state;
    ot_chat_renderer_close(f->own);
    ot_pool_close(f->pool);
    ot_tokenizer_close(f->tokenizer);
    remove_folder(f->folder);
    free(f);
    return 0;
}

void put_data(struct data_fixture *f, const char *name, const void *bytes, size_t n) {
    write_file(f->folder, name, bytes, n);
    snprintf(f->path, sizeof f->path, "%s/%s", f->folder, name);
}

void put_text(struct data_fixture *f, const char *text) {
    put_data(f, "data.jsonl", text, strlen(text));
}

struct ot_dataset *load_data(struct data_fixture *f) {
    struct ot_dataset *d = NULL;
    check_ok(ot_dataset_open(&f->config, &d));
    return d;
}

struct ot_dataset *load_text(struct data_fixture *f, const char *text) {
    put_text(f, text);
    return load_data(f);
}

void put_lengths(struct data_fixture *f, const int *lengths, int n) {
    size_t bytes = 0, at = 0;
    for (int i = 0; i < n; i++)
        bytes += (size_t)lengths[i] + 32;
    char *text = malloc(bytes);
    assert_non_null(text);
    for (int i = 0; i < n; i++) {
        at += (size_t)sprintf(text + at, "{\"text\": \"");
        memset(text + at, 'a' + i % 26, (size_t)lengths[i] - 2);
        at += (size_t)lengths[i] - 2;
        at += (size_t)sprintf(text + at, "\"}\n");
    }
    put_data(f, "data.jsonl", text, at);
    free(text);
}

const char *row_text(const struct ot_dataset *d, int64_t index) {
    static char text[4096];
    struct ot_row row = ot_dataset_row(d, index);
    size_t at = 0;
    bool open = false;
    for (int64_t i = 0; i < row.n && at + 16 < sizeof text; i++) {
        bool trained = ot_token_trained(row.tokens[i]);
        int32_t id = ot_token_id(row.tokens[i]);
        if (trained != open)
            text[at++] = trained ? '[' : ']';
        open = trained;
        if (id < 256)
            text[at++] = (char)id;
        else
            at += (size_t)sprintf(text + at, "<%d>", id);
    }
    if (open)
        text[at++] = ']';
    text[at] = '\0';
    return text;
}

int count_caches(const char *in, char last[700]) {
    int n = 0;
    DIR *dir = opendir(in);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strlen(entry->d_name) == 16 && !strchr(entry->d_name, '.')) {
            snprintf(last, 700, "%s/%.40s", in, entry->d_name);
            n++;
        }
    if (dir)
        closedir(dir);
    return n;
}

void flip_bit(const char *dir, const char *name, long at) {
    char path[800];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
}

int with_small_files(size_t most, int (*function)(void *), void *context) {
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = most;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = function(context);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    return rc;
}
