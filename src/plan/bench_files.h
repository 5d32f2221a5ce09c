/* The files of a bench in its directory. Each point is appended to bench.csv at once, so a crash loses no
 * measured point. bench.json and bench.html are replaced whole, by rename. */
#ifndef OT_PLAN_BENCH_FILES_H
#define OT_PLAN_BENCH_FILES_H

#include <stddef.h>

struct ot_bench_files {
    char *dir;
    int csv; /* file descriptor of bench.csv; < 0: none */
};

/* Creates the directory with its parents, and bench.csv. Errors: OT_E_INPUT: the directory already has a
 * bench; OT_E_IO. Call ot_bench_files_close on `out` also after an error. */
int ot_bench_files_open(const char *dir, struct ot_bench_files *out);
void ot_bench_files_close(struct ot_bench_files *files);
/* Errors: OT_E_IO; the sentence names the file. */
int ot_bench_files_append_csv(struct ot_bench_files *files, const char *text, size_t bytes);
int ot_bench_files_replace(struct ot_bench_files *files, const char *name, const char *text, size_t bytes);

#endif
