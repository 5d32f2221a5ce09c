/* Runs the statements of a template, and makes its scopes. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/jinja/evaluate.h"
#include "src/jinja/jinja.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"

/* ---- scopes ---- */

int ot_jinja_new_scope(struct ot_jinja_run *run, struct ot_jinja_scope *parent, struct ot_jinja_scope **out) {
    *out = ot_jinja_alloc(&run->heap, 1, sizeof **out);
    if (!*out)
        return run->heap.error;
    (*out)->parent = parent;
    return 0;
}

int ot_jinja_set(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_string *name,
                 const struct ot_jinja_value *value) {
    for (size_t i = 0; i < scope->n; i++)
        if (scope->bindings[i].name == name) {
            scope->bindings[i].value = *value;
            return 0;
        }
    OT_TRY(
        ot_jinja_grow(&run->heap, &scope->bindings, scope->n, &scope->capacity, sizeof *scope->bindings, 4));
    scope->bindings[scope->n++] = (struct ot_jinja_binding){name, *value};
    return 0;
}

/* ---- assignments ---- */

static int assign_field(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                        const struct ot_jinja_node *target, const struct ot_jinja_value *value) {
    struct ot_jinja_value object, key = {.kind = OT_JINJA_STRING, .as.string = target->name};
    OT_TRY(ot_jinja_evaluate(run, scope, target->a, &object));
    if (object.kind != OT_JINJA_NAMESPACE)
        return ot_jinja_fail(&run->heap, "only attributes of a namespace can be set, not of %s",
                             ot_jinja_kind_name(&object));
    if (target->name->text[0] == '_')
        return ot_jinja_fail(&run->heap, "the name of a namespace's attribute begins with an underscore");
    return ot_jinja_put(&run->heap, object.as.dict, key, *value);
}

static int assign(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *target,
                  const struct ot_jinja_value *value) {
    if (target->kind == OT_JINJA_N_NAME)
        return ot_jinja_set(run, scope, target->name, value);
    if (target->kind == OT_JINJA_N_FIELD)
        return assign_field(run, scope, target, value);
    struct ot_jinja_list *items;
    size_t n = 0;
    OT_TRY(ot_jinja_need_defined(&run->heap, value));
    OT_TRY(ot_jinja_collect(&run->heap, value, &items));
    for (const struct ot_jinja_node *t = target->list; t; t = t->next)
        n++;
    if (n != items->n)
        return ot_jinja_fail(&run->heap, "%zu names for %zu values", n, items->n);
    n = 0;
    for (const struct ot_jinja_node *t = target->list; t; t = t->next)
        OT_TRY(assign(run, scope, t, &items->items[n++]));
    return 0;
}

static int execute_set(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                       const struct ot_jinja_node *node) {
    struct ot_jinja_value value;
    OT_TRY(ot_jinja_evaluate(run, scope, node->b, &value));
    run->heap.line = node->line;
    return assign(run, scope, node->a, &value);
}

/* ---- text ---- */

static int put(struct ot_jinja_run *run, const struct ot_jinja_value *value) {
    OT_TRY(ot_jinja_print(&run->heap, value, run->out));
    return run->out->failed ? ot_fail(OT_E_BUDGET, "no memory for the text of a template") : 0;
}

static int execute_print(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                         const struct ot_jinja_node *node) {
    struct ot_jinja_value value;
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &value));
    run->heap.line = node->line;
    return put(run, &value);
}

/* Executes a body in a scope and makes a string of its text. */
static int capture(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *body,
                   struct ot_jinja_value *out) {
    struct ot_string_builder text = {0}, *outer = run->out;
    run->out = &text;
    int rc = ot_jinja_execute(run, scope, body);
    run->out = outer;
    if (rc == 0)
        return ot_jinja_take(&run->heap, &text, out);
    free(text.text);
    return rc;
}

static int execute_set_block(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                             const struct ot_jinja_node *node) {
    struct ot_jinja_scope *inner;
    struct ot_jinja_value text, value;
    OT_TRY(ot_jinja_new_scope(run, scope, &inner));
    OT_TRY(capture(run, inner, node->body, &text));
    value = text;
    if (node->b)
        OT_TRY(ot_jinja_apply_filters(run, scope, node->b, &text, &value));
    return assign(run, scope, node->a, &value);
}

