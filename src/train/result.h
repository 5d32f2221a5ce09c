/* The result of a run in its output directory: its files, its size, a trial before step 1, and writing it.
 *
 * Besides weights and the base model's files, OUT gets README.md (result.c; the base's own card describes
 * another model) and run.json (the settings and who gave them; usable as --config to repeat the run). If the
 * base has no tokenizer, is a GGUF file, or --tokenizer replaced it, OUT gets tokenizer.json and a
 * tokenizer_config.json with its special tokens. With new tokens, both files have them. If
 * the rows used a chat template and the base has none, OUT gets chat_template.jinja.
 * The result of a run with adapters is a directory of adapters for PEFT: adapter_config.json and
 * adapter_model.safetensors in place of config.json and the weights.
 * The result of a finished run also has finished.json.
 */
#ifndef OT_TRAIN_RESULT_H
#define OT_TRAIN_RESULT_H

#include "src/checkpoint/record.h"
#include "src/files/model_dir.h"
#include "src/session/open.h"

struct ot_result {
    struct ot_session *session; /* has a model; ot_result_write also needs an engine */
    struct ot_model_save files;
    struct ot_extra_file extra[6];
    char *run_text, *tokenizer_text, *chat_text, *card_text, *finished_text, *adapter_text;
    int tokenizer_fd; /* open, since the file may be removed during training; -1: the base's is copied */
    char tokenizer_path[32];
    const struct ot_checkpoint_record
        *finished;                 /* borrowed while the result is written; NULL: not finished */
    const struct ot_json *history; /* borrowed; struct ot_checkpoint_record */
    int64_t bytes;                 /* sum over all files */
};

/* lock: lock of `dir`, held by the caller. history: changes of the run (NULL: none). Errors: OT_E_INPUT,
 * OT_E_IO, OT_E_BUDGET. Call ot_result_close on `out` also after an error. */
int ot_result_open(struct ot_session *session, const char *dir, struct ot_out_lock *lock,
                   const struct ot_json *history, struct ot_result *out);
void ot_result_close(struct ot_result *result);
int ot_result_try(const struct ot_result *result); /* as ot_model_dir_save_try */
/* Writes the weights of the session's engine, which must be drained. run.json gets the present options. With
 * several ranks only rank 0 calls it, while the others serve (ot_gather_serve).
 * finished: the record of the finished run (out_name.h); NULL: the run is not finished. */
int ot_result_write(struct ot_result *result, const struct ot_checkpoint_record *finished);
/* Writes weights from `source` instead. run.json is written from the record. */
int ot_result_write_from(struct ot_result *result, const struct ot_checkpoint_record *record,
                         ot_param_source source, void *context);

#endif
