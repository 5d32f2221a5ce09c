#include "src/files/torch_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/memory.h"
#include "src/files/safetensors.h"
#include "src/files/torch_pickle.h"
#include "src/files/torch_zip.h"

/* The pickle of 100000 tensors has about this many bytes. */
enum { MAX_PICKLE_BYTES = 16 << 20 };

struct torch_file {
    struct ot_mapped_file map;
    struct ot_arena *arena;
    struct ot_zip zip;
    const char *folder; /* "pytorch_model/" */
    char *pickle;
    struct ot_arena *values; /* of the pickle */
    struct ot_safetensor *tensors;
    int64_t count;
};

/* ---- the archive ---- */

/* Recognises what PyTorch wrote before 1.6, and torch.save with _use_new_zipfile_serialization=False. */
static int refuse_legacy(const struct ot_mapped_file *map) {
    static const unsigned char magic[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8};
    unsigned char head[262] = {0};
    OT_TRY(ot_mapped_file_read(map, head, map->bytes < sizeof head ? map->bytes : sizeof head, 0));
    if (memcmp(head, magic, sizeof magic) != 0 && memcmp(head + 257, "ustar", 5) != 0)
        return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s: is in the format of PyTorch before 1.6; load it with torch.load and save the same with "
        "torch.save, or save the model with transformers as safetensors",
        map->path);
}

/* The entry FOLDER/name; NULL: there is none. */
static const struct ot_zip_entry *find_entry(const struct torch_file *file, const char *name) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s", file->folder, name) >= (int)sizeof path)
        return NULL;
    return ot_zip_find(&file->zip, path);
}

/* The folder is the one with data.pkl. */
static int find_folder(struct torch_file *file) {
    for (size_t i = 0; i < file->zip.n; i++) {
        const char *name = file->zip.entries[i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash, "/data.pkl") != 0)
            continue;
        if (file->folder)
            return ot_fail(OT_E_INPUT, "%s: the archive has two entries data.pkl", file->map.path);
        file->folder = ot_arena_strdup(file->arena, name, (size_t)(slash - name) + 1);
        if (!file->folder)
            return -OT_E_BUDGET;
    }
    if (!file->folder)
        return ot_fail(OT_E_INPUT, "%s: is a zip archive without data.pkl, so torch.save did not write it",
                       file->map.path);
    if (find_entry(file, "constants.pkl"))
        return ot_fail(OT_E_INPUT,
                       "%s: is a program for TorchScript, not a dict of tensors; save the model's state_dict "
                       "with torch.save",
                       file->map.path);
    return 0;
}

static int check_plain(const struct torch_file *file, const struct ot_zip_entry *entry) {
    if (entry->plain)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: %s is compressed or encrypted in the archive, which torch.save never does; save the "
                   "weights again with torch.save",
                   file->map.path, entry->name);
}

static int check_byteorder(const struct torch_file *file) {
    char order[7] = "";
    const struct ot_zip_entry *entry = find_entry(file, "byteorder");
    if (!entry)
        return 0;
    OT_TRY(check_plain(file, entry));
    if (entry->bytes < sizeof order)
        OT_TRY(ot_mapped_file_read(&file->map, order, entry->bytes, entry->at));
    if (strcmp(order, "little") == 0)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: its numbers are not little-endian; load it with PyTorch on this machine and save it "
                   "again",
                   file->map.path);
}

static int read_pickle(struct torch_file *file, struct ot_pickle_value *root) {
    const struct ot_zip_entry *entry = find_entry(file, "data.pkl");
    OT_TRY(check_plain(file, entry));
    if (entry->bytes > MAX_PICKLE_BYTES)
        return ot_fail(OT_E_INPUT, "%s: data.pkl has %zu bytes, more than any model needs (%d)",
                       file->map.path, entry->bytes, MAX_PICKLE_BYTES);
    file->pickle = malloc(entry->bytes + 1);
    if (!file->pickle)
        return ot_fail(OT_E_BUDGET, "%s: no memory for the %zu bytes of data.pkl", file->map.path,
                       entry->bytes);
    OT_TRY(ot_mapped_file_read(&file->map, file->pickle, entry->bytes, entry->at));
    if (ot_crc32(0, file->pickle, entry->bytes) != entry->crc)
        return ot_fail(OT_E_INPUT, "%s: the checksum of data.pkl is wrong; the file is damaged, get it again",
                       file->map.path);
    return ot_pickle_read(file->map.path, file->pickle, entry->bytes, file->values, root);
}

