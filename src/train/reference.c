#include "src/train/reference.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/comm/comm.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/checkpoint/reader.h"
#include "src/data/batch.h"
#include "src/session/open.h"
#include "src/session/session_ranks.h"
#include "src/train/evaluate.h"
#include "src/train/run_shape.h"

static const char file_name[] = "reference.bin", magic[8] = {'O', 'T', 'R', 'E', 'F', 'E', 'R', '1'};
enum { HEADER_BYTES = 16, RECORD_HEAD = 8 };

/* ---- the file ---- */

struct file {
    int fd; /* -1: none is kept */
    char path[PATH_MAX];
    int64_t at; /* where the next record begins */
};

static int fail(const struct file *file, const char *what) {
    return ot_fail_errno(OT_E_IO, errno, "%s: cannot %s", file->path, what);
}

/* A run that goes on no longer has the weights of its reference. */
static int refuse(const char *path) {
    return ot_fail(
        OT_E_INPUT,
        "%s: it does not have the log-probabilities of all rows by this run's reference, and they "
        "cannot be computed again, because the weights have been trained since. Bring the file back, "
        "or start anew with --resume never",
        path);
}

static void make_header(uint32_t print, unsigned char header[HEADER_BYTES]) {
    memcpy(header, magic, sizeof magic);
    memcpy(header + 8, &print, sizeof print);
    uint32_t crc = ot_crc32(0, header, 12);
    memcpy(header + 12, &crc, sizeof crc);
}

/* Reads the next record: the numbers of n comparisons. Returns 1, or 0: the file has no whole record there.
 * */
static int read_record(struct file *file, uint32_t n, float *numbers) {
    uint32_t head[2];
    size_t bytes = 2 * (size_t)n * sizeof *numbers;
    if (file->fd < 0 || ot_read_at(file->fd, head, sizeof head, file->at) != RECORD_HEAD || head[1] != n ||
        ot_read_at(file->fd, numbers, bytes, file->at + RECORD_HEAD) != (int64_t)bytes)
        return 0;
    uint32_t crc = ot_crc32(ot_crc32(0, &head[1], sizeof head[1]), numbers, bytes);
    if (crc != head[0])
        return 0;
    file->at += RECORD_HEAD + (int64_t)bytes;
    return 1;
}

static int write_record(struct file *file, uint32_t n, const float *numbers) {
    uint32_t head[2] = {0, n};
    size_t bytes = 2 * (size_t)n * sizeof *numbers;
    if (file->fd < 0)
        return 0;
    head[0] = ot_crc32(ot_crc32(0, &head[1], sizeof head[1]), numbers, bytes);
    int rc = ot_write_at(&ot_io_system, file->fd, numbers, bytes, file->at + RECORD_HEAD);
    if (rc == 0)
        rc = ot_write_at(&ot_io_system, file->fd, head, sizeof head, file->at);
    if (rc < 0)
        return ot_fail_errno(OT_E_IO, -rc, "%s: cannot write", file->path);
    file->at += RECORD_HEAD + (int64_t)bytes;
    return 0;
}

static int find_path(const char *out, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", out, file_name) < PATH_MAX)
        return 0;
    return ot_fail(OT_E_USAGE, "--out %s: the path is too long", out);
}

static bool has_header(const struct file *file, const unsigned char want[HEADER_BYTES]) {
    unsigned char have[HEADER_BYTES];
    return ot_read_at(file->fd, have, sizeof have, 0) == HEADER_BYTES && memcmp(have, want, sizeof have) == 0;
}

/* Replaces the content, which is of another run. */
static int replace(const struct file *file, const void *data, size_t bytes) {
    int rc = ftruncate(file->fd, 0) < 0 ? -errno : ot_write_at(&ot_io_system, file->fd, data, bytes, 0);
    return rc < 0 ? ot_fail_errno(OT_E_IO, -rc, "%s: cannot write", file->path) : 0;
}

/* For a run that goes on from a checkpoint of another OUT: copies the file from there, if it is there. */
static int bring(const struct file *file, const char *checkpoint) {
    char from[PATH_MAX], *text;
    size_t bytes;
    if (snprintf(from, sizeof from, "%s/../../%s", checkpoint, file_name) >= (int)sizeof from ||
        ot_read_file(from, SIZE_MAX, &text, &bytes) < 0)
        return 0;
    int rc = replace(file, text, bytes);
    free(text);
    return rc;
}

/* Opens the file. If it is of another run, it begins anew. checkpoint: that of a run that goes on, which must
 * have the file; NULL: a new run. */