static int execute_filter(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                          const struct ot_jinja_node *node) {
    struct ot_jinja_scope *inner;
    struct ot_jinja_value text, value;
    OT_TRY(ot_jinja_new_scope(run, scope, &inner));
    OT_TRY(capture(run, inner, node->body, &text));
    OT_TRY(ot_jinja_apply_filters(run, inner, node->a, &text, &value));
    return put(run, &value);
}

static int add_span(struct ot_jinja_run *run, size_t begin, size_t end) {
    struct ot_jinja_text *text = run->text;
    OT_TRY(ot_grow(&text->spans, &text->span_capacity, text->n_spans + 1, sizeof *text->spans,
                   "spans of a template"));
    text->spans[text->n_spans++] = (struct ot_jinja_span){begin, end};
    return 0;
}

/* A generation block inside of a macro or a set block would be a span of a text whose place is not known. */
static int execute_generation(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                              const struct ot_jinja_node *node) {
    struct ot_jinja_scope *inner;
    if (run->out != run->page)
        return ot_jinja_unsupported(&run->heap, "{%% generation %%} inside of a macro or of another block");
    size_t begin = run->page->bytes;
    OT_TRY(ot_jinja_new_scope(run, scope, &inner));
    OT_TRY(ot_jinja_execute(run, inner, node->body));
    return add_span(run, begin, run->page->bytes);
}

/* ---- macros ---- */

static int execute_macro(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                         const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_macro *macro = ot_jinja_alloc(&run->heap, 1, sizeof *macro);
    if (!macro)
        return run->heap.error;
    macro->node = node;
    macro->scope = scope;
    *out = (struct ot_jinja_value){.kind = OT_JINJA_MACRO, .as.macro = macro};
    return 0;
}

/* Refuses arguments that no parameter takes. */
static int check_rest(struct ot_jinja_run *run, const struct ot_jinja_node *macro,
                      const struct ot_jinja_call *call, size_t n_parameters, const bool *used) {
    const struct ot_jinja_string *name = macro->name;
    if (call->n > n_parameters)
        return ot_jinja_fail(&run->heap, "the macro %.*s takes at most %zu arguments", (int)name->bytes,
                             name->text, n_parameters);
    for (size_t i = 0; i < call->n_named; i++) {
        const struct ot_jinja_string *key = call->names[i].as.string;
        if (!used[i])
            return ot_jinja_fail(&run->heap, "the macro %.*s takes no argument '%.*s'", (int)name->bytes,
                                 name->text, (int)key->bytes, key->text);
    }
    return 0;
}

static const struct ot_jinja_value *take_named(const struct ot_jinja_call *call,
                                               const struct ot_jinja_string *name, bool *used) {
    for (size_t i = 0; i < call->n_named; i++)
        if (call->names[i].as.string->bytes == name->bytes &&
            memcmp(call->names[i].as.string->text, name->text, name->bytes) == 0) {
            used[i] = true;
            return &call->named[i];
        }
    return NULL;
}

static int bind_parameters(struct ot_jinja_run *run, const struct ot_jinja_macro *macro,
                           const struct ot_jinja_call *call, struct ot_jinja_scope *scope) {
    const struct ot_jinja_node *node = macro->node;
    bool *used = ot_jinja_alloc(&run->heap, call->n_named + 1, sizeof *used);
    size_t n = 0;
    if (!used)
        return run->heap.error;
    for (const struct ot_jinja_node *p = node->list; p; p = p->next, n++) {
        struct ot_jinja_value value = ot_jinja_undefined(p->name);
        const struct ot_jinja_value *named = take_named(call, p->name, used);
        if (named && n < call->n)
            return ot_jinja_fail(&run->heap, "the macro %.*s gets its argument '%.*s' twice",
                                 (int)node->name->bytes, node->name->text, (int)p->name->bytes,
                                 p->name->text);
        if (n < call->n)
            value = call->args[n];
        else if (named)
            value = *named;
        else if (p->a)
            OT_TRY(ot_jinja_evaluate(run, scope, p->a, &value));
        OT_TRY(ot_jinja_set(run, scope, p->name, &value));
    }
    return check_rest(run, node, call, n, used);
}

int ot_jinja_call_macro(struct ot_jinja_run *run, const struct ot_jinja_macro *macro,
                        const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    struct ot_jinja_scope *scope;
    OT_TRY(ot_jinja_new_scope(run, macro->scope, &scope));
    OT_TRY(bind_parameters(run, macro, call, scope));
    return capture(run, scope, macro->node->body, out);
}

/* ---- if, for ---- */

