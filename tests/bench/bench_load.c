/* Model load against the disk: GB/s of ot_model_dir_load (map, read ahead, convert to fp32, check, hand over)
 * beside a plain read() of the same bytes into one buffer, which is the floor. Both run once with the page
 * cache dropped (by posix_fadvise, which needs no rights) and once with the file in the page cache.
 *
 *     bench_load [FOLDER] [GB]        default: the current folder, 2 GB in bf16
 *
 * FOLDER decides which disk is measured. The benchmark removes what it writes there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/thread.h"
#include "src/files/model_dir.h"

enum { READ_BYTES = 4 << 20, ROUNDS = 3 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Any values will do, as long as no two pages are equal. */
static int source(void *context, int slab, int64_t first, int64_t n, float *values) {
    (void)context;
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(slab + 1) * 0x1p-10f + (float)((first + i) % 8191) * 0x1p-16f;
    return 0;
}

static int sink(void *context, int slab, int64_t first, int64_t n, const float *values) {
    (void)slab, (void)first, (void)n;
    *(double *)context += (double)values[0];
    return 0;
}

static int drop_cache(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open", path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return 0;
}

static int read_plain(const char *path, double *seconds) {
    char *buffer = malloc(READ_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 1;
    double start = now();
    while (buffer && fd >= 0 && n > 0)
        n = read(fd, buffer, READ_BYTES);
    *seconds = now() - start;
    free(buffer);
    if (fd >= 0)
        close(fd);
    return buffer && fd >= 0 && n == 0 ? 0 : ot_fail(OT_E_IO, "%s: cannot read", path);
}

static int load_model(const char *path, const struct ot_model *model, struct ot_pool *pool, double *seconds) {
    struct ot_model_dir *dir;
    double sum = 0, start = now();
    OT_TRY(ot_model_dir_open(path, &dir));
    int rc = ot_model_dir_load(dir, model, pool, sink, &sum);
    *seconds = now() - start;
    ot_model_dir_close(dir);
    return rc;
}

/* Takes the best of several rounds, because other programs may use the disk too. */
static int measure(const char *path, const char *file, const struct ot_model *model, struct ot_pool *pool,
                   bool cold, double gigabytes) {
    double plain = 1e9, load = 1e9, seconds;
    for (int round = 0; round < ROUNDS; round++) {
        if (cold)
            OT_TRY(drop_cache(file));
        OT_TRY(read_plain(file, &seconds));
        plain = seconds < plain ? seconds : plain;
        if (cold)
            OT_TRY(drop_cache(file));
        OT_TRY(load_model(path, model, pool, &seconds));
        load = seconds < load ? seconds : load;
    }
    printf("%-10s %d threads   read() %6.2f GB/s   load %6.2f GB/s   %5.1f %% of read()\n",
           cold ? "from disk" : "from cache", ot_pool_threads(pool), gigabytes / plain, gigabytes / load,
           100 * plain / load);
    return 0;
}

static int run(const char *path, double gigabytes, struct ot_model **model, struct ot_pool **pool) {
    char file[1024];
    struct ot_model_config config = ot_preset_find("tinyllama-1.1b")->config;
    config.n_layers = 1;
    int64_t one = ot_model_param_count(&config);
    config.n_layers = 2;
    int64_t layer = ot_model_param_count(&config) - one;
    config.n_layers = (int64_t)((gigabytes * 5e8 - (double)(one - layer)) / (double)layer);
    config.n_layers = config.n_layers > 0 ? config.n_layers : 1;
    gigabytes = (double)ot_model_param_count(&config) * 2e-9;
    OT_TRY(ot_model_open(&config, OT_BF16, 64, model));
    OT_TRY(ot_pool_open((int)sysconf(_SC_NPROCESSORS_ONLN), "load", pool));
    struct ot_model_save save = {.out = path, .model = *model, .dtype = OT_BF16, .shard_bytes = INT64_MAX};
    double start = now();
    OT_TRY(ot_model_dir_save(&save, source, NULL));
    printf("%.2f GB of bf16 in one file; saved and flushed at %.2f GB/s\n", gigabytes,
           gigabytes / (now() - start));
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    OT_TRY(measure(path, file, *model, *pool, true, gigabytes));
    return measure(path, file, *model, *pool, false, gigabytes);
}

int main(int argc, char **argv) {
    static const char *const files[] = {"model.safetensors", "config.json", "offload-train.json"};
    struct ot_model *model = NULL;
    struct ot_pool *pool = NULL;
    char path[512], file[1024];
    snprintf(path, sizeof path, "%s/bench-load-%ld", argc > 1 ? argv[1] : ".", (long)getpid());
    int rc = run(path, argc > 2 ? atof(argv[2]) : 2, &model, &pool);
    if (rc < 0)
        fprintf(stderr, "bench_load: %s\n", ot_error_text());
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(file, sizeof file, "%s/%s", path, files[i]);
        unlink(file);
    }
    rmdir(path);
    ot_pool_close(pool);
    ot_model_close(model);
    return -rc;
}