static int open_file(struct file *file, const char *out, uint32_t print, const char *checkpoint) {
    unsigned char want[HEADER_BYTES];
    make_header(print, want);
    *file = (struct file){.fd = -1, .at = HEADER_BYTES};
    if (!out)
        return 0;
    OT_TRY(find_path(out, file->path));
    file->fd = open(file->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file->fd < 0)
        return fail(file, "open the log-probabilities of the reference");
    if (!has_header(file, want) && checkpoint)
        OT_TRY(bring(file, checkpoint));
    if (has_header(file, want))
        return 0;
    return checkpoint ? refuse(file->path) : replace(file, want, sizeof want);
}

static int close_file(struct file *file, int rc) {
    if (file->fd < 0)
        return rc;
    if (rc == 0 && fdatasync(file->fd) < 0)
        rc = fail(file, "write");
    close(file->fd);
    return rc;
}

/* ---- a pass over the rows of a dataset ---- */

struct pass {
    const struct ot_session *session;
    const struct ot_dataset *dataset;
    struct ot_packing *packing;
    struct ot_batcher *batcher;
    struct file *file;             /* NULL: on ranks other than 0 */
    float *numbers;                /* [rows][2] out */
    int64_t micro_sequences, most; /* most comparisons of a micro-batch */
    float *losses;                 /* [tokens of a micro-batch] */
    float *mine, *all;             /* [most][2], and of all ranks */
};

/* The log-probabilities of the comparisons of a micro-batch, as ot_compare adds them. */
static int run_micro(const struct pass *p, int64_t micro, float *numbers) {
    struct ot_step_batch batch;
    OT_TRY(ot_batcher_seek(p->batcher, (struct ot_data_position){0, micro * p->micro_sequences}));
    OT_TRY(ot_batcher_next(p->batcher, &batch));
    const struct ot_micro_batch *mb = &batch.input.micro[0];
    OT_TRY(ot_engine_eval(p->session->engine, mb, p->losses));
    for (int64_t i = 0; i < mb->n_comparisons; i++) {
        double l[2];
        ot_compare_answers(&mb->comparisons[i], p->losses, l);
        if (!isfinite(l[0]) || !isfinite(l[1]))
            return ot_fail(OT_E_NUMERIC,
                           "the reference model gives an answer a log-probability that is not a "
                           "finite number; use another --dtype");
        numbers[2 * i] = (float)l[0];
        numbers[2 * i + 1] = (float)l[1];
    }
    return 0;
}

static int64_t count_rows(const struct pass *p, int64_t micro) {
    int64_t n = 0, sequences = ot_packing_sequences(p->packing);
    int64_t end = ot_min((micro + 1) * p->micro_sequences, sequences);
    for (int64_t s = micro * p->micro_sequences; s < end; s++) {
        int64_t rows;
        (void)ot_packing_sequence(p->packing, s, &rows);
        n += rows;
    }
    return n;
}

/* Gives the numbers of a micro-batch to its rows. */
static void put_numbers(const struct pass *p, int64_t micro, const float *numbers) {
    int64_t end = ot_min((micro + 1) * p->micro_sequences, ot_packing_sequences(p->packing));
    for (int64_t s = micro * p->micro_sequences; s < end; s++) {
        int64_t n;
        const uint32_t *rows = ot_packing_sequence(p->packing, s, &n);
        for (int64_t i = 0; i < n; i++, numbers += 2)
            memcpy(p->numbers + 2 * (size_t)rows[i], numbers, 2 * sizeof *numbers);
    }
}

/* Reads the records that an earlier pass has written. Returns their number. */
static int64_t read_records(const struct pass *p, int64_t micros) {
    int64_t micro = 0;
    for (; p->file && micro < micros; micro++) {
        if (!read_record(p->file, (uint32_t)count_rows(p, micro), p->all))
            break;
        put_numbers(p, micro, p->all);
    }
    return micro;
}

/* Computes the micro-batches from `first` on, one a rank; together: the first alone. Rank 0 keeps all. */
static int run_round(const struct pass *p, int64_t first, int64_t micros) {
    struct ot_comm *comm = p->session->ranks.comm;
    bool together = ot_engine_runs_together(p->session->engine);
    int ranks = comm ? ot_comm_ranks(comm) : 1, rank = comm ? ot_comm_rank(comm) : 0;
    int64_t mine = first + (together ? 0 : rank), n = together ? 1 : ranks;
    OT_TRY(run_micro(p, ot_min(mine, micros - 1), p->mine));
    memcpy(p->all, p->mine, 2 * (size_t)p->most * sizeof *p->mine);
    if (comm && !together)
        OT_TRY(ot_comm_all_gather_host(comm, p->mine, 2 * (size_t)p->most * sizeof *p->mine, p->all));
    for (int64_t i = 0; i < n && first + i < micros; i++) {
        const float *numbers = p->all + 2 * i * p->most;
        put_numbers(p, first + i, numbers);
        if (p->file)
            OT_TRY(write_record(p->file, (uint32_t)count_rows(p, first + i), numbers));
    }
    return 0;
}

