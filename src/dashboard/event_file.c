#include "src/dashboard/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"

struct ot_event_file {
    int fd;
    char *path;
    int64_t step;
    struct ot_string_builder summary; /* of the open record */
};

/* ---- checksums ---- */

/* CRC-32C (Castagnoli, reflected: 0x82f63b78), a bit at a time: a record has some hundred bytes. */
static uint32_t crc32c(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t bytes) {
    uint32_t crc = crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* ---- the wire format of protocol buffers ---- */

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(struct ot_string_builder *b, uint64_t value) {
    char bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (char)(value | 0x80);
    bytes[n++] = (char)value;
    ot_string_append(b, bytes, n);
}

static void put_key(struct ot_string_builder *b, unsigned field, enum wire wire) {
    put_varint(b, field << 3 | wire);
}

static void put_integer(struct ot_string_builder *b, unsigned field, int64_t value) {
    put_key(b, field, VARINT);
    put_varint(b, (uint64_t)value);
}

static void put_fixed(struct ot_string_builder *b, uint64_t bits, int n) {
    char bytes[8];
    for (int i = 0; i < n; i++)
        bytes[i] = (char)(bits >> 8 * i);
    ot_string_append(b, bytes, (size_t)n);
}

static void put_double(struct ot_string_builder *b, unsigned field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(b, field, FIXED64);
    put_fixed(b, bits, 8);
}

static void put_float(struct ot_string_builder *b, unsigned field, double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    put_key(b, field, FIXED32);
    put_fixed(b, bits, 4);
}

static void put_bytes(struct ot_string_builder *b, unsigned field, const char *text, size_t bytes) {
    put_key(b, field, BYTES);
    put_varint(b, bytes);
    ot_string_append(b, text, bytes);
}

static void put_text(struct ot_string_builder *b, unsigned field, const char *text) {
    put_bytes(b, field, text, strlen(text));
}

/* Puts a message that was built apart, and frees it. */
static void put_message(struct ot_string_builder *b, unsigned field, struct ot_string_builder *message) {
    b->failed = b->failed || message->failed;
    put_bytes(b, field, message->text, message->bytes);
    free(message->text);
    *message = (struct ot_string_builder){0};
}

/* ---- records ---- */

static double wall_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int write_record(struct ot_event_file *f, const struct ot_string_builder *event) {
    struct ot_string_builder record = {.failed = event->failed};
    put_fixed(&record, event->bytes, 8);
    if (!record.failed)
        put_fixed(&record, masked(record.text, 8), 4);
    ot_string_append(&record, event->text, event->bytes);
    put_fixed(&record, masked(event->text, event->bytes), 4);
    int rc = 0;
    if (record.failed) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory for a record", f->path);
    } else {
        int error = ot_write_all(NULL, f->fd, record.text, record.bytes);
        if (error < 0)
            rc = ot_fail_errno(OT_E_IO, -error, "%s: cannot write", f->path);
    }
    free(record.text);
    return rc;
}

/* Writes an event with one more field, and frees the message. */
static int write_event(struct ot_event_file *f, int64_t step, unsigned field,
                       struct ot_string_builder *message) {
    struct ot_string_builder event = {0};
    put_double(&event, 1, wall_time());
    put_integer(&event, 2, step);
    put_message(&event, field, message);
    int rc = write_record(f, &event);
    free(event.text);
    return rc;
}

/* The version of the file, then the start of a session: TensorBoard forgets this step and later ones of older
 * files. */
static int write_head(struct ot_event_file *f, int64_t step) {
    struct ot_string_builder version = {0}, session = {0};
    ot_string_append_text(&version, "brain.Event:2");
    OT_TRY(write_event(f, 0, 3, &version));
    put_integer(&session, 1, 1); /* status: START */
    return write_event(f, step, 7, &session);
}

int ot_event_file_open(const char *dir, int64_t step, struct ot_event_file **out) {
    struct ot_event_file *f = calloc(1, sizeof *f);
    char host[256] = "localhost";
    int rc;
    *out = NULL;
    if (!f)
        return ot_fail(OT_E_BUDGET, "%s: no memory for an event file", dir);
    f->fd = -1;
    gethostname(host, sizeof host - 1);
    OT_TRY_GOTO(ot_string_format(&f->path, "%s/events.out.tfevents.%010lld.%s.%lld.0", dir,
                                 (long long)time(NULL), host, (long long)getpid()),
                rc, out);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
    rc = f->fd < 0 ? ot_fail_errno(OT_E_IO, errno, "%s: cannot make the file", f->path) : write_head(f, step);
out:
    if (rc < 0)
        ot_event_file_close(f);
    else
        *out = f;
    return rc;
}

