/* Private header: chat_render.c renders conversations, chat_render_mask.c marks the trained text. */
#ifndef OT_DATA_CHAT_RENDER_STATE_H
#define OT_DATA_CHAT_RENDER_STATE_H

#include <stdatomic.h>

#include "src/data/chat_render.h"
#include "src/jinja/jinja.h"

struct ot_chat_renderer {
    struct ot_jinja *jinja; /* NULL: see fault */
    char *source;           /* NUL-terminated */
    struct ot_json *tokens; /* an object: the special tokens by their names; NULL: of ot_chat_marks */
    const struct ot_chat_template *known;
    bool is_builtin; /* `known` itself, not a text that a model brings */
    char *fault;
    bool takes_parts;                   /* content may be a list of parts */
    struct ot_chat_renderer *for_tools; /* renders conversations with tools; NULL: this one does */
    struct ot_chat_work *work;
};

/* The work that the template has cost so far. Any thread adds to it. */
struct ot_chat_work {
    atomic_size_t steps, conversations;
};
/* Rendering a file may cost OT_CHAT_FREE_STEPS, plus OT_CHAT_STEPS_EACH for each conversation. A step takes
 * some 30 ns, and a conversation of ten turns a few thousand. So a slow template costs a minute or two, not
 * hours. */
enum { OT_CHAT_FREE_STEPS = 400 * 1000 * 1000, OT_CHAT_STEPS_EACH = 2 * 1000 * 1000 };

/* One conversation at work. */
struct ot_chat_job {
    const struct ot_chat_renderer *renderer;
    const struct ot_conversation *c;
    const struct ot_chat_marks *marks;
    const char *where;
    struct ot_json *messages, *tools;
    struct ot_jinja_text text, part; /* the whole text; a rendering of its beginning */
    unsigned char *flags;            /* OT_CHAT_TRAINED and OT_CHAT_USER for each byte of the text */
    char why[400];   /* the reason of the first turn without an exact place; "": all have one */
    int untrainable; /* number of such turns */
    bool left_out;
};
enum { OT_CHAT_TRAINED = 1, OT_CHAT_USER = 2 };

/* Renders the first n messages of a list. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_chat_render_part(const struct ot_chat_job *job, const struct ot_json *messages, size_t n, bool prompt,
                        struct ot_jinja_text *out);
/* Sets job->flags for the trained text, job->untrainable and job->why. job->text is rendered. */
int ot_chat_mark_trained(struct ot_chat_job *job, const struct ot_tokenizer *tokenizer);
/* Sets job->flags for the user's text, and job->left_out. */
void ot_chat_mark_user(struct ot_chat_job *job);

#endif
