/* Helpers for the tests of src/data: a folder for files, a byte-level tokenizer (token = byte; BOS 256, EOS
 * 257), a pool, and datasets made of text that the test gives. */
#ifndef OT_TESTS_DATA_SUPPORT_H
#define OT_TESTS_DATA_SUPPORT_H

#include "src/data/dataset.h"
#include "tests/support/check.h"

struct data_fixture {
    char *folder;
    struct ot_tokenizer *tokenizer;
    struct ot_pool *pool;
    struct ot_chat_renderer *own;    /* the model's own template: that of zephyr */
    struct ot_dataset_config config; /* its path: the file written last */
    char path[512];
};

/* cmocka setup and teardown; *state is the fixture. seq_len 64, BOS added, EOS appended, two threads. */
int open_data_fixture(void **state);
int close_data_fixture(void **state);

/* Replaces the model's own template. */
void use_template(struct data_fixture *f, const char *jinja);

/* Renders turns in a built-in template, at "f:1". */
int render_builtin(const char *name, struct ot_message *turns, size_t n, const struct ot_chat_marks *marks,
                   struct ot_rendered *r);

/* Writes a data file and points the config at it. */
void put_data(struct data_fixture *f, const char *name, const void *bytes, size_t n);
void put_text(struct data_fixture *f, const char *text); /* writes data.jsonl */
struct ot_dataset *load_data(struct data_fixture *f);    /* fails the test if loading fails */
struct ot_dataset *load_text(struct data_fixture *f, const char *text);

/* Writes data.jsonl with rows of the given lengths in tokens (BOS and EOS included, each >= 3). All bytes of
 * a row are the same letter, another one in each row. */
void put_lengths(struct data_fixture *f, const int *lengths, int n);

/* The caches in a directory of caches (row_cache.h): their number. *last: the path of one of them. */
int count_caches(const char *dir, char last[700]);
/* Changes a bit of the file dir/name; at < 0: counted from its end. */
void flip_bit(const char *dir, const char *name, long at);
/* Runs the function while files can have `most` bytes only, and returns what it returns. */
int with_small_files(size_t most, int (*function)(void *), void *context);

/* The row as text: trained bytes in [brackets], ids from 256 on as <id>. The string is static; the next call
 * overwrites it. */
const char *row_text(const struct ot_dataset *d, int64_t row);

#endif