/* ---- tensors ---- */

static int fail_tensor(const struct torch_file *file, const struct ot_safetensor *tensor, const char *what) {
    return ot_fail(OT_E_INPUT, "%s: tensor %s: %s; the file is damaged, get it again", file->map.path,
                   tensor->name, what);
}

static bool is_int(const struct ot_pickle_value *value) {
    return value->kind == OT_PICKLE_INT && value->number >= 0;
}

/* A storage: its persistent id is ("storage", class, key, device, number of values). */
struct storage {
    const struct ot_zip_entry *entry;
    int64_t count;
    int item_bytes;
};

/* Sets the tensor's dtype, which is its storage's. */
static int find_storage(const struct torch_file *file, const struct ot_pickle_items *id,
                        struct ot_safetensor *tensor, struct storage *storage) {
    char name[64];
    int64_t bytes;
    const struct ot_pickle_value *at = id->at;
    if (id->n != 5 || at[0].kind != OT_PICKLE_TEXT || at[0].bytes != 7 ||
        memcmp(at[0].text, "storage", 7) != 0 || at[1].kind != OT_PICKLE_STORAGE_CLASS ||
        at[2].kind != OT_PICKLE_TEXT || !is_int(&at[4]))
        return fail_tensor(file, tensor, "its storage is not described as torch.save does");
    storage->item_bytes = ot_safetensor_set_dtype(tensor, at[1].text) / 8;
    storage->count = at[4].number;
    if (at[2].bytes > 40 || memchr(at[2].text, '\0', at[2].bytes))
        return fail_tensor(file, tensor, "its storage has an impossible key");
    snprintf(name, sizeof name, "data/%.*s", (int)at[2].bytes, at[2].text);
    storage->entry = find_entry(file, name);
    if (!storage->entry)
        return ot_fail(OT_E_INPUT, "%s: tensor %s: its storage %s is not in the archive; get the file again",
                       file->map.path, tensor->name, name);
    OT_TRY(check_plain(file, storage->entry));
    if (__builtin_mul_overflow(storage->count, (int64_t)storage->item_bytes, &bytes) ||
        (uint64_t)bytes != storage->entry->bytes)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s: its storage %s has %zu bytes, which is not %lld values of %s; get the "
                       "file again",
                       file->map.path, tensor->name, name, storage->entry->bytes, (long long)storage->count,
                       tensor->dtype_name);
    return 0;
}

/* Reads shape and strides. Adds the distance from the first value to the last one to *last, and clears
 * *in_order if the values are not in row-major order; dimensions of one element do not matter. */
static int read_shape(const struct torch_file *file, const struct ot_pickle_value *size,
                      const struct ot_pickle_value *stride, struct ot_safetensor *tensor, int64_t *last,
                      bool *in_order) {
    if (size->kind != OT_PICKLE_TUPLE || stride->kind != OT_PICKLE_TUPLE ||
        size->items->n != stride->items->n || size->items->n > OT_SAFETENSORS_MAX_DIMS)
        return fail_tensor(file, tensor, "its shape is not a tuple of at most 8 sizes with as many strides");
    tensor->dims = (int)size->items->n;
    tensor->count = 1;
    for (int i = tensor->dims - 1; i >= 0; i--) {
        const struct ot_pickle_value *n = &size->items->at[i], *step = &stride->items->at[i];
        int64_t distance;
        if (!is_int(n) || !is_int(step))
            return fail_tensor(file, tensor, "a size or a stride is not a whole number of zero or more");
        *in_order = *in_order && (n->number == 1 || step->number == tensor->count);
        tensor->shape[i] = n->number;
        if (__builtin_mul_overflow(tensor->count, n->number, &tensor->count) ||
            (n->number > 0 && (__builtin_mul_overflow(n->number - 1, step->number, &distance) ||
                               __builtin_add_overflow(*last, distance, last))))
            return fail_tensor(file, tensor, "its shape or its strides have more than 2^63 elements");
    }
    return 0;
}

/* A tensor whose values have another order has a dtype that nobody can read. */
static int mark_strided(const struct torch_file *file, struct ot_safetensor *tensor) {
    char text[80];
    int n = snprintf(text, sizeof text, "%s in another order than row-major (call .contiguous() and save it)",
                     tensor->dtype_name);
    tensor->dtype_name = ot_arena_strdup(file->arena, text, (size_t)n);
    tensor->readable = false;
    return tensor->dtype_name ? 0 : -OT_E_BUDGET;
}