void ot_event_file_close(struct ot_event_file *f) {
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->summary.text);
    free(f->path);
    free(f);
}

/* ---- values ---- */

void ot_event_begin(struct ot_event_file *f, int64_t step) {
    free(f->summary.text);
    f->summary = (struct ot_string_builder){0};
    f->step = step;
}

int ot_event_end(struct ot_event_file *f) {
    return write_event(f, f->step, 5, &f->summary);
}

void ot_event_add_scalar(struct ot_event_file *f, const char *tag, double value) {
    struct ot_string_builder v = {0};
    put_text(&v, 1, tag);
    put_float(&v, 2, value); /* simple_value */
    put_message(&f->summary, 1, &v);
}

/* SummaryMetadata: the plugin that shows a value, and what the plugin knows of it. */
static void put_metadata(struct ot_string_builder *value, const char *plugin,
                         struct ot_string_builder *content) {
    struct ot_string_builder data = {0}, metadata = {0};
    put_text(&data, 1, plugin);
    put_message(&data, 2, content);
    put_message(&metadata, 1, &data);
    put_integer(&metadata, 4, 2); /* data_class: TENSOR */
    put_message(value, 9, &metadata);
}

void ot_event_add_text(struct ot_event_file *f, const char *tag, const char *text, size_t bytes) {
    struct ot_string_builder v = {0}, size = {0}, shape = {0}, tensor = {0}, none = {0};
    put_integer(&size, 1, 1);
    put_message(&shape, 2, &size); /* one string */
    put_integer(&tensor, 1, 7);    /* DT_STRING */
    put_message(&tensor, 2, &shape);
    put_bytes(&tensor, 8, text, bytes);
    put_text(&v, 1, tag);
    put_message(&v, 8, &tensor);
    put_metadata(&v, "text", &none);
    put_message(&f->summary, 1, &v);
}

/* HParamsPluginData lies in the metadata; the tensor has no meaning, but must be there. */
static void add_plugin_data(struct ot_event_file *f, const char *tag, struct ot_string_builder *data) {
    struct ot_string_builder v = {0}, tensor = {0}, shape = {0};
    put_integer(&tensor, 1, 1); /* DT_FLOAT */
    put_message(&tensor, 2, &shape);
    put_float(&tensor, 5, 0);
    put_text(&v, 1, tag);
    put_message(&v, 8, &tensor);
    put_metadata(&v, "hparams", data);
    put_message(&f->summary, 1, &v);
}

/* google.protobuf.Value. False: the value is none of these. */
static bool put_value(struct ot_string_builder *b, const struct ot_json *value) {
    size_t bytes;
    const char *text;
    switch (ot_json_type(value)) {
    case OT_JSON_INT:
    case OT_JSON_REAL:
        put_double(b, 2, ot_json_real(value, 0));
        return true;
    case OT_JSON_STRING:
        text = ot_json_string(value, &bytes);
        put_bytes(b, 3, text, bytes);
        return true;
    case OT_JSON_BOOL:
        put_integer(b, 4, ot_json_bool(value, false));
        return true;
    default:
        return false;
    }
}

void ot_event_add_hparams(struct ot_event_file *f, const struct ot_json *values) {
    struct ot_string_builder start = {0}, data = {0};
    struct ot_json *member;
    const char *key;
    void *cursor = NULL;
    while (ot_json_next(values, &cursor, &key, &member)) {
        struct ot_string_builder value = {0}, entry = {0};
        if (!put_value(&value, member))
            continue;
        put_text(&entry, 1, key);
        put_message(&entry, 2, &value);
        put_message(&start, 1, &entry); /* hparams */
    }
    put_double(&start, 5, wall_time()); /* start_time_secs */
    put_message(&data, 3, &start);      /* session_start_info */
    add_plugin_data(f, "_hparams_/session_start_info", &data);
}

void ot_event_add_success(struct ot_event_file *f) {
    struct ot_string_builder end = {0}, data = {0};
    put_integer(&end, 1, 1); /* status: STATUS_SUCCESS */
    put_double(&end, 2, wall_time());
    put_message(&data, 4, &end); /* session_end_info */
    add_plugin_data(f, "_hparams_/session_end_info", &data);
}
