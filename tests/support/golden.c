#include "tests/support/golden.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARRAYS = 4096, MAX_DIMS = 6 };

struct array {
    char name[128], dtype[8];
    int64_t dims[MAX_DIMS], count;
    long offset;
};

struct ot_golden {
    char path[512];
    char *text, *data;
    int n_arrays;
    struct array *arrays;
};

static char *read_whole(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing: run scripts/golden", path);
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), (size_t)bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

static void parse_line(const char *line, struct array *a) {
    char dims[128];
    assert_int_equal(sscanf(line, "%127s %7s %127s %ld", a->name, a->dtype, dims, &a->offset), 4);
    a->count = 1;
    int n = 0;
    for (char *d = dims; d; d = strchr(d, 'x') ? strchr(d, 'x') + 1 : NULL) {
        assert_true(n < MAX_DIMS);
        a->dims[n] = strtoll(d, NULL, 10);
        a->count *= a->dims[n++];
    }
    for (; n < MAX_DIMS; n++)
        a->dims[n] = 1;
}

struct ot_golden *golden_open(const char *name) {
    struct ot_golden *g = calloc(1, sizeof *g);
    assert_non_null(g);
    const char *folder = getenv("OT_TEST_GOLDEN"); /* set on a machine without the repository */
    snprintf(g->path, sizeof g->path, "%s/%s", folder ? folder : OT_TEST_GOLDEN, name);
    g->text = read_whole(g->path);
    g->arrays = calloc(MAX_ARRAYS, sizeof *g->arrays);
    assert_non_null(g->arrays);
    char *line = strchr(g->text, '\n') + 1;
    assert_memory_equal(g->text, "OTGOLD1\n", 8);
    while (*line != '\n') {
        assert_true(g->n_arrays < MAX_ARRAYS);
        parse_line(line, &g->arrays[g->n_arrays++]);
        line = strchr(line, '\n') + 1;
    }
    /* The data is copied into memory of its own, so that doubles are aligned. */
    const char *start = line + 1;
    size_t bytes = 0;
    for (int i = 0; i < g->n_arrays; i++) {
        const struct array *a = &g->arrays[i];
        size_t item = strcmp(a->dtype, "f64") == 0 || strcmp(a->dtype, "i64") == 0 ? 8
                      : strcmp(a->dtype, "u8") == 0                                ? 1
                                                                                   : 4;
        size_t end = (size_t)a->offset + (size_t)a->count * item;
        bytes = end > bytes ? end : bytes;
    }
    g->data = malloc(bytes ? bytes : 1);
    assert_non_null(g->data);
    memcpy(g->data, start, bytes);
    return g;
}

void golden_close(struct ot_golden *g) {
    if (!g)
        return;
    free(g->text);
    free(g->data);
    free(g->arrays);
    free(g);
}

static const struct array *find(const struct ot_golden *g, const char *name) {
    for (int i = 0; i < g->n_arrays; i++)
        if (strcmp(g->arrays[i].name, name) == 0)
            return &g->arrays[i];
    return NULL;
}

static const void *values(const struct ot_golden *g, const char *name, const char *dtype, int64_t *count) {
    const struct array *a = find(g, name);
    if (!a)
        fail_msg("%s: no array '%s'", g->path, name);
    assert_string_equal(a->dtype, dtype);
    if (count)
        *count = a->count;
    return g->data + a->offset;
}

bool golden_has(const struct ot_golden *g, const char *array) {
    return find(g, array) != NULL;
}

const float *golden_f32(const struct ot_golden *g, const char *array, int64_t *count) {
    return values(g, array, "f32", count);
}

const double *golden_f64(const struct ot_golden *g, const char *array, int64_t *count) {
    return values(g, array, "f64", count);
}

const int32_t *golden_i32(const struct ot_golden *g, const char *array, int64_t *count) {
    return values(g, array, "i32", count);
}

const int64_t *golden_i64(const struct ot_golden *g, const char *array, int64_t *count) {
    return values(g, array, "i64", count);
}

const char *golden_text(const struct ot_golden *g, const char *array, int64_t *bytes) {
    return values(g, array, "u8", bytes);
}

int64_t golden_dim(const struct ot_golden *g, const char *array, int dim) {
    const struct array *a = find(g, array);
    if (!a)
        fail_msg("%s: no array '%s'", g->path, array);
    return a->dims[dim];
}
