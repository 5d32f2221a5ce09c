#include "src/jinja/call.h"

#include <string.h>

#include "src/base/error.h"

static int bind_named(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                      const char *const *parameters, struct ot_jinja_value *out) {
    for (size_t i = 0; i < call->n_named; i++) {
        const struct ot_jinja_string *name = call->names[i].as.string;
        size_t k = 0;
        while (parameters[k] &&
               (strlen(parameters[k]) != name->bytes || memcmp(parameters[k], name->text, name->bytes) != 0))
            k++;
        if (!parameters[k])
            return ot_jinja_fail(heap, "%s takes no argument '%.*s'", what, (int)name->bytes, name->text);
        if (out[k].kind != OT_JINJA_ABSENT)
            return ot_jinja_fail(heap, "%s gets its argument '%s' twice", what, parameters[k]);
        out[k] = call->named[i];
    }
    return 0;
}

int ot_jinja_bind(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                  const char *const *parameters, size_t need, struct ot_jinja_value *out) {
    size_t n = 0;
    while (parameters[n])
        n++;
    if (call->n > n)
        return ot_jinja_fail(heap, "%s gets %zu arguments and takes at most %zu", what, call->n, n);
    for (size_t i = 0; i < n; i++)
        out[i] = i < call->n ? call->args[i] : (struct ot_jinja_value){0};
    OT_TRY(bind_named(heap, call, what, parameters, out));
    for (size_t i = 0; i < need; i++)
        if (out[i].kind == OT_JINJA_ABSENT)
            return ot_jinja_fail(heap, "%s needs an argument '%s'", what, parameters[i]);
    return 0;
}

int ot_jinja_take_int(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                      int64_t *out) {
    if (v->kind == OT_JINJA_ABSENT)
        return 0;
    if (!ot_jinja_is_int(v))
        return ot_jinja_fail(heap, "%s must be an integer, not %s", what, ot_jinja_kind_name(v));
    *out = ot_jinja_to_int(v);
    return 0;
}

int ot_jinja_take_text(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                       const struct ot_jinja_string **out) {
    if (v->kind == OT_JINJA_ABSENT)
        return 0;
    if (v->kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "%s must be a string, not %s", what, ot_jinja_kind_name(v));
    *out = v->as.string;
    return 0;
}
