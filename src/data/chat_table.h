/* The parts of the built-in chat templates. For chat_template.c, chat_known.c and their tests. */
#ifndef OT_DATA_CHAT_TABLE_H
#define OT_DATA_CHAT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The texts around turns. {bos} and {eos} stand for the tokenizer's own tokens. NULL: no text. */
struct ot_chat_template {
    const char *name;
    const char *own_token; /* a special token that only this template's tokenizers have; NULL: none */
    /* Drop white space around the contents: of system and user turns; of assistant turns. */
    bool trim_prompt, trim_answer;
    bool system_in_user; /* a system turn is put in front of a user's turn */
    bool system_in_last; /* with system_in_user: the user's last turn, not the next one */
    bool no_system;      /* system turns are refused */
    bool alternates;     /* user and assistant must alternate, after at most one system turn */
    bool thinks;         /* the last answer gets a <think> block, which is empty if the row has none */
    const char *start;   /* before all turns */
    const char *preamble, *preamble_input; /* without a system turn; the second if there is an input */
    const char *system_begin, *system_end;
    const char *system_again; /* begins a system turn that is not first; NULL: as system_begin */
    const char *user_begin, *user_end;
    const char *input_begin;               /* between an instruction and its input */
    const char *answer_head;               /* the text from which generation starts */
    const char *answer_begin, *answer_end; /* around the answer; these train */
    const char *answer_tail;               /* not trained */
};

/* NULL after the last template. */
const struct ot_chat_template *ot_chat_template_at(int index);

/* Hash (64-bit FNV-1a) and length of a Jinja text as Jinja reads it: every line end is \n, and a line end at
 * the end of the text is dropped. */
uint64_t ot_chat_hash_text(const char *text, size_t n, size_t *bytes);
/* Name of the published template with that length and hash; NULL: unknown. */
const char *ot_chat_known_name(size_t bytes, uint64_t hash);

#endif
