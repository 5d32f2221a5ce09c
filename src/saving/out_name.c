#include "src/saving/out_name.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

static int refuse_name(void) {
    return ot_fail(OT_E_USAGE, "no short name for the output directory; give --out DIR");
}

/* The last component of a path, or of a hub name such as "org/model". */
static int find_model_name(const char *given, char name[NAME_MAX + 1]) {
    char *real = given[0] == '.' || given[0] == '/' ? realpath(given, NULL) : NULL;
    const char *model = real ? real : given;
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && model[start - 1] != '/')
        start--;
    int n = snprintf(name, NAME_MAX + 1, "%.*s", (int)(end - start), model + start);
    free(real);
    return n < 0 || n > NAME_MAX ? refuse_name() : 0;
}

int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes) {
    const struct ot_options *options = &settings->in_effect;
    char model[NAME_MAX + 1];
    if (options->out)
        return 0;
    OT_TRY(find_model_name(options->model, model));
    const char *data = options->command == OT_COMMAND_BENCH ? "bench" : options->data;
    const char *slash = strrchr(data, '/');
    data = slash ? slash + 1 : data;
    size_t dot = *data ? 1 + strcspn(data + 1, ".") : 0; /* the first dot of a hidden file stays */
    int n = snprintf(text, bytes, "out/%s-%.*s", model, (int)dot, data);
    if (n < 0 || (size_t)n >= bytes)
        return refuse_name();
    ot_settings_choose_text(settings, "out", text);
    return 0;
}