static int execute_if(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                      const struct ot_jinja_node *node) {
    for (;;) {
        struct ot_jinja_value condition;
        OT_TRY(ot_jinja_evaluate(run, scope, node->a, &condition));
        if (ot_jinja_truth(&condition))
            return ot_jinja_execute(run, scope, node->body);
        if (node->has_else)
            return ot_jinja_execute(run, scope, node->other);
        if (!node->other)
            return 0;
        node = node->other;
    }
}

struct condition { /* of a loop */
    struct ot_jinja_run *run;
    struct ot_jinja_scope *scope;
    const struct ot_jinja_node *node;
};

static int accepts(void *context, const struct ot_jinja_value *item) {
    const struct condition *c = context;
    struct ot_jinja_scope *scope;
    struct ot_jinja_value value;
    OT_TRY(ot_jinja_new_scope(c->run, c->scope, &scope));
    OT_TRY(assign(c->run, scope, c->node->a, item));
    OT_TRY(ot_jinja_evaluate(c->run, scope, c->node->c, &value));
    return ot_jinja_truth(&value);
}

static int execute_turn(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                        const struct ot_jinja_node *node, struct ot_jinja_loop *loop) {
    struct ot_jinja_scope *inner;
    struct ot_jinja_value value = {.kind = OT_JINJA_LOOP, .as.loop = loop};
    OT_TRY(ot_jinja_new_scope(run, scope, &inner));
    if (run->loop)
        OT_TRY(ot_jinja_set(run, inner, run->loop, &value));
    run->heap.line = node->line;
    OT_TRY(assign(run, inner, node->a, &loop->current));
    return ot_jinja_execute(run, inner, node->body);
}

static int execute_for(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                       const struct ot_jinja_node *node) {
    struct ot_jinja_value source;
    struct ot_jinja_scope *inner;
    struct ot_jinja_loop *loop = ot_jinja_alloc(&run->heap, 1, sizeof *loop);
    struct condition *condition = ot_jinja_alloc(&run->heap, 1, sizeof *condition);
    int rc;
    if (!loop || !condition)
        return run->heap.error;
    OT_TRY(ot_jinja_evaluate(run, scope, node->b, &source));
    run->heap.line = node->line;
    OT_TRY(ot_jinja_read_begin(&run->heap, &source, &loop->reader));
    *condition = (struct condition){run, scope, node};
    loop->accepts = node->c ? accepts : NULL;
    loop->context = condition;
    bool ended = false; /* jinja2 executes `else` unless a turn came to its end, also after a break */
    while ((rc = ot_jinja_loop_next(&run->heap, loop)) > 0) {
        rc = execute_turn(run, scope, node, loop);
        if (rc < 0 || rc == OT_JINJA_BREAKS)
            break;
        ended |= rc == 0;
    }
    if (rc < 0 || ended || !node->other)
        return rc < 0 ? rc : 0;
    OT_TRY(ot_jinja_new_scope(run, scope, &inner));
    return ot_jinja_execute(run, inner, node->other);
}

static int execute(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *node) {
    struct ot_jinja_value macro;
    switch (node->kind) {
    case OT_JINJA_S_TEXT:
        return put(run, &node->value);
    case OT_JINJA_S_PRINT:
        return execute_print(run, scope, node);
    case OT_JINJA_S_IF:
        return execute_if(run, scope, node);
    case OT_JINJA_S_FOR:
        return execute_for(run, scope, node);
    case OT_JINJA_S_SET:
        return execute_set(run, scope, node);
    case OT_JINJA_S_SET_BLOCK:
        return execute_set_block(run, scope, node);
    case OT_JINJA_S_MACRO:
        OT_TRY(execute_macro(run, scope, node, &macro));
        return ot_jinja_set(run, scope, node->name, &macro);
    case OT_JINJA_S_FILTER:
        return execute_filter(run, scope, node);
    case OT_JINJA_S_GENERATION:
        return execute_generation(run, scope, node);
    case OT_JINJA_S_BREAK:
        return OT_JINJA_BREAKS;
    default:
        return OT_JINJA_CONTINUES;
    }
}

int ot_jinja_execute(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                     const struct ot_jinja_node *body) {
    int rc = 0;
    OT_TRY(ot_jinja_descend(run));
    for (const struct ot_jinja_node *node = body; node && rc == 0; node = node->next) {
        run->heap.line = node->line;
        OT_TRY(ot_jinja_step(&run->heap, 1));
        rc = execute(run, scope, node);
    }
    run->heap.depth--;
    return rc;
}
