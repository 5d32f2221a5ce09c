/* A small writer of files as torch.save writes them: tensors, the pickle, the zip archive. */
#ifndef OT_TESTS_FILES_TORCH_WRITER_H
#define OT_TESTS_FILES_TORCH_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_safetensors;

enum { MADE_BYTES = 8192, MADE_ENTRIES = 16 };

struct text {
    char bytes[MADE_BYTES];
    size_t n;
};
void put(struct text *to, const void *bytes, size_t n);
void put_number(struct text *to, uint64_t number, int bytes); /* little-endian */
#define PUT(to, literal) put(to, literal, sizeof(literal) - 1)

/* A tensor in the words of a pickle. */
struct tensor {
    const char *name, *class, *key; /* name NULL: none is written */
    int64_t numel, offset;
    int dims;
    int64_t size[9], stride[9];
    const char *more; /* after the hooks; or NULL */
};
struct tensor plain(const char *name); /* the six floats, as 2 x 3 */
void put_text(struct text *to, const char *text);
void put_storage(struct text *to, const struct tensor *tensor);
void put_tensor(struct text *to, const struct tensor *tensor);
/* A dict of these tensors. */
struct text pickle_of(const struct tensor *tensors, int n);

struct archive {
    struct {
        const char *name, *data;
        size_t bytes;
    } entries[MADE_ENTRIES];
    int n;
    bool zip64, zip64_sizes;
    /* The written file, and where parts of it begin. */
    struct text file;
    size_t local[MADE_ENTRIES], central[MADE_ENTRIES], record, locator, end;
};
void add_entry(struct archive *archive, const char *name, const void *data, size_t bytes);
void write_archive(struct archive *archive);

extern const float six[6];
/* Opens a file in memory with these bytes. */
int open_bytes(const char *bytes, size_t n, struct ot_safetensors **file);
/* Opens a file with this pickle, and the storage 0 of six floats. */
int open_pickle(const struct text *pickle, struct ot_safetensors **file);

/* The tensor must have these values, and this shape in all. */
void check_values(const struct ot_safetensors *file, const char *name, const float *want, int n);

#endif
