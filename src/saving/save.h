/* The output directory: what goes into it beside the weights, how large it is, trying it, writing it.
 *
 * Beside the base's own files lie README.md (model_card.h; the base's own card is about another model),
 * run.json (the settings and who gave them: a --config that repeats the run) and, where the base has no
 * tokenizer or --tokenizer replaced it, tokenizer.json and a tokenizer_config.json that names its special
 * tokens; and chat_template.jinja where the rows were written in a template and the base has none. The result
 * of a run that came to its end also has finished.json.
 */
#ifndef OT_SAVING_SAVE_H
#define OT_SAVING_SAVE_H

#include "src/checkpoint/record.h"
#include "src/files/model_dir.h"
#include "src/session/session.h"

struct ot_save {
    struct ot_session *session; /* with a model; with an engine at ot_save_write */
    struct ot_model_save files;
    struct ot_extra_file extra[6];
    char *run_text, *tokenizer_text, *chat_text, *card_text, *finished_text;
    int tokenizer_fd; /* held open: the file may be gone when training is done; -1: the base's is copied */
    char tokenizer_path[32];
    int64_t bytes; /* of all files */
};

/* lock: of DIR, held by the caller. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. `out` needs ot_save_close in
 * either case. */
int ot_save_open(struct ot_session *session, const char *dir, struct ot_out_lock *lock, struct ot_save *out);
void ot_save_close(struct ot_save *save);
int ot_save_probe(const struct ot_save *save); /* as ot_model_dir_save_probe */
/* The engine's weights; it is drained. run.json has the options as they are now. finished: the record of
 * the run at its end (finished.h); NULL: the run has not come to its end. */
int ot_save_write(struct ot_save *save, const struct ot_checkpoint_record *finished);
/* Other weights, and the record with what run.json says of them. */
int ot_save_write_from(struct ot_save *save, const struct ot_checkpoint_record *record,
                       ot_param_source source, void *context);

/* Bytes free where DIR is or would be; -1 where that cannot be told. */
int64_t ot_save_disk_free(const char *dir);

#endif
