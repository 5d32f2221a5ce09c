#include "kernels/cuda/cuda_gemm_cache.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

static const char magic[8] = "OTGEMM2\n";
enum {
    HEADER_BYTES = 16,
    KEY_BYTES = sizeof(struct ot_gemm_key),
    ALGO_BYTES = sizeof(struct ot_cublaslt_algo),
    CHOICE_BYTES = KEY_BYTES + ALGO_BYTES,
    KEY_WORDS = 6, /* eight-byte numbers at the start of a key; single bytes follow */
    ALGO_WORDS = 8,
    MAX_CHOICES = 1 << 16, /* 8 MiB: no run meets so many shapes, so a file with more is damaged */
    MAX_BYTES = HEADER_BYTES + 4 + 256 + MAX_CHOICES * CHOICE_BYTES,
};

/* ---- numbers ---- */

static void put_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_u32(const uint8_t *from) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value |= (uint32_t)from[i] << 8 * i;
    return value;
}

static void put_words(uint8_t *to, const void *from, int n) {
    for (int i = 0; i < n; i++) {
        uint64_t word;
        memcpy(&word, (const char *)from + 8 * i, sizeof word);
        put_u32(to + 8 * i, (uint32_t)word);
        put_u32(to + 8 * i + 4, (uint32_t)(word >> 32));
    }
}

static void get_words(void *to, const uint8_t *from, int n) {
    for (int i = 0; i < n; i++) {
        uint64_t word = get_u32(from + 8 * i) | (uint64_t)get_u32(from + 8 * i + 4) << 32;
        memcpy((char *)to + 8 * i, &word, sizeof word);
    }
}

static void put_choice(uint8_t *to, const struct ot_gemm_choice *choice) {
    put_words(to, &choice->key, KEY_WORDS);
    memcpy(to + 8 * KEY_WORDS, (const char *)&choice->key + 8 * KEY_WORDS, KEY_BYTES - 8 * KEY_WORDS);
    put_words(to + KEY_BYTES, &choice->algo, ALGO_WORDS);
}

static void get_choice(struct ot_gemm_choice *to, const uint8_t *from) {
    get_words(&to->key, from, KEY_WORDS);
    memcpy((char *)&to->key + 8 * KEY_WORDS, from + 8 * KEY_WORDS, KEY_BYTES - 8 * KEY_WORDS);
    get_words(&to->algo, from + KEY_BYTES, ALGO_WORDS);
}

static uint32_t checksum(const void *data, size_t bytes) {
    return (uint32_t)crc32_z(0, data, bytes);
}

/* ---- reading ---- */

static int by_key(const void *a, const void *b) {
    return memcmp(&((const struct ot_gemm_choice *)a)->key, &((const struct ot_gemm_choice *)b)->key,
                  KEY_BYTES);
}

static bool is_whole(const uint8_t *data, size_t bytes, const char *identity) {
    size_t identity_bytes = strlen(identity);
    return bytes >= HEADER_BYTES + 4 && memcmp(data, magic, sizeof magic) == 0 &&
           get_u32(data + 8) == identity_bytes && get_u32(data + 12) <= MAX_CHOICES &&
           bytes == HEADER_BYTES + identity_bytes + (size_t)get_u32(data + 12) * CHOICE_BYTES + 4 &&
           memcmp(data + HEADER_BYTES, identity, identity_bytes) == 0 &&
           get_u32(data + bytes - 4) == checksum(data, bytes - 4);
}

int ot_gemm_cache_read(const char *path, const char *identity, struct ot_gemm_choice **out, size_t *n) {
    *out = NULL;
    *n = 0;
    size_t bytes;
    char *file;
    OT_TRY(ot_cache_read(path, MAX_BYTES, &file, &bytes));
    const uint8_t *data = (const uint8_t *)file;
    if (!file || !is_whole(data, bytes, identity)) {
        free(file);
        return 0;
    }
    size_t count = get_u32(data + 12);
    struct ot_gemm_choice *choices = calloc(count + 1, sizeof *choices);
    if (choices)
        for (size_t i = 0; i < count; i++)
            get_choice(&choices[i], data + HEADER_BYTES + strlen(identity) + i * CHOICE_BYTES);
    free(file);
    if (!choices)
        return ot_fail(OT_E_BUDGET, "no host memory for %s", path);
    qsort(choices, count, sizeof *choices, by_key);
    *out = choices;
    *n = count;
    return 0;
}

const struct ot_gemm_choice *ot_gemm_cache_find(const struct ot_gemm_choice *choices, size_t n,
                                                const struct ot_gemm_key *key) {
    const struct ot_gemm_choice wanted = {.key = *key};
    return n ? bsearch(&wanted, choices, n, sizeof *choices, by_key) : NULL;
}

/* ---- writing ---- */

int ot_gemm_cache_path(const char *folder, const char *identity, char **out) {
    return ot_string_format(out, "%s/gemm-%08x", folder, (unsigned)checksum(identity, strlen(identity)));
}

int ot_gemm_cache_write(const char *path, const char *identity, const struct ot_gemm_choice *choices,
                        size_t n) {
    size_t identity_bytes = strlen(identity), kept = ot_min(n, MAX_CHOICES);
    size_t bytes = HEADER_BYTES + identity_bytes + kept * CHOICE_BYTES + 4;
    uint8_t *data = malloc(bytes);
    if (!data)
        return ot_fail(OT_E_BUDGET, "no host memory for %s", path);
    memcpy(data, magic, sizeof magic);
    put_u32(data + 8, (uint32_t)identity_bytes);
    put_u32(data + 12, (uint32_t)kept);
    memcpy(data + HEADER_BYTES, identity, identity_bytes);
    for (size_t i = 0; i < kept; i++)
        put_choice(data + HEADER_BYTES + identity_bytes + i * CHOICE_BYTES, &choices[i]);
    put_u32(data + bytes - 4, checksum(data, bytes - 4));
    int rc = ot_cache_write(path, data, bytes);
    free(data);
    return rc;
}
