/* Reads how weights are quantised: from the key quantization_config of config.json, or from
 * quantize_config.json, which older versions of AutoGPTQ wrote instead.
 *
 * Three methods are read: "gptq" (Frantar et al., arXiv 2210.17323; written by AutoGPTQ and GPTQModel),
 * "bitsandbytes" (load_in_8bit; load_in_4bit with nf4) and "mxfp4" (gpt-oss). All others are refused by name;
 * so is fp4, which bitsandbytes decodes to other bits on the CPU than on a GPU. How the tensors of a method
 * are stored: quant_decode.h.
 */
#ifndef OT_FILES_QUANTIZATION_H
#define OT_FILES_QUANTIZATION_H

#include <stdbool.h>
#include <stdint.h>

struct ot_json;

enum ot_quant_method { OT_QUANT_NONE, OT_QUANT_GPTQ, OT_QUANT_BITSANDBYTES, OT_QUANT_MXFP4 };

struct ot_quantization {
    enum ot_quant_method method;
    /* GPTQ */
    int bits;           /* 2, 3, 4 or 8 */
    int64_t group_size; /* inputs that share a scale; -1: all inputs of a matrix */
    bool true_zeros;    /* checkpoint_format "gptq_v2" stores zero points; "gptq" stores them less 1 */
};

/* where: the file, for error messages. Errors: OT_E_INPUT (another method, or values that the method does
 * not have). */
int ot_quantization_parse(const struct ot_json *config, const char *where, struct ot_quantization *out);

#endif
