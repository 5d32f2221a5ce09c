/* A build without libyaml reads no YAML. */
#include "src/base/error.h"
#include "src/migrate/settings_file.h"

int ot_yaml_parse(const char *text, size_t bytes, const char *where, struct ot_json **out) {
    (void)text, (void)bytes;
    *out = NULL;
    return ot_fail(OT_E_USAGE,
                   "%s: the file is YAML, and this build has no libyaml; write it as JSON, or install "
                   "libyaml-dev (scripts/install-packages does) and build again",
                   where);
}
