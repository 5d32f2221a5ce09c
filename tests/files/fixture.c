#include "tests/files/fixture.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/block.h"

void write_raw_safetensors(const char *folder, const char *name, const char *header, const void *data,
                           size_t bytes) {
    size_t length = strlen(header);
    char *file = malloc(8 + length + bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (char)(unsigned char)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    if (bytes)
        memcpy(file + 8 + length, data, bytes);
    write_file(folder, name, file, 8 + length + bytes);
    free(file);
}

void write_text(const char *folder, const char *name, const char *text) {
    write_file(folder, name, text, strlen(text));
}

const char *in_folder(const char *folder, const char *name) {
    static char paths[64][1024];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

char *read_text(const char *folder, const char *name, size_t *bytes) {
    FILE *file = fopen(in_folder(folder, name), "rb");
    struct stat info;
    if (!file)
        fail_msg("%s/%s does not exist", folder, name);
    assert_int_equal(fstat(fileno(file), &info), 0);
    char *text = malloc((size_t)info.st_size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)info.st_size, file), info.st_size);
    text[info.st_size] = '\0';
    fclose(file);
    if (bytes)
        *bytes = (size_t)info.st_size;
    return text;
}

bool file_exists(const char *folder, const char *name) {
    return access(in_folder(folder, name), F_OK) == 0;
}

