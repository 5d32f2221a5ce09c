#include "src/jinja/filters.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

static const struct ot_jinja_function *find(const struct ot_jinja_string *name) {
    const struct ot_jinja_function *const tables[] = {ot_jinja_text_filters, ot_jinja_value_filters,
                                                      ot_jinja_list_filters, ot_jinja_order_filters};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct ot_jinja_function *f = tables[i]; f->name; f++)
            if (strlen(f->name) == name->bytes && memcmp(f->name, name->text, name->bytes) == 0)
                return f;
    return NULL;
}

bool ot_jinja_has_filter(const struct ot_jinja_string *name) {
    return find(name) != NULL;
}

int ot_jinja_filter(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    const struct ot_jinja_function *filter = find(name);
    if (filter)
        return filter->run(heap, call, out);
    return ot_jinja_unsupported(
        heap,
        "the filter '%.*s'; supported: abs attr batch capitalize center count default dictsort e first float "
        "format groupby indent int items join last length list lower map max min reject rejectattr replace "
        "reverse round safe select selectattr slice sort string sum title tojson trim truncate unique upper "
        "wordcount",
        (int)ot_min(name->bytes, 60), name->text);
}
