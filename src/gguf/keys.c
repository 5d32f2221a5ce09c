/* The keys of a file that is written. */
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/gguf/little.h"
#include "src/gguf/writer.h"

void ot_gguf_append_number(struct ot_string_builder *out, uint64_t value, int bytes) {
    unsigned char raw[8];
    ot_little_put_u64(raw, value, bytes);
    ot_string_append(out, (const char *)raw, (size_t)bytes);
}

static void put_number(struct ot_gguf_keys *keys, uint64_t value, int bytes) {
    ot_gguf_append_number(&keys->out, value, bytes);
}

void ot_gguf_put_string_item(struct ot_gguf_keys *keys, const char *text, size_t bytes) {
    put_number(keys, bytes, 8);
    ot_string_append(&keys->out, text, bytes);
}

void ot_gguf_put_i32_item(struct ot_gguf_keys *keys, int32_t value) {
    put_number(keys, (uint32_t)value, 4);
}

void ot_gguf_put_f32_item(struct ot_gguf_keys *keys, float value) {
    put_number(keys, ot_f32_bits(value), 4);
}

void ot_gguf_put_bool_item(struct ot_gguf_keys *keys, bool value) {
    put_number(keys, value, 1);
}

static void begin(struct ot_gguf_keys *keys, const char *key, enum ot_gguf_kind kind) {
    ot_gguf_put_string_item(keys, key, strlen(key));
    put_number(keys, kind, 4);
    keys->n++;
}

void ot_gguf_put_u32(struct ot_gguf_keys *keys, const char *key, uint32_t value) {
    begin(keys, key, OT_GGUF_KIND_U32);
    put_number(keys, value, 4);
}

void ot_gguf_put_f32(struct ot_gguf_keys *keys, const char *key, float value) {
    begin(keys, key, OT_GGUF_KIND_F32);
    ot_gguf_put_f32_item(keys, value);
}

void ot_gguf_put_bool(struct ot_gguf_keys *keys, const char *key, bool value) {
    begin(keys, key, OT_GGUF_KIND_BOOL);
    put_number(keys, value, 1);
}

void ot_gguf_put_string(struct ot_gguf_keys *keys, const char *key, const char *text, size_t bytes) {
    begin(keys, key, OT_GGUF_KIND_STRING);
    ot_gguf_put_string_item(keys, text, bytes);
}

void ot_gguf_put_text(struct ot_gguf_keys *keys, const char *key, const char *text) {
    ot_gguf_put_string(keys, key, text, strlen(text));
}

void ot_gguf_put_array(struct ot_gguf_keys *keys, const char *key, enum ot_gguf_kind item, int64_t n) {
    begin(keys, key, OT_GGUF_KIND_ARRAY);
    put_number(keys, item, 4);
    put_number(keys, (uint64_t)n, 8);
}

void ot_gguf_keys_free(struct ot_gguf_keys *keys) {
    free(keys->out.text);
    *keys = (struct ot_gguf_keys){0};
}

void ot_gguf_put_bytes(struct ot_gguf_keys *keys, const char *key, const void *bytes, size_t n) {
    ot_gguf_put_array(keys, key, OT_GGUF_KIND_U8, (int64_t)n);
    ot_string_append(&keys->out, bytes, n);
}
