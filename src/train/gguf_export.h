/* Exports a model as a GGUF file for llama.cpp and Ollama (src/gguf/gguf.h), into an output directory
 * (src/files/out_dir.h): OUT/NAME-TYPE.gguf, and OUT/Modelfile if it is wanted. The file appears as a whole
 * or not at all. Values stream from the source through a batch of the writer, so a model of any size needs
 * little memory. The writer puts the experts of a layer into one tensor as they come, at their places in the
 * file.
 *
 * Experts that the base has in MXFP4, and that the run did not train, are written in MXFP4 with all types, as
 * llama.cpp's converter does.
 *
 * A model with adapters becomes a GGUF file of the adapters alone, which llama.cpp adds to the base's file
 * (--lora FILE), as its convert_lora_to_gguf.py writes it. llama.cpp scales all of them by one alpha: where
 * an adapter has another one, or rsLoRA's scale, the rest of its scale is in B.
 *
 * Adapters of experts (models/lora.h) are A [experts, rank, in] and B [experts, out, rank] of ffn_gate_exps,
 * ffn_up_exps and ffn_down_exps; llama.cpp's build_lora_mm_id adds them. The adapter of gate_up_proj becomes
 * two, which have the same A, and the rows of its B that are those of gate and of up.
 */
#ifndef OT_TRAIN_GGUF_EXPORT_H
#define OT_TRAIN_GGUF_EXPORT_H

#include <limits.h>

#include "src/gguf/names.h"
#include "src/session/open.h"

struct ot_out_lock;

/* Passes all parameters of all slabs to the sink, in ascending order; padding may be left out. */
typedef int (*ot_param_feed)(void *context, ot_param_sink sink, void *sink_context);

struct ot_gguf_export {
    const struct ot_session *session; /* with files and model */
    const char *source;               /* the path that the user named; the file's name comes from it */
    const char *out;
    struct ot_out_lock *lock; /* of out, held by the caller */
    const struct ot_gguf_mixture *mixture;
    bool modelfile; /* not for adapters */
    bool of_run;    /* a run trained: trained tensors differ from the session's files */
    /* Results: the file's name in OUT, and its bytes. */
    char name[NAME_MAX + 1];
    int64_t bytes;
};

/* Errors: OT_E_INPUT (llama.cpp has no such model or tokenizer; a value is too large for the type), OT_E_IO,
 * OT_E_BUDGET, and those of the feed. After an error OUT is unchanged. */
int ot_gguf_export(struct ot_gguf_export *job, ot_param_feed feed, void *context);

#endif
