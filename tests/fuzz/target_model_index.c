/* model.safetensors.index.json of a directory with two shards of two tensors each. Whatever the index says,
 * only these two files are opened, although another file lies beside the directory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/files/model_dir.h"
#include "tests/fuzz/target.h"

static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":16,\"intermediate_size\":16,"
                             "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"vocab_size\":16,"
                             "\"max_position_embeddings\":16}";
/* The length of the header in 8 bytes, then two tensors without elements. */
#define SHARD(a, b)                                                                                          \
    "\x6b\0\0\0\0\0\0\0{\"" a "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"                 \
    "\"" b "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"

enum { PATH_BYTES = 160 };
static char folder[96];

static void in_folder(char path[PATH_BYTES], const char *name) {
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
}

static void make_file(const char *name, const void *bytes, size_t n) {
    char path[PATH_BYTES];
    in_folder(path, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
}

static void remove_folder(void) {
    static const char *const names[] = {"model/config.json", "model/a.safetensors", "model/b.safetensors",
                                        "model/model.safetensors.index.json", "c.safetensors"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        in_folder(path, names[i]);
        unlink(path);
    }
    in_folder(path, "model");
    rmdir(path);
    rmdir(folder);
}

static void make_folder_once(void) {
    char path[PATH_BYTES];
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.64s/offload-train-fuzz-XXXXXX", base && *base ? base : "/tmp");
    FUZZ_CHECK(mkdtemp(folder));
    atexit(remove_folder);
    in_folder(path, "model");
    FUZZ_CHECK(mkdir(path, 0700) == 0);
    make_file("model/config.json", config, strlen(config));
    make_file("model/a.safetensors", SHARD("p", "q"), sizeof SHARD("p", "q") - 1);
    make_file("model/b.safetensors", SHARD("r", "s"), sizeof SHARD("r", "s") - 1);
    make_file("c.safetensors", SHARD("t", "u"), sizeof SHARD("t", "u") - 1);
    /* A symbolic link, as in the Hugging Face cache, to a file in memory. */
    in_folder(path, "model/model.safetensors.index.json");
    FUZZ_CHECK(symlink(fuzz_file("", 0), path) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_model_dir *dir;
    char path[PATH_BYTES];
    if (!folder[0])
        make_folder_once();
    fuzz_file(data, size);
    in_folder(path, "model");
    int rc = ot_model_dir_open(path, &dir);
    if (rc < 0) {
        fuzz_check_refusal(rc, rc == -OT_E_IO ? OT_E_IO : OT_E_INPUT); /* a shard that does not exist */
        return 0;
    }
    FUZZ_CHECK(ot_model_dir_facts(dir)->n_shards <= 2);
    ot_model_dir_close(dir);
    return 0;
}
