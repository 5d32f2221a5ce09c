/* Evaluates a parsed template. expression.c has the expressions, statement.c the statements and macros.
 *
 * Scopes are jinja2's: each turn of a loop, each macro, filter, set and generation block has its own
 * scope, and variables set inside stay inside. A macro sees the variables of the place where it was defined,
 * with the values that they have when it is called.
 */
#ifndef OT_JINJA_EVALUATE_H
#define OT_JINJA_EVALUATE_H

#include "src/base/text.h"
#include "src/jinja/call.h"
#include "src/jinja/node.h"

struct ot_jinja_text;

struct ot_jinja_binding {
    const struct ot_jinja_string *name;
    struct ot_jinja_value value;
};

struct ot_jinja_scope {
    struct ot_jinja_scope *parent; /* NULL: of the caller's variables */
    struct ot_jinja_binding *bindings;
    size_t n, capacity;
};

struct ot_jinja_macro {
    const struct ot_jinja_node *node;
    struct ot_jinja_scope *scope; /* where it was defined */
};

struct ot_jinja_run {
    struct ot_jinja_heap heap;
    struct ot_string_builder *out;      /* where text goes now */
    struct ot_string_builder *page;     /* the text of the template itself */
    struct ot_jinja_text *text;         /* takes the spans */
    const struct ot_jinja_string *loop; /* the template's own string; NULL: the template does not use it */
};

int ot_jinja_evaluate(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                      const struct ot_jinja_node *node, struct ot_jinja_value *out);
/* Calls a filter node with this value in place of its first operand. */
int ot_jinja_apply_filters(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                           const struct ot_jinja_node *node, const struct ot_jinja_value *input,
                           struct ot_jinja_value *out);
int ot_jinja_call_macro(struct ot_jinja_run *run, const struct ot_jinja_macro *macro,
                        const struct ot_jinja_call *call, struct ot_jinja_value *out);

enum { OT_JINJA_BREAKS = 1, OT_JINJA_CONTINUES = 2 };
/* Executes statements. Returns 0, OT_JINJA_BREAKS, OT_JINJA_CONTINUES, or an error. */
int ot_jinja_execute(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                     const struct ot_jinja_node *body);

int ot_jinja_new_scope(struct ot_jinja_run *run, struct ot_jinja_scope *parent, struct ot_jinja_scope **out);
int ot_jinja_set(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_string *name,
                 const struct ot_jinja_value *value);

/* One level of evaluation deeper; run->heap.depth-- ends it. */
int ot_jinja_descend(struct ot_jinja_run *run);

#endif
