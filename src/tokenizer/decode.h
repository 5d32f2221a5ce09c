/* Decoding with reusable memory, shared by ot_tokenizer_decode and the stream. Private to src/tokenizer. */
#ifndef OT_TOKENIZER_DECODE_H
#define OT_TOKENIZER_DECODE_H

#include "src/tokenizer/tokenizer_state.h"

struct ot_texts { /* texts one after another; text i ends at ends[i] */
    char *bytes;
    size_t n, capacity;
    size_t most; /* bytes that it may have; 0: any number */
    size_t *ends;
    size_t count, ends_capacity;
};

struct ot_decoding {
    struct ot_regex_scratch *regex;
    struct ot_texts lists[2], run;
    const char *text; /* the result, ending with a NUL; valid until the next decode */
    size_t bytes;
    bool open; /* the ids end inside a character: further ids would change the end of the text */
};

/* False for an id without a token, and for a special token if skip_special. */
bool ot_decode_gives_text(const struct ot_tokenizer *t, int32_t id, bool skip_special);
int ot_decode(const struct ot_tokenizer *t, struct ot_decoding *x, const int32_t *ids, size_t n,
              bool skip_special);

#endif
