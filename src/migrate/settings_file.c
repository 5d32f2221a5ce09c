#include "src/migrate/settings_file.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/file_io.h"

bool ot_settings_are_yaml(const char *path) {
    size_t n = strlen(path);
    return (n > 5 && strcmp(path + n - 5, ".yaml") == 0) || (n > 4 && strcmp(path + n - 4, ".yml") == 0);
}

int ot_settings_read(const char *path, struct ot_json **out) {
    char *text;
    size_t bytes;
    *out = NULL;
    OT_TRY(ot_read_file(path, OT_SETTINGS_MAX_BYTES, &text, &bytes));
    int rc = ot_settings_are_yaml(path) ? ot_yaml_parse(text, bytes, path, out)
                                        : ot_hjson_parse(text, bytes, path, out);
    free(text);
    OT_TRY(rc);
    if (ot_json_type(*out) == OT_JSON_OBJECT)
        return 0;
    rc = ot_fail(OT_E_INPUT, "%s: must be an object of settings, not %s", path,
                 ot_json_type_name(ot_json_type(*out)));
    ot_json_free(*out);
    *out = NULL;
    return rc;
}
