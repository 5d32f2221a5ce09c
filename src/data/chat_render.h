/* Renders conversations by a Jinja template, and marks the parts of the text that train. The template is a
 * model's renderer, the text in its directory, or a built-in one (chat_template.h).
 *
 * A built-in template marks the trained text with {% generation %}: every assistant turn that is not blank,
 * together with its end-of-turn mark. It marks the user's text too. The tokenizer's BOS and EOS are added to
 * its text as to any other row.
 *
 * A model's own template renders a row as transformers' apply_chat_template does. The row's tokens are those
 * of this text: no BOS is added, and an EOS only if no special token ends the text. Trained parts:
 *
 * 1. In templates that mark answers with {% generation %}, as TRL's training templates do: these blocks. 2.
 * In all others: what prefixes show. The conversation is rendered up to an assistant turn, with the
 *    prompt that asks for an answer; that must be a beginning of the whole text, and the turn begins behind
 *    it. The conversation is rendered up to and with the turn; that must be a beginning of the whole text
 *    too, and the turn ends there, without the white space behind its last special token. A turn without a
 * special token takes the one that follows it. So the model learns to write exactly the text that it must
 * generate in use, and where to stop. scripts/golden/chat_masks.py compares both ways.
 *
 * Some templates write an earlier answer in another way once later turns follow: those that leave out
 * earlier thoughts, for example. If the only difference is a frame before the answer that the template
 * itself adds to the last turn (an empty block of thoughts), the answer trains as it stands. If the turn's
 * own thoughts are gone, the turn does not train: it would teach the model to answer without thinking. The
 * row keeps its other turns, the turns are counted, and the program says so. A row is refused if none of its
 * turns has an exact place. If the template's prompt is no beginning of its text (some end with a mark of
 * thoughts that answers lack), the turn begins where both part.
 *
 * The program also says when the template's output lacks the text of a turn.
 *
 * Threads: a template never changes once open.
 */
#ifndef OT_DATA_CHAT_RENDER_H
#define OT_DATA_CHAT_RENDER_H

#include "src/data/chat_template.h"
#include "src/data/conversation.h"
#include "src/data/template.h"

struct ot_chat_renderer;

/* The token that templates write as BOS or EOS. 0 bytes: the tokenizer has none. id: the token itself if the
 * tokenizer does not find it in every text that spells it; otherwise -1. */
struct ot_chat_mark {
    const char *text;
    size_t bytes;
    int32_t id;
};
struct ot_chat_marks {
    struct ot_chat_mark bos, eos;
};

/* Parses the template. name: for errors. tokens: tokenizer_config.json, whose special tokens the template
 * sees; NULL: it sees `marks`. A text that cannot be parsed is no error here, but at the first use. Errors:
 * OT_E_BUDGET. */
int ot_chat_renderer_open(const char *jinja, size_t bytes, const char *name, const struct ot_json *tokens,
                          struct ot_chat_renderer **out);
/* Opens a built-in template. Errors: OT_E_BUDGET. */
int ot_chat_renderer_open_builtin(const struct ot_chat_template *t, struct ot_chat_renderer **out);
/* A checksum of all that the renderer's texts depend on. */
uint32_t ot_chat_renderer_crc(const struct ot_chat_renderer *renderer);
/* Sets the template for conversations with tools, if the model has a separate one. Errors: OT_E_BUDGET. */
int ot_chat_renderer_add_tools(struct ot_chat_renderer *renderer, const char *jinja, size_t bytes,
                               const char *name);
void ot_chat_renderer_close(struct ot_chat_renderer *renderer); /* NULL is fine */
/* The built-in template that renders plain conversations in the same way; NULL: none. */
const struct ot_chat_template *ot_chat_renderer_known(const struct ot_chat_renderer *renderer);
/* A sentence why the template cannot be used; NULL: it can. */
const char *ot_chat_renderer_fault(const struct ot_chat_renderer *renderer);

/* Renders a conversation. marks: BOS and EOS of the tokenizer. Errors: OT_E_INPUT with `where` in front (the
 * template refuses the conversation, or has no place for something in it, or no turn has an exact place),
 * OT_E_BUDGET. */
int ot_chat_renderer_render(const struct ot_chat_renderer *renderer, const struct ot_conversation *c,
                            const struct ot_tokenizer *tokenizer, const struct ot_chat_marks *marks,
                            const char *where, struct ot_rendered *r);
/* Renders the prompt for the model's next answer: nothing trains. */
int ot_chat_renderer_prompt(const struct ot_chat_renderer *renderer, const struct ot_conversation *c,
                            const struct ot_chat_marks *marks, const char *where, struct ot_rendered *r);

#endif
