#include "tests/files/torch_writer.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/hash.h"
#include "src/files/safetensors.h"
#include "src/files/torch_file.h"
#include "tests/files/fixture.h"

void put(struct text *to, const void *bytes, size_t n) {
    assert_true(to->n + n <= sizeof to->bytes);
    memcpy(to->bytes + to->n, bytes, n);
    to->n += n;
}

void put_number(struct text *to, uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++)
        put(to, &(char){(char)(i < 8 ? number >> (8 * i) : 0)}, 1);
}

void put_text(struct text *to, const char *text) {
    PUT(to, "X");
    put_number(to, strlen(text), 4);
    put(to, text, strlen(text));
}

static void put_int(struct text *to, int64_t number) {
    int bytes = number == (int8_t)number ? 1 : 8;
    put_number(to, 0x8a, 1);
    put_number(to, (uint64_t)bytes, 1);
    put_number(to, (uint64_t)number, bytes);
}

void put_storage(struct text *to, const struct tensor *tensor) {
    PUT(to, "(");
    put_text(to, "storage");
    PUT(to, "ctorch\n");
    put(to, tensor->class, strlen(tensor->class));
    PUT(to, "\n");
    put_text(to, tensor->key);
    put_text(to, "cpu");
    put_int(to, tensor->numel);
    PUT(to, "tQ");
}

void put_tensor(struct text *to, const struct tensor *tensor) {
    if (tensor->name)
        put_text(to, tensor->name);
    PUT(to, "ctorch._utils\n_rebuild_tensor_v2\n(");
    put_storage(to, tensor);
    put_int(to, tensor->offset);
    for (int part = 0; part < 2; part++) {
        PUT(to, "(");
        for (int i = 0; i < tensor->dims; i++)
            put_int(to, part ? tensor->stride[i] : tensor->size[i]);
        PUT(to, "t");
    }
    PUT(to, "\x89"
            "ccollections\nOrderedDict\n)R");
    if (tensor->more)
        put(to, tensor->more, strlen(tensor->more));
    PUT(to, "tR");
}

void add_entry(struct archive *a, const char *name, const void *data, size_t bytes) {
    assert_true(a->n < MADE_ENTRIES);
    a->entries[a->n].name = name;
    a->entries[a->n].data = data;
    a->entries[a->n++].bytes = bytes;
}

/* What the local header and the directory share: from the version to the sizes. */
static void put_facts(struct text *to, const struct archive *a, int i) {
    size_t bytes = a->entries[i].bytes;
    put_number(to, 0, 2);
    put_number(to, 0x0808, 2); /* a descriptor follows the data, the name is UTF-8: as PyTorch has it */
    put_number(to, 0, 2);
    put_number(to, 0x5b7a8a21, 4); /* time and date */
    put_number(to, ot_crc32(0, a->entries[i].data, bytes), 4);
    for (int k = 0; k < 2; k++)
        put_number(to, a->zip64_sizes ? 0xffffffff : bytes, 4);
    put_number(to, strlen(a->entries[i].name), 2);
}

void write_archive(struct archive *a) {
    struct text *to = &a->file;
    for (int i = 0; i < a->n; i++) {
        a->local[i] = to->n;
        put_number(to, 0x04034b50, 4);
        put_facts(to, a, i);
        put_number(to, 5, 2); /* padding */
        put(to, a->entries[i].name, strlen(a->entries[i].name));
        PUT(to, "FB\x01\0Z");
        put(to, a->entries[i].data, a->entries[i].bytes);
        PUT(to, "PK\x07\x08............");
    }
    size_t at = to->n;
    for (int i = 0; i < a->n; i++) {
        a->central[i] = to->n;
        put_number(to, 0x02014b50, 4);
        put_number(to, 0, 2);
        put_facts(to, a, i);
        put_number(to, a->zip64_sizes ? 5 + 28 : 0, 2);
        put_number(to, a->zip64_sizes ? 2 : 0, 2); /* a comment */
        put_number(to, 0, 8);
        put_number(to, a->zip64_sizes ? 0xffffffff : a->local[i], 4);
        put(to, a->entries[i].name, strlen(a->entries[i].name));
        if (a->zip64_sizes) {
            PUT(to, "FB\x01\0Z\x01\0\x18\0");
            put_number(to, a->entries[i].bytes, 8);
            put_number(to, a->entries[i].bytes, 8);
            put_number(to, a->local[i], 8);
            PUT(to, "hi");
        }
    }
    size_t bytes = to->n - at;
    if (a->zip64) {
        a->record = to->n;
        put_number(to, 0x06064b50, 4);
        put_number(to, 44, 8);
        put_number(to, 0, 12);
        put_number(to, (uint64_t)a->n, 8);
        put_number(to, (uint64_t)a->n, 8);
        put_number(to, bytes, 8);
        put_number(to, at, 8);
        a->locator = to->n;
        put_number(to, 0x07064b50, 4);
        put_number(to, 0, 4);
        put_number(to, a->record, 8);
        put_number(to, 1, 4);
    }
    a->end = to->n;
    put_number(to, 0x06054b50, 4);
    put_number(to, 0, 4);
    put_number(to, a->zip64 ? 0xffff : (uint64_t)a->n, 2);
    put_number(to, a->zip64 ? 0xffff : (uint64_t)a->n, 2);
    put_number(to, a->zip64 ? 0xffffffff : bytes, 4);
    put_number(to, a->zip64 ? 0xffffffff : at, 4);
    put_number(to, 0, 2);
}

const float six[6] = {1, -2, 3.5f, 0, 5, 6};

int open_bytes(const char *bytes, size_t n, struct ot_safetensors **file) {
    static int fd = -1;
    char path[64];
    if (fd < 0)
        fd = memfd_create("m.bin", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    assert_int_equal(pwrite(fd, bytes, n, 0), n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return ot_torch_file_open(path, file);
}

int open_pickle(const struct text *pickle, struct ot_safetensors **file) {
    static struct archive a;
    a = (struct archive){0};
    add_entry(&a, "m/data.pkl", pickle->bytes, pickle->n);
    add_entry(&a, "m/data/0", six, sizeof six);
    write_archive(&a);
    return open_bytes(a.file.bytes, a.file.n, file);
}

struct tensor plain(const char *name) {
    return (struct tensor){.name = name,
                           .class = "FloatStorage",
                           .key = "0",
                           .numel = 6,
                           .dims = 2,
                           .size = {2, 3},
                           .stride = {3, 1}};
}

struct text pickle_of(const struct tensor *tensors, int n) {
    struct text pickle = {0};
    PUT(&pickle, "\x80\x02}(");
    for (int i = 0; i < n; i++)
        put_tensor(&pickle, &tensors[i]);
    PUT(&pickle, "u.");
    return pickle;
}

void check_values(const struct ot_safetensors *file, const char *name, const float *want, int n) {
    const struct ot_safetensor *tensor = ot_safetensors_find(file, name);
    float got[6];
    assert_non_null(tensor);
    assert_true(tensor->readable);
    assert_int_equal(tensor->count, n);
    assert_int_equal(tensor->bytes, (size_t)n * sizeof *want);
    check_ok(ot_mapped_file_fetch(ot_safetensors_map(file), tensor->data, tensor->bytes));
    assert_int_equal(ot_safetensors_convert(tensor->dtype, tensor->data, n, got), -1);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
}
