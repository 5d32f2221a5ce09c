/* Settings of other programs: the first byte says the program, the rest is its file. Each row says something
 * on one line, and each setting is an option of train that takes the value or makes its row a refusal. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/migrate/migrate.h"
#include "src/options/options.h"
#include "tests/fuzz/target.h"

static void check_rows(const struct ot_migration *migration) {
    for (size_t i = 0; i < migration->n_rows; i++) {
        const struct ot_migrate_row *row = &migration->rows[i];
        FUZZ_CHECK(row->file && row->key && row->text);
        const char *text = ot_migrate_row_text(migration, row);
        FUZZ_CHECK(*text != '\0');
        for (const char *c = text; *c; c++)
            FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 127);
        for (const char *c = row->key; *c; c++)
            FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 127);
    }
    for (size_t i = 0; i < migration->n_settings; i++)
        for (size_t k = 0; k < i; k++) /* an option has one value, but for those that repeat */
            FUZZ_CHECK(strcmp(migration->settings[i].option, migration->settings[k].option) != 0 ||
                       strcmp(migration->settings[i].option, "data") == 0 ||
                       strcmp(migration->settings[i].option, "nvme") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct ot_options options;
    struct ot_migration migration;
    if (size == 0)
        return 0;
    struct ot_migrate_request request = {.seq_len = data[0] & 64 ? 128 : 0, .ranks = data[0] & 32 ? 4 : 0};
    request.files[data[0] % OT_PROGRAM_COUNT] = fuzz_file(data + 1, size - 1);
    int rc = ot_migrate(&request, &migration);
    if (rc < 0) {
        fuzz_check_refusal(rc, rc == -OT_E_IO ? OT_E_IO : OT_E_INPUT); /* a ds_config that the file names */
    } else {
        check_rows(&migration);
        ot_options_reset(&options, OT_COMMAND_TRAIN);
        FUZZ_CHECK(ot_options_take_migration(&options, &migration) == 0);
        check_rows(&migration);
        ot_options_free(&options);
    }
    ot_migration_close(&migration);
    return 0;
}
