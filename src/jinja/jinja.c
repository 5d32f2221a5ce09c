#include "src/jinja/jinja.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/jinja/evaluate.h"
#include "src/jinja/parser.h"

struct ot_jinja {
    struct ot_arena *arena;
    char *name;
    struct ot_jinja_node *body;
    struct ot_jinja_names names;
    bool generation;
};

static int parse(struct ot_jinja *jinja, const char *text, size_t bytes) {
    struct ot_jinja_heap heap = {.arena = jinja->arena,
                                 .name = jinja->name,
                                 .line = 1,
                                 .most_bytes = OT_JINJA_MOST_BYTES,
                                 .most_steps = OT_JINJA_MOST_STEPS};
    struct ot_jinja_parser parser = {.heap = &heap};
    struct ot_jinja_tokens tokens;
    if (bytes > OT_JINJA_MOST_TEXT)
        return ot_jinja_fail(&heap, "the template has more than %d KiB", OT_JINJA_MOST_TEXT >> 10);
    OT_TRY(ot_jinja_lex(&heap, text, bytes, &tokens));
    parser.token = tokens.items;
    OT_TRY(ot_jinja_parse(&parser, &jinja->body));
    jinja->names = parser.names;
    jinja->generation = parser.generation;
    return 0;
}

int ot_jinja_open(const char *text, size_t bytes, const char *name, struct ot_jinja **out) {
    struct ot_jinja *jinja = calloc(1, sizeof *jinja);
    int rc;
    *out = NULL;
    if (!jinja)
        return ot_fail(OT_E_BUDGET, "no memory for a chat template");
    OT_TRY_GOTO(ot_arena_open(&jinja->arena), rc, out);
    jinja->name = ot_arena_strdup(jinja->arena, name, strlen(name));
    if (!jinja->name) {
        rc = -OT_E_BUDGET;
        goto out;
    }
    OT_TRY_GOTO(parse(jinja, text, bytes), rc, out);
    *out = jinja;
    jinja = NULL;
out:
    ot_jinja_close(jinja);
    return rc;
}

void ot_jinja_close(struct ot_jinja *jinja) {
    if (!jinja)
        return;
    ot_arena_close(jinja->arena);
    free(jinja);
}

bool ot_jinja_has_generation(const struct ot_jinja *jinja) {
    return jinja->generation;
}

static const struct ot_jinja_string *find_name(const struct ot_jinja *jinja, const char *name) {
    size_t bytes = strlen(name);
    for (size_t i = 0; i < jinja->names.n; i++)
        if (jinja->names.items[i]->bytes == bytes && memcmp(jinja->names.items[i]->text, name, bytes) == 0)
            return jinja->names.items[i];
    return NULL;
}

bool ot_jinja_reads(const struct ot_jinja *jinja, const char *variable) {
    return find_name(jinja, variable) != NULL;
}

void ot_jinja_text_free(struct ot_jinja_text *text) {
    free(text->text);
    free(text->spans);
    *text = (struct ot_jinja_text){0};
}

/* ---- rendering ---- */

static int set_variable(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                        const struct ot_jinja_string *name, const struct ot_jinja_variable *variable) {
    struct ot_jinja_value value = ot_jinja_none();
    if (variable->is_flag)
        value = ot_jinja_bool(variable->flag);
    else if (variable->value)
        OT_TRY(ot_jinja_from_json(&run->heap, variable->value, variable->most ? *variable->most : SIZE_MAX,
                                  &value));
    else if (variable->text)
        OT_TRY(ot_jinja_string(&run->heap, variable->text, strlen(variable->text), false, &value));
    return ot_jinja_set(run, scope, name, &value);
}

static int execute(const struct ot_jinja *jinja, const struct ot_jinja_variable *variables, size_t n,
                   struct ot_jinja_run *run) {
    struct ot_jinja_scope *outer, *scope;
    OT_TRY(ot_jinja_new_scope(run, NULL, &outer));
    for (size_t i = 0; i < n; i++) {
        const struct ot_jinja_string *name = find_name(jinja, variables[i].name);
        if (name)
            OT_TRY(set_variable(run, outer, name, &variables[i]));
    }
    OT_TRY(ot_jinja_new_scope(run, outer, &scope));
    return ot_jinja_execute(run, scope, jinja->body);
}

int ot_jinja_render(const struct ot_jinja *jinja, const struct ot_jinja_variable *variables, size_t n,
                    struct ot_jinja_date date, struct ot_jinja_text *out) {
    return ot_jinja_render_within(jinja, variables, n, date, OT_JINJA_MOST_STEPS, out);
}

int ot_jinja_render_within(const struct ot_jinja *jinja, const struct ot_jinja_variable *variables, size_t n,
                           struct ot_jinja_date date, size_t most_steps, struct ot_jinja_text *out) {
    struct ot_string_builder page = {.text = out->text, .capacity = out->capacity};
    struct ot_jinja_run run = {.heap = {.name = jinja->name,
                                        .line = 1,
                                        .most_bytes = OT_JINJA_MOST_BYTES,
                                        .most_steps = most_steps,
                                        .year = date.year,
                                        .month = date.month,
                                        .day = date.day},
                               .out = &page,
                               .page = &page,
                               .text = out,
                               .loop = find_name(jinja, "loop")};
    out->n_spans = 0;
    OT_TRY(ot_arena_open(&run.heap.arena));
    int rc = execute(jinja, variables, n, &run);
    ot_arena_close(run.heap.arena);
    out->steps = run.heap.steps;
    ot_string_append(&page, "", 0);
    if (rc == 0 && page.failed)
        rc = ot_fail(OT_E_BUDGET, "no memory for the text of a template");
    out->text = page.text;
    out->bytes = page.bytes;
    out->capacity = page.capacity;
    return rc;
}