int count_entries(const char *folder) {
    int count = -2;
    DIR *dir = opendir(folder);
    if (!dir)
        fail_msg("cannot open the folder %s", folder);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

/* ---- the tiny model ---- */

struct ot_model_config tiny_config(bool tied) {
    return (struct ot_model_config){.family = OT_FAMILY_LLAMA,
                                    .n_layers = 2,
                                    .hidden = 16,
                                    .ffn = 24,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .head_dim = 4,
                                    .rotary_dim = 4,
                                    .vocab = 24,
                                    .max_position = 64,
                                    .norm = OT_NORM_RMS,
                                    .norm_eps = 1e-5f,
                                    .act = OT_ACT_SILU,
                                    .rope.theta = 1e4,
                                    .init_std = 0.02,
                                    .tied = tied};
}

const char *tiny_config_text(bool tied, const char *more) {
    static char text[2048];
    snprintf(text, sizeof text,
             "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 16, "
             "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
             "\"num_key_value_heads\": 2, \"vocab_size\": 24, \"max_position_embeddings\": 64, "
             "\"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", \"tie_word_embeddings\": %s%s}",
             tied ? "true" : "false", more);
    return text;
}

/* Multiples of 1/64 below 4 need 8 bits: bf16, fp16 and fp32 represent them exactly. */
float tiny_value(int slab, int64_t index) {
    return (float)((index * 37 + slab * 11) % 256 - 128) / 64;
}

struct params *params_open(const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    struct params *params = calloc(1, sizeof *params);
    assert_non_null(params);
    params->model = model;
    params->slabs = calloc((size_t)chain->n_slabs, sizeof *params->slabs);
    params->next = calloc((size_t)chain->n_slabs, sizeof *params->next);
    assert_non_null(params->slabs);
    assert_non_null(params->next);
    for (int s = 0; s < chain->n_slabs; s++) {
        params->slabs[s] = malloc((size_t)chain->slabs[s].n_params * sizeof(float));
        assert_non_null(params->slabs[s]);
        memset(params->slabs[s], 0xff, (size_t)chain->slabs[s].n_params * sizeof(float));
    }
    return params;
}

void params_fill(struct params *params) {
    const struct ot_chain *chain = ot_model_chain(params->model);
    for (int s = 0; s < chain->n_slabs; s++)
        memset(params->slabs[s], 0, (size_t)chain->slabs[s].n_params * sizeof(float));
    for (int64_t i = 0; i < ot_model_tensor_count(params->model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(params->model, i);
        for (int64_t k = 0; k < tensor->rows * tensor->cols; k++)
            params->slabs[tensor->slab][tensor->first + k] = tiny_value(tensor->slab, tensor->first + k);
    }
}

void params_close(struct params *params) {
    for (int s = 0; s < ot_model_chain(params->model)->n_slabs; s++)
        free(params->slabs[s]);
    free(params->slabs);
    free(params->next);
    free(params);
}

int params_sink(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct params *params = context;
    assert_true(slab >= params->on_slab);
    params->on_slab = slab;
    assert_int_equal(first, params->next[slab]);
    params->next[slab] += n;
    assert_true(params->next[slab] <= ot_model_chain(params->model)->slabs[slab].n_params);
    memcpy(params->slabs[slab] + first, values, (size_t)n * sizeof *values);
    if (++params->calls == params->stop_at)
        return ot_fail(OT_E_DEVICE, "the sink had enough");
    return 0;
}

int params_source(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct params *params = context;
    if (++params->calls == params->stop_at)
        return ot_fail(OT_E_DEVICE, "the source ran dry");
    memcpy(values, params->slabs[slab] + first, (size_t)n * sizeof *values);
    return 0;
}

void params_check_equal(const struct params *got, const struct params *want) {
    const struct ot_chain *chain = ot_model_chain(want->model);
    for (int s = 0; s < chain->n_slabs; s++)
        assert_memory_equal(got->slabs[s], want->slabs[s], (size_t)chain->slabs[s].n_params * sizeof(float));
}

/* ---- faulty system calls ---- */

struct faults faults;

void faults_clear(void) {
    faults = (struct faults){.write_bytes = -1, .free_bytes = -1};
}

static ssize_t faulty_write(void *context, int fd, const void *data, size_t bytes) {
    if (faults.interrupts > 0) {
        faults.interrupts--;
        return -EINTR;
    }
    if (faults.write_bytes == 0)
        return -ENOSPC;
    if (faults.short_writes && bytes > 3)
        bytes = 3;
    if (faults.write_bytes > 0 && (int64_t)bytes > faults.write_bytes)
        bytes = (size_t)faults.write_bytes;
    ssize_t n = ot_io_system.write(context, fd, data, bytes);
    if (n > 0 && faults.write_bytes > 0)
        faults.write_bytes -= n;
    return n;
}

static int faulty_fsync(void *context, int fd) {
    return faults.fail_fsync ? -EIO : ot_io_system.fsync(context, fd);
}

static int faulty_allocate(void *context, int fd, int mode, off_t offset, off_t bytes) {
    return faults.fail_reserve ? -ENOSPC : ot_io_system.allocate(context, fd, mode, offset, bytes);
}

static int faulty_exchange(void *context, const char *a, const char *b) {
    return faults.no_exchange ? -EINVAL : ot_io_system.exchange(context, a, b);
}

static int faulty_remove(void *context, int dir_fd, const char *name, int flags) {
    return ot_io_system.remove(context, dir_fd, name, flags);
}

static int64_t faulty_free_bytes(void *context, const char *path) {
    return faults.free_bytes >= 0 ? faults.free_bytes : ot_io_system.free_bytes(context, path);
}

const struct ot_io_calls faulty_calls = {.write = faulty_write,
                                         .fsync = faulty_fsync,
                                         .allocate = faulty_allocate,
                                         .exchange = faulty_exchange,
                                         .free_bytes = faulty_free_bytes,
                                         .remove = faulty_remove};

/* ---- a model with one change ---- */

void write_model(const char *folder, const struct ot_model *model, const struct edit *edit) {
    static char header[1 << 16];
    float *data = calloc((size_t)ot_model_param_count(ot_model_get_config(model)) + 4096, sizeof *data);
    size_t length = 0, values = 0;
    assert_non_null(data);
    length += (size_t)snprintf(header, sizeof header, "{");
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        const char *name = t->name, *prefix = "";
        int64_t rows = t->rows, count;
        if (edit->drop && strcmp(name, edit->drop) == 0)
            continue;
        rows += edit->odd_shape && strcmp(name, edit->odd_shape) == 0;
        count = rows * t->cols;
        for (int64_t k = 0; k < count; k++)
            data[values + (size_t)k] = tiny_value(t->slab, t->first + k);
        if (edit->bad_value && strcmp(name, edit->bad_value) == 0)
            data[values + 3] = NAN;
        bool odd = edit->odd_dtype && strcmp(name, edit->odd_dtype) == 0;
        if (edit->rename_from && strncmp(name, edit->rename_from, strlen(edit->rename_from)) == 0) {
            name += strlen(edit->rename_from);
            prefix = edit->rename_to;
        }
        char shape[64] = "";
        if (t->dims == 2)
            snprintf(shape, sizeof shape, "%lld,", (long long)rows);
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%lld", (long long)t->cols);
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                   length > 1 ? "," : "", prefix, name, odd ? "I32" : "F32", shape,
                                   values * 4, (values + (size_t)count) * 4);
        values += (size_t)count;
    }
    for (const char *name = edit->more; name && *name; values++) {
        int bytes = (int)strcspn(name, " ");
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   ",\"%.*s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                                   bytes, name, values * 4, values * 4 + 4);
        name += bytes + (name[bytes] == ' ');
    }
    if (edit->copy) {
        size_t count = 24 * 16;
        memcpy(data + values, data, count * sizeof *data); /* the first tensor of the model */
        data[values + count - 1] += edit->copy_differs;
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   ",\"%s\":{\"dtype\":\"F32\",\"shape\":[24,16],\"data_offsets\":[%zu,%zu]}",
                                   edit->copy, values * 4, (values + count) * 4);
        values += count;
    }
    snprintf(header + length, sizeof header - length, "}");
    write_raw_safetensors(folder, "model.safetensors", header, data, values * 4);
    free(data);
}
