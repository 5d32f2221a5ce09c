/* What the built-in chat templates are made of. For chat_template.c, chat_known.c and their tests. */
#ifndef OT_DATA_CHAT_TABLE_H
#define OT_DATA_CHAT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The texts around turns, with {bos} and {eos} for the tokenizer's own tokens. NULL: nothing. */
struct ot_chat_template {
    const char *name;
    const char *own_token; /* a special token that only tokenizers made for this template have; NULL: none */
    bool trim_prompt,
        trim_answer;     /* white space around what system and user, or the assistant, say is dropped */
    bool system_in_user; /* a system turn becomes the beginning of what the user's says */
    bool system_in_last; /* with that: of the last user's turn, not of the next */
    bool no_system;      /* system turns are refused */
    bool alternates;     /* user and assistant in turns, behind at most one system turn; else refused */
    bool thinks;         /* a last answer has a <think> block, which is empty where the row has none */
    const char *start;   /* before everything */
    const char *preamble, *preamble_input; /* without a system turn; the second, where there is an input */
    const char *system_begin, *system_end;
    const char *system_again; /* begins a system turn that is not the first turn; NULL: system_begin */
    const char *user_begin, *user_end;
    const char *input_begin;               /* between an instruction and its input */
    const char *answer_head;               /* what generation starts from */
    const char *answer_begin, *answer_end; /* around the answer; these train */
    const char *answer_tail;               /* not trained */
};

/* NULL behind the last. */
const struct ot_chat_template *ot_chat_template_at(int index);

/* A Jinja text's hash (FNV-1a, 64 bits) and length as Jinja reads it: every line end is \n, and one at the
 * end of the text is left out. */
uint64_t ot_chat_hash_text(const char *text, size_t n, size_t *bytes);
/* The name of the published text with that length and hash, or NULL. */
const char *ot_chat_known_name(size_t bytes, uint64_t hash);

#endif
