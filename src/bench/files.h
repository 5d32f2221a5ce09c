/* The files of a bench in its directory: bench.csv, to which each point is added as it comes, so that a crash
 * keeps what was measured; bench.json and bench.html, which are replaced as a whole by rename.
 */
#ifndef OT_BENCH_FILES_H
#define OT_BENCH_FILES_H

#include <stddef.h>

struct ot_bench_files {
    char *dir;
    int csv; /* file descriptor; < 0: none */
};

/* Makes the directory, and those above it, and bench.csv. Errors: OT_E_INPUT: a bench is there already;
 * OT_E_IO. `out` needs ot_bench_files_close in either case. */
int ot_bench_files_open(const char *dir, struct ot_bench_files *out);
void ot_bench_files_close(struct ot_bench_files *files);
/* Errors: OT_E_IO, naming the file. */
int ot_bench_files_append_csv(struct ot_bench_files *files, const char *text, size_t bytes);
int ot_bench_files_replace(struct ot_bench_files *files, const char *name, const char *text, size_t bytes);

#endif