static int run_pass(const struct pass *p) {
    struct ot_comm *comm = p->session->ranks.comm;
    int64_t micros = ot_batcher_steps_per_epoch(p->batcher), done = read_records(p, micros);
    if (comm)
        OT_TRY(ot_comm_broadcast_host(comm, &done, sizeof done, 0));
    if (done < micros && p->session->model.restored)
        return refuse(p->file ? p->file->path : file_name);
    int64_t together = ot_engine_runs_together(p->session->engine) || !comm ? 1 : ot_comm_ranks(comm);
    for (int64_t first = done; first < micros; first += together) {
        char line[64];
        snprintf(line, sizeof line, "reference: %d %%", (int)(100 * first / micros));
        if (!p->session->options->quiet)
            ot_log_set_status(line);
        OT_TRY(run_round(p, first, micros));
    }
    ot_log_set_status("");
    return comm ? ot_comm_broadcast_host(comm, p->numbers,
                                         2 * (size_t)ot_dataset_rows(p->dataset) * sizeof *p->numbers, 0)
                : 0;
}

/* Computes or reads the numbers of all rows of a dataset, in micro-batches of `sequences`. */
static int make_numbers(const struct ot_session *session, const struct ot_dataset *dataset, int64_t seq_len,
                        int64_t sequences, struct file *file, float **out) {
    struct pass p = {.session = session, .dataset = dataset, .file = file};
    struct ot_packing_config packing = {
        .dataset = dataset, .seq_len = seq_len, .one_row = !session->options->pack};
    int64_t tokens = sequences * seq_len;
    int ranks = session->ranks.comm ? ot_comm_ranks(session->ranks.comm) : 1, rc;
    p.micro_sequences = sequences;
    p.most = tokens / OT_COMPARISON_TOKENS;
    p.numbers = *out = calloc(2 * (size_t)ot_dataset_rows(dataset), sizeof **out);
    p.losses = malloc((size_t)tokens * sizeof *p.losses);
    p.mine = calloc(2 * (size_t)p.most, sizeof *p.mine);
    p.all = calloc(2 * (size_t)(p.most * ranks), sizeof *p.all);
    if (!p.numbers || !p.losses || !p.mine || !p.all)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory for the reference's log-probabilities"), rc, out);
    OT_TRY_GOTO(ot_packing_open(&packing, &p.packing), rc, out);
    struct ot_batch_config config = {.packing = p.packing,
                                     .dataset = dataset,
                                     .seq_len = seq_len,
                                     .step_sequences = sequences,
                                     .micro_sequences = sequences};
    OT_TRY_GOTO(ot_batcher_open(&config, &p.batcher), rc, out);
    p.micro_sequences = ot_min(sequences, ot_packing_sequences(p.packing));
    rc = run_pass(&p);
out:
    ot_batcher_close(p.batcher);
    ot_packing_close(p.packing);
    free(p.all);
    free(p.mine);
    free(p.losses);
    return rc;
}

/* ---- all rows ---- */

static uint32_t add_print(uint32_t crc, const struct ot_data_fingerprint *print) {
    const int64_t numbers[] = {print->rows, print->tokens, print->trained_tokens, print->crc};
    return ot_crc32(crc, numbers, sizeof numbers);
}

/* The fingerprint of all that the numbers depend on. */
static uint32_t find_print(const struct ot_session *session, const struct ot_rows *rows,
                           const struct ot_run_identity *identity) {
    const struct ot_options *o = session->options;
    const int64_t numbers[] = {
        identity->base.is_known, identity->base.sample, rows->seq_len, o->micro_batch, o->pack, o->seed,
        session->model.dtype};
    uint32_t crc = ot_crc32(0, numbers, sizeof numbers);
    return add_print(add_print(crc, &identity->data), &identity->eval_data);
}

