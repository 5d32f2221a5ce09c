/* The key of a dataset's cache: all that its tokens depend on. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/data/chat_render.h"
#include "src/data/dataset_state.h"

static void put_text(struct ot_string_builder *b, const char *name, const char *text) {
    if (text)
        ot_string_append_format(b, "%s %zu %s\n", name, strlen(text), text);
}

static void put_specials(struct ot_string_builder *b, const struct ot_special_tokens *s) {
    ot_string_append_format(b, "bos %d %d\neos", s->bos_id, s->add_bos);
    for (int i = 0; i < s->n_eos; i++)
        ot_string_append_format(b, " %d", s->eos_ids[i]);
    ot_string_append_text(b, "\n");
}

/* False: the file can be read once alone. */
static bool put_file(struct ot_string_builder *b, const char *path) {
    struct stat found;
    if (stat(path, &found) < 0 || !S_ISREG(found.st_mode))
        return false;
    char *real = realpath(path, NULL);
    put_text(b, "file", real ? real : path);
    free(real);
    ot_string_append_format(b, "size %lld time %lld.%09ld\n", (long long)found.st_size,
                            (long long)found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
    return true;
}

int ot_dataset_key(const struct ot_dataset_config *c, const struct ot_data_files *files,
                   const size_t *first_file, int n_sources, char **key, size_t *bytes) {
    struct ot_string_builder b = {0};
    char build[OT_BUILD_ID_BYTES];
    bool is_lasting = true;
    *key = NULL;
    ot_build_id(build);
    ot_string_append_format(&b, "rows of offload-train %s build %s\n", OT_VERSION, build);
    ot_string_append_format(&b, "tokenizer %08x vocab %d seq-len %lld\n", ot_tokenizer_crc(c->tokenizer),
                            c->vocab_size, (long long)c->seq_len);
    put_specials(&b, &c->specials);
    put_text(&b, "template", c->chat.named);
    put_text(&b, "recorded", c->chat.recorded);
    if (c->chat.of_model)
        ot_string_append_format(&b, "own %08x\n", ot_chat_renderer_crc(c->chat.of_model));
    put_text(&b, "prompt-format", c->prompt_format);
    put_text(&b, "columns", c->columns);
    ot_string_append_format(&b, "options %d %d %d %d %d %d %lld %d %d\n", c->train_prompt, c->no_eos,
                            c->pairs, (int)c->objective, c->skip_bad, (int)c->text_by, (long long)c->max_rows,
                            c->dedup, c->keeps_json);
    for (int i = 0; i < n_sources; i++)
        ot_string_append_format(&b, "source from %zu\n", first_file[i]);
    for (size_t i = 0; i < files->n && is_lasting; i++)
        is_lasting = put_file(&b, files->paths[i]);
    if (!is_lasting || b.failed) {
        free(b.text);
        return b.failed ? ot_fail(OT_E_BUDGET, "no memory for the names of the data files") : 0;
    }
    *key = b.text;
    *bytes = b.bytes;
    return 0;
}