/* args: storage, offset, size, stride, requires_grad, hooks, and since PyTorch 2.1 perhaps metadata, which
 * may say that the values are negated. */
static int read_tensor(const struct torch_file *file, const struct ot_pickle_items *args,
                       struct ot_safetensor *tensor) {
    struct storage storage = {0};
    const struct ot_pickle_value *at = args->at;
    int64_t last = 0;
    bool in_order = true;
    if (args->n < 6 || args->n > 7 || at[0].kind != OT_PICKLE_STORAGE || !is_int(&at[1]))
        return fail_tensor(file, tensor, "it is not described as torch.save does");
    if (args->n == 7 && at[6].kind != OT_PICKLE_NONE && (at[6].kind != OT_PICKLE_DICT || at[6].items->n > 0))
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s: has metadata, such as of a negated view; save a .clone() of it",
                       file->map.path, tensor->name);
    OT_TRY(find_storage(file, at[0].items, tensor, &storage));
    OT_TRY(read_shape(file, &at[2], &at[3], tensor, &last, &in_order));
    int64_t offset = at[1].number, room = storage.count - (tensor->count > 0);
    if (offset > room || (tensor->count > 0 && last > room - offset))
        return fail_tensor(file, tensor, "its values are outside its storage");
    tensor->data = file->map.data + storage.entry->at + offset * storage.item_bytes;
    tensor->bytes = (size_t)((tensor->count > 0 ? last + 1 : 0) * storage.item_bytes);
    return in_order || tensor->count == 0 ? 0 : mark_strided(file, tensor);
}

static int read_tensors(struct torch_file *file, const struct ot_pickle_value *root) {
    if (root->kind != OT_PICKLE_DICT)
        return ot_fail(OT_E_INPUT,
                       "%s: holds %s, not a dict of tensors; save the model's state_dict with torch.save",
                       file->map.path, ot_pickle_kind_name(root->kind));
    file->count = (int64_t)root->items->n / 2;
    file->tensors = ot_arena_alloc(file->arena, (size_t)file->count + 1, sizeof *file->tensors);
    if (!file->tensors)
        return -OT_E_BUDGET;
    for (int64_t i = 0; i < file->count; i++) {
        const struct ot_pickle_value *key = &root->items->at[2 * i], *value = key + 1;
        struct ot_safetensor *tensor = &file->tensors[i];
        if (key->kind != OT_PICKLE_TEXT || memchr(key->text, '\0', key->bytes))
            return ot_fail(OT_E_INPUT,
                           "%s: a key of its dict is %s, not the name of a tensor; save the model's "
                           "state_dict with torch.save",
                           file->map.path, ot_pickle_kind_name(key->kind));
        tensor->name = ot_arena_strdup(file->arena, key->text, key->bytes);
        if (!tensor->name)
            return -OT_E_BUDGET;
        if (value->kind != OT_PICKLE_TENSOR)
            return ot_fail(OT_E_INPUT,
                           "%s: %s is %s, not a tensor; save only the model's state_dict with torch.save",
                           file->map.path, tensor->name, ot_pickle_kind_name(value->kind));
        OT_TRY(read_tensor(file, value->items, tensor));
    }
    return 0;
}

int ot_torch_file_open(const char *path, struct ot_safetensors **out) {
    struct torch_file file = {0};
    struct ot_pickle_value root;
    int rc;
    OT_TRY_GOTO(ot_mapped_file_open(path, &file.map), rc, out);
    OT_TRY_GOTO(ot_arena_open(&file.arena), rc, out);
    OT_TRY_GOTO(ot_arena_open(&file.values), rc, out);
    OT_TRY_GOTO(refuse_legacy(&file.map), rc, out);
    OT_TRY_GOTO(ot_zip_read(&file.map, file.arena, &file.zip), rc, out);
    OT_TRY_GOTO(find_folder(&file), rc, out);
    OT_TRY_GOTO(check_byteorder(&file), rc, out);
    OT_TRY_GOTO(read_pickle(&file, &root), rc, out);
    OT_TRY_GOTO(ot_mapped_file_map(&file.map), rc, out);
    OT_TRY_GOTO(read_tensors(&file, &root), rc, out);
    rc = ot_safetensors_adopt(&file.map, &file.arena, file.tensors, file.count, out);
out:
    free(file.pickle);
    ot_arena_close(file.values);
    ot_arena_close(file.arena);
    ot_mapped_file_close(&file.map);
    return rc;
}
