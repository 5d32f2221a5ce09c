/* Little-endian numbers at any address, as GGUF stores them. */
#ifndef OT_GGUF_LITTLE_H
#define OT_GGUF_LITTLE_H

#include <stdint.h>

static inline uint16_t ot_little_u16(const unsigned char *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t ot_little_u32(const unsigned char *at) {
    return (uint32_t)ot_little_u16(at) | (uint32_t)ot_little_u16(at + 2) << 16;
}

static inline uint64_t ot_little_u64(const unsigned char *at) {
    return (uint64_t)ot_little_u32(at) | (uint64_t)ot_little_u32(at + 4) << 32;
}

static inline void ot_little_put_u16(unsigned char *at, uint16_t value) {
    at[0] = (unsigned char)value;
    at[1] = (unsigned char)(value >> 8);
}

static inline void ot_little_put_u64(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

#endif