int ot_references_make(const struct ot_session *session, const struct ot_rows *rows,
                       const struct ot_run_identity *identity, struct ot_references *references) {
    const char *out = session->options->no_save ? NULL : session->options->out;
    struct ot_checkpoint *restored = session->model.restored;
    *references = (struct ot_references){0};
    if (!ot_objective_has_reference((enum ot_objective_kind)session->options->objective))
        return 0;
    struct file file, *mine = ot_is_rank0(session) ? &file : NULL;
    if (mine)
        OT_TRY(open_file(mine, out, find_print(session, rows, identity),
                         restored ? ot_checkpoint_dir(restored) : NULL));
    int64_t micro = session->options->micro_batch;
    int rc = make_numbers(session, rows->data, rows->seq_len, micro, mine, &references->data);
    if (rc == 0 && rows->own_eval)
        rc = make_numbers(session, rows->own_eval, rows->seq_len, micro, mine, &references->own_eval);
    return mine ? close_file(mine, rc) : rc;
}

/* ---- by another model, for eval ---- */

/* The options with which the reference is opened. */
static int choose_model(const struct ot_session *s, struct ot_options *out) {
    static const char *const others[] = {"adapter", "lora", "train", "freeze"};
    const struct ot_options *o = s->options;
    *out = *o;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ot_option_reset(out, ot_option_find(others[i], strlen(others[i]), o->command));
    out->model = o->reference ? o->reference : s->model.resolved.path;
    out->tokenizer = s->text.tokenizer_path; /* the rows have its tokens */
    if (!o->reference && !o->adapter)
        return ot_fail(
            OT_E_USAGE,
            "--objective %s compares the model with a reference: give --reference MODEL, the model "
            "before training (of adapters it is their base)",
            ot_objective_name((enum ot_objective_kind)o->objective));
    if (!o->reference && ot_model_dir_is_resized(s->model.dir))
        return ot_fail(OT_E_USAGE,
                       "the adapters have tokens that their base does not have, so the base cannot be their "
                       "reference; give --reference MODEL");
    return 0;
}

static int open_reference(struct ot_settings *settings, const struct ot_session *judged,
                          const struct ot_rows *rows, struct ot_session *s) {
    int64_t seq_len, micro = judged->options->micro_batch, sequences = ot_packing_sequences(rows->eval);
    OT_TRY(ot_session_open(settings, s));
    OT_TRY(ot_shape_seq_len(settings, ot_model_longest_row(&s->model.config), &seq_len));
    if (s->model.config.vocab < judged->model.config.vocab)
        return ot_fail(OT_E_INPUT, "%s has %lld tokens, fewer than the %lld of the model", s->options->model,
                       (long long)s->model.config.vocab, (long long)judged->model.config.vocab);
    sequences = ot_min(sequences, OT_EVAL_MOST_MICRO_BATCHES * ot_max(micro, 1));
    const struct ot_session_need need = {.max_position = seq_len,
                                         .sequence_tokens = seq_len,
                                         .step_sequences = sequences,
                                         .micro_sequences = ot_min(micro, sequences),
                                         .host_bytes = ot_rows_bytes(rows)};
    OT_TRY(ot_session_plan(s, &need));
    OT_TRY(ot_session_start(s, NULL));
    return ot_agree_on_weights(s);
}

int ot_references_of_model(const struct ot_session *judged, const struct ot_rows *rows,
                           struct ot_references *references) {
    struct file none = {.fd = -1};
    struct ot_settings settings;
    struct ot_session s = {.ranks.world = judged->ranks.world};
    *references = (struct ot_references){0};
    if (!ot_objective_has_reference((enum ot_objective_kind)judged->options->objective))
        return 0;
    OT_TRY(choose_model(judged, &settings.in_effect));
    int rc = open_reference(&settings, judged, rows, &s);
    if (rc == 0)
        rc = make_numbers(&s, rows->data, rows->seq_len,
                          ot_plan_micro_sequences(&s.plan.chosen, rows->seq_len),
                          ot_is_rank0(&s) ? &none : NULL, &references->data);
    rc = rc < 0 ? ot_fail_context(rc, "the reference") : 0;
    ot_session_close(&s);
    return rc;
}

const float *ot_references_of_eval(const struct ot_references *references, const struct ot_rows *rows) {
    return rows->eval_set == rows->own_eval ? references->own_eval : references->data;
}

void ot_references_free(struct ot_references *references) {
    free(references->data);
    free(references->own_eval);
    *references = (struct ot_references){0};
}

void ot_references_forget(const char *out, const char *checkpoints) {
    char path[PATH_MAX];
    if (access(checkpoints, F_OK) < 0 && find_path(out, path) == 0)
        (void)unlink(path);
}
