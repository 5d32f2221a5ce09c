/* The weights of a quantised checkpoint: what opens is loaded, or is refused in one line. The input's first
 * byte chooses the method; then comes the header of model.safetensors, without its length, up to a NUL; then
 * the data. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/files/model_dir.h"
#include "tests/fuzz/target.h"

#define CONFIG(quantization)                                                                                 \
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":1,"           \
    "\"num_attention_heads\":2,\"vocab_size\":8,\"max_position_embeddings\":8,"                              \
    "\"quantization_config\":{" quantization "}}"

static const char *const configs[] = {
    CONFIG("\"quant_method\":\"gptq\",\"bits\":4"),
    CONFIG("\"quant_method\":\"gptq\",\"bits\":3,\"checkpoint_format\":\"gptq_v2\""),
    CONFIG("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":4"),
    CONFIG("\"quant_method\":\"bitsandbytes\""),
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":2,\"num_local_experts\":1,"
    "\"num_experts_per_tok\":1,\"vocab_size\":8,\"max_position_embeddings\":8,"
    "\"rope_scaling\":{\"rope_type\":\"default\"},\"quantization_config\":{\"quant_method\":\"mxfp4\"}}",
};
enum { N_CONFIGS = sizeof configs / sizeof *configs, PATH_BYTES = 160 };
static char folders[N_CONFIGS][96];

static const char *in_folder(int config, const char *name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.95s/%.40s", folders[config], name);
    return path;
}

static void remove_folders(void) {
    for (int i = 0; i < N_CONFIGS; i++) {
        unlink(in_folder(i, "config.json"));
        unlink(in_folder(i, "model.safetensors"));
        rmdir(folders[i]);
    }
}

static void make_folders_once(void) {
    const char *base = getenv("TMPDIR");
    for (int i = 0; i < N_CONFIGS; i++) {
        snprintf(folders[i], sizeof folders[i], "%.64s/offload-train-fuzz-XXXXXX",
                 base && *base ? base : "/tmp");
        FUZZ_CHECK(mkdtemp(folders[i]));
        int fd = open(in_folder(i, "config.json"), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        size_t bytes = strlen(configs[i]);
        FUZZ_CHECK(fd >= 0 && write(fd, configs[i], bytes) == (ssize_t)bytes && close(fd) == 0);
        FUZZ_CHECK(symlink(fuzz_file("", 0), in_folder(i, "model.safetensors")) == 0);
    }
    atexit(remove_folders);
}

static int drop_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    (void)context;
    FUZZ_CHECK(slab >= 0 && first >= 0 && n > 0 && values);
    return 0;
}

static void load(const struct ot_model_dir *dir) {
    struct ot_model *model;
    FUZZ_CHECK(ot_model_open(&ot_model_dir_facts(dir)->config, OT_F32, 1, &model) == 0);
    int rc = ot_model_dir_load(dir, model, NULL, drop_values, NULL);
    if (rc < 0)
        fuzz_check_refusal(rc, OT_E_INPUT);
    ot_model_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { LENGTH_BYTES = 8 };
    struct ot_model_dir *dir;
    if (size == 0)
        return 0;
    if (!folders[0][0])
        make_folders_once();
    int config = data[0] % N_CONFIGS;
    const uint8_t *header = data + 1, *end = memchr(header, 0, size - 1);
    size_t header_bytes = end ? (size_t)(end - header) : size - 1;
    size_t data_bytes = end ? size - 1 - header_bytes - 1 : 0;
    char *file = calloc(1, LENGTH_BYTES + size);
    FUZZ_CHECK(file);
    for (int i = 0; i < LENGTH_BYTES; i++)
        file[i] = (char)(uint8_t)(header_bytes >> (8 * i));
    memcpy(file + LENGTH_BYTES, header, header_bytes);
    if (end)
        memcpy(file + LENGTH_BYTES + header_bytes, end + 1, data_bytes);
    fuzz_file(file, LENGTH_BYTES + header_bytes + data_bytes);
    free(file);
    int rc = ot_model_dir_open(folders[config], &dir);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    load(dir);
    ot_model_dir_close(dir);
    return 0;
}
