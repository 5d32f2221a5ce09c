/* offload-train generate: continues texts, or answers data rows. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/session/open.h"
#include "src/train/generator.h"

/* ---- chat ---- */

/* A conversation at the terminal, for generate --chat. The user types a turn and reads the answer while the
 * model writes it. The conversation goes to the model as a data row does: in the chat template that rows
 * would get.
 *
 * Lines that begin with a slash are commands: /reset begins a new conversation, /exit ends the program.
 * Ctrl-C stops an answer and keeps what was written of it. At the prompt, Ctrl-D ends the program, and so
 * does Ctrl-C twice. Where stdin is no terminal, each line is a turn; the answers are all that goes to
 * stdout.
 */

/* Tokens of a conversation for which memory is planned, if the model has so many positions. */
enum { OT_CHAT_TOKENS = 8192 };

enum { MOST_LINE_BYTES = 1 << 24, DEFAULT_ANSWER_TOKENS = 1024 };

struct turn {
    const char *role;
    char *text;
    size_t bytes;
};

struct chat {
    struct ot_session *session;
    int64_t capacity;
    struct turn *turns;
    size_t n, room;
    uint64_t answers; /* number of answers so far */
    bool terminal;
};

/* ---- Ctrl-C ---- */

static volatile sig_atomic_t interrupts;

static void count_interrupt(int signal) {
    (void)signal;
    interrupts++;
}

static bool is_interrupted(void) {
    return interrupts > 0;
}

/* Without SA_RESTART: Ctrl-C ends the wait for a line. */
static void catch_interrupts(struct sigaction *before) {
    struct sigaction action = {.sa_handler = count_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, before);
}

/* ---- turns ---- */

static int add_turn(struct chat *chat, const char *role, const char *text, size_t bytes) {
    OT_TRY(ot_grow(&chat->turns, &chat->room, chat->n + 1, sizeof *chat->turns, "turns"));
    char *copy = ot_string_copy(text, bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for a turn of %zu bytes", bytes);
    chat->turns[chat->n++] = (struct turn){role, copy, bytes};
    return 0;
}

/* Keeps the first n turns. */
static void keep_turns(struct chat *chat, size_t n) {
    while (chat->n > n)
        free(chat->turns[--chat->n].text);
}

static int begin(struct chat *chat) {
    const char *system = chat->session->options->system;
    keep_turns(chat, 0);
    return system ? add_turn(chat, "system", system, strlen(system)) : 0;
}

static int make_prompt(const struct chat *chat, struct ot_prompt *prompt) {
    struct ot_json_writer w = {.indent = -1};
    char *row;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    ot_json_begin_array(&w, "messages");
    for (size_t i = 0; i < chat->n; i++) {
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "role", chat->turns[i].role);
        ot_json_put_string(&w, "content", chat->turns[i].text, chat->turns[i].bytes);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &row, &bytes));
    int rc = ot_prompt_from_row(chat->session, row, bytes, "conversation", prompt);
    free(row);
    return rc;
}

/* Checks before the model is loaded that a conversation can be formatted. Errors: as ot_prompt_from_row. */
static int chat_check(const struct ot_session *session) {
    struct chat chat = {.session = (struct ot_session *)session};
    struct ot_prompt prompt = {0};
    if (ot_model_has_pairs(&session->model.config))
        return ot_fail(OT_E_USAGE,
                       "--chat: an encoder-decoder answers one input, without turns; use -p TEXT");
    int rc = begin(&chat);
    if (rc == 0)
        rc = add_turn(&chat, "user", "Hello", strlen("Hello"));
    if (rc == 0)
        rc = make_prompt(&chat, &prompt);
    ot_prompt_free(&prompt);
    keep_turns(&chat, 0);
    free(chat.turns);
    return rc;
}

/* ---- answers ---- */

static int print_piece(void *context, const char *text, size_t bytes) {
    (void)context;
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return ot_fail(OT_E_IO, "stdout: cannot write the text");
    return 0;
}

static int end_line(void) {
    return print_piece(NULL, "\n", 1);
}

static int generate(struct chat *chat, const struct ot_prompt *prompt) {
    const struct ot_options *o = chat->session->options;
    int64_t room = chat->capacity - prompt->n;
    int64_t most = ot_options_given(o, "max-new-tokens") ? o->max_new_tokens : DEFAULT_ANSWER_TOKENS;
    struct ot_generation generation = {.prompt = prompt->ids,
                                       .n_prompt = prompt->n,
                                       .max_new = ot_min(most, room),
                                       .temperature = o->temperature,
                                       .top_p = o->top_p,
                                       .seed = (uint64_t)o->seed,
                                       .number = chat->answers++,
                                       .emit = print_piece,
                                       .stopped = is_interrupted};
    struct ot_generated answer = {0};
    int rc = ot_generate(chat->session, &generation, &answer);
    if (rc == 0)
        rc = end_line();
    bool stopped = is_interrupted();
    if (stopped) /* later signals are for the prompt */
        interrupts = 0;
    if (rc == 0 && stopped)
        ot_log(OT_LOG_INFO, "stopped; what was written stays part of the conversation");
    else if (rc == 0 && !answer.ended)
        ot_log(OT_LOG_INFO, "the answer ends after %lld tokens (--max-new-tokens, or the room that is left)",
               (long long)answer.n);
    if (rc == 0)
        rc = add_turn(chat, "assistant", answer.text ? answer.text : "", answer.bytes);
    ot_generated_free(&answer);
    return rc;
}

static int check_room(const struct chat *chat, const struct ot_prompt *prompt) {
    if (prompt->n < chat->capacity)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "the conversation has %lld tokens, but there is room for %lld; /reset begins a new one",
                   (long long)prompt->n, (long long)chat->capacity);
}

/* Answers a turn. At a terminal, prints the fault of a bad turn and forgets the turn. A script gets the
 * error, because its later turns would follow another conversation. */
static int answer_turn(struct chat *chat, const char *text, size_t bytes) {
    struct ot_prompt prompt = {0};
    size_t before = chat->n;
    int rc = add_turn(chat, "user", text, bytes);
    if (rc == 0)
        rc = make_prompt(chat, &prompt);
    if (rc == 0)
        rc = check_room(chat, &prompt);
    if (rc == -OT_E_INPUT && chat->terminal) {
        ot_log(OT_LOG_ERROR, "%s", ot_error_text());
        keep_turns(chat, before);
        rc = 0;
    } else if (rc == 0) {
        rc = generate(chat, &prompt);
    }
    ot_prompt_free(&prompt);
    return rc;
}

/* ---- the dialogue ---- */

enum command { NO_COMMAND, RESET, EXIT, UNKNOWN };

static enum command find_command(const char *line) {
    if (*line != '/')
        return NO_COMMAND;
    if (ot_words_have("/exit /quit /bye", line))
        return EXIT;
    return strcmp(line, "/reset") == 0 ? RESET : UNKNOWN;
}

/* Waits until the terminal has a line. Ctrl-C is let in only while this waits, so that it cannot come just
 * before. Returns 1, or 0 after Ctrl-C. */
static int wait_for_line(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    pthread_sigmask(SIG_BLOCK, &blocked, &open);
    int rc = interrupts > 0 ? 0 : ppoll(&input, 1, NULL, &open);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &open, NULL);
    if (rc < 0 && error != EINTR)
        return ot_fail_errno(OT_E_IO, error, "stdin: cannot wait");
    return rc > 0;
}

/* Shows the prompt and waits at a terminal. Returns 1, 0 if the user wants to end, or an error. */
static int invite(const struct chat *chat) {
    for (int times = 0; chat->terminal; times++) {
        fputs("> ", stderr);
        int rc = wait_for_line();
        if (rc != 0)
            return rc;
        interrupts = 0;
        fputs("\n", stderr);
        if (times > 0)
            return 0;
        ot_log(OT_LOG_INFO, "Ctrl-C again, or Ctrl-D, ends the conversation");
    }
    return 1;
}

/* Reads a line without its end. Returns 1, 0 at the end of the input, or an error. */
static int read_line(const struct chat *chat, char **line, size_t *capacity, size_t *bytes) {
    int rc = invite(chat);
    if (rc <= 0)
        return rc;
    errno = 0;
    ssize_t n = getline(line, capacity, stdin);
    if (n > MOST_LINE_BYTES)
        return ot_fail(OT_E_BUDGET, "stdin: a line is longer than %d MiB", MOST_LINE_BYTES >> 20);
    if (n < 0) /* Ctrl-C ends the input that is no terminal */
        return feof(stdin) || errno == EINTR ? 0 : ot_fail_errno(OT_E_IO, errno, "stdin: cannot read");
    *bytes = (size_t)n - ((*line)[n - 1] == '\n');
    (*line)[*bytes] = '\0';
    return 1;
}

static int refuse_command(const struct chat *chat, const char *line) {
    if (!chat->terminal)
        return ot_fail(OT_E_INPUT, "stdin: unknown command '%.40s'; there are /reset and /exit", line);
    ot_log(OT_LOG_ERROR, "unknown command; there are /reset and /exit");
    return 0;
}

static int converse(struct chat *chat) {
    char *line = NULL;
    size_t capacity = 0, bytes = 0;
    int rc;
    while ((rc = read_line(chat, &line, &capacity, &bytes)) > 0) {
        enum command command = find_command(line);
        if (command == EXIT)
            break;
        if (command == RESET)
            rc = begin(chat);
        else if (command == UNKNOWN)
            rc = refuse_command(chat, line);
        else if (bytes > 0)
            rc = answer_turn(chat, line, bytes);
        if (rc < 0)
            break;
    }
    free(line);
    return rc < 0 ? rc : 0;
}

/* Converses until the user ends it. capacity: tokens for which memory was planned. Errors: OT_E_IO, and
 * those of ot_generate. */
static int chat_run(struct ot_session *session, int64_t capacity) {
    struct chat chat = {.session = session, .capacity = capacity, .terminal = isatty(STDIN_FILENO)};
    struct sigaction before;
    if (chat.terminal)
        ot_log(OT_LOG_INFO, "type a turn; Ctrl-C stops an answer, /reset begins anew, Ctrl-D or /exit ends");
    catch_interrupts(&before);
    int rc = begin(&chat);
    if (rc == 0)
        rc = converse(&chat);
    sigaction(SIGINT, &before, NULL);
    keep_turns(&chat, 0);
    free(chat.turns);
    return rc;
}

/* ---- command generate ---- */

enum { MOST_PROMPTS = 100000, PREFILL_TOKENS = 512 };
/* On a terminal, memory is planned before the prompts are known: room for prompts of up to this many tokens.
 */
enum { DIALOGUE_TOKENS = 4096 };

struct job {
    struct ot_session session;
    struct ot_lines lines;
    struct ot_prompt *prompts; /* [lines.n] */
    int64_t longest, capacity; /* tokens of the longest prompt; of a prompt and its text together */
};

/* Checks the prompt against the model; the tokenizer may belong to another model. */
static int check_prompt(const struct job *job, const struct ot_prompt *prompt, const char *where) {
    const struct ot_session *s = &job->session;
    for (int64_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] >= s->model.config.vocab) {
            const char *token = ot_tokenizer_token(s->text.tokenizer, prompt->ids[i], NULL);
            return ot_fail(OT_E_INPUT,
                           "%s: token %d ('%s') is outside of the model's embedding, which has %lld rows; "
                           "use the tokenizer of this model",
                           where, prompt->ids[i], token ? token : "", (long long)s->model.config.vocab);
        }
    if (prompt->n >= ot_model_longest_row(&s->model.config))
        return ot_fail(
            OT_E_INPUT,
            "%s: the prompt has %lld tokens and leaves no room in the model's %lld positions; shorten it",
            where, (long long)prompt->n, (long long)ot_model_longest_row(&s->model.config));
    if (job->capacity && prompt->n >= job->capacity)
        return ot_fail(
            OT_E_INPUT,
            "%s: the prompt has %lld tokens, but there is room for only %lld here; use -p for long prompts",
            where, (long long)prompt->n, (long long)job->capacity);
    return 0;
}

/* Makes the prompt of line i. The caller frees it, also after an error. */
static int make_row_prompt(const struct job *job, size_t i, struct ot_prompt *prompt) {
    const struct ot_session *s = &job->session;
    const char *text = job->lines.text[i];
    char where[40] = "--prompt";
    if (!s->options->prompt)
        snprintf(where, sizeof where, "stdin:%zu", i + 1);
    OT_TRY(s->options->row ? ot_prompt_from_row(s, text, job->lines.bytes[i], where, prompt)
                           : ot_prompt_from_text(s, text, job->lines.bytes[i], prompt));
    return check_prompt(job, prompt, where);
}

static int read_prompts(struct job *job) {
    const struct ot_options *o = job->session.options;
    if (o->prompt)
        OT_TRY(ot_lines_add(&job->lines, o->prompt, strlen(o->prompt)));
    else
        OT_TRY(ot_lines_read_stdin(&job->lines, MOST_PROMPTS));
    if (job->lines.n == 0)
        return ot_fail(OT_E_INPUT, "stdin: no prompt; use -p TEXT, or write one prompt per line");
    job->prompts = calloc(job->lines.n, sizeof *job->prompts);
    if (!job->prompts)
        return ot_fail(OT_E_BUDGET, "no memory for %zu prompts", job->lines.n);
    for (size_t i = 0; i < job->lines.n; i++) {
        OT_TRY(make_row_prompt(job, i, &job->prompts[i]));
        if (job->prompts[i].n > job->longest)
            job->longest = job->prompts[i].n;
    }
    return 0;
}

static int start(struct job *job) {
    struct ot_session *s = &job->session;
    int64_t capacity = job->longest + s->options->max_new_tokens;
    if (capacity > ot_model_longest_row(&s->model.config))
        capacity = ot_model_longest_row(&s->model.config);
    job->capacity = capacity;
    /* The input of an encoder-decoder is encoded at once, and a start token follows. */
    bool pairs = ot_model_has_pairs(&s->model.config);
    int64_t prefill = job->longest < 1                         ? 1
                      : job->longest < PREFILL_TOKENS || pairs ? job->longest
                                                               : PREFILL_TOKENS;
    struct ot_session_need need = {.max_position = capacity,
                                   .sequence_tokens = prefill,
                                   .step_sequences = 1,
                                   .micro_sequences = 1,
                                   .cache_tokens = capacity + pairs};
    OT_TRY(ot_session_plan(s, &need));
    return ot_session_start(s, NULL);
}

static int print_sample_piece(void *context, const char *text, size_t bytes) {
    (void)context;
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return ot_fail(OT_E_IO, "stdout: cannot write the text");
    return 0;
}

static int print_json(const struct job *job, size_t i, const struct ot_prompt *prompt,
                      const struct ot_generated *generated) {
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_string(&w, "prompt", job->lines.text[i], job->lines.bytes[i]);
    ot_json_put_string(&w, "text", generated->text ? generated->text : "", generated->bytes);
    ot_json_begin_array(&w, "ids");
    for (int64_t t = 0; t < generated->n; t++)
        ot_json_put_int(&w, NULL, generated->ids[t]);
    ot_json_end_array(&w);
    ot_json_put_text(&w, "ended_by", generated->ended ? "eos" : "length");
    ot_json_put_int(&w, "prompt_tokens", prompt->n);
    ot_json_put_real(&w, "seconds", generated->seconds);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

static int generate_one(struct job *job, size_t i, const struct ot_prompt *prompt) {
    const struct ot_options *o = job->session.options;
    int64_t room = job->capacity - prompt->n;
    struct ot_generation generation = {.prompt = prompt->ids,
                                       .n_prompt = prompt->n,
                                       .max_new = ot_min(o->max_new_tokens, room),
                                       .temperature = o->temperature,
                                       .top_p = o->top_p,
                                       .seed = (uint64_t)o->seed,
                                       .number = i,
                                       .emit = o->json ? NULL : print_sample_piece};
    struct ot_generated generated = {0};
    int rc = ot_generate(&job->session, &generation, &generated);
    if (rc == 0 && o->json)
        rc = print_json(job, i, prompt, &generated);
    else if (rc == 0)
        putchar('\n');
    if (rc == 0 && ot_log_is_terminal()) {
        char time[OT_TEXT_BYTES];
        ot_log(OT_LOG_INFO, "%lld tokens in %s, %.1f tok/s%s", (long long)generated.n,
               ot_text_duration(generated.seconds, time),
               generated.seconds > 0 ? (double)generated.n / generated.seconds : 0.0,
               generated.ended ? "" : " (stopped by --max-new-tokens or the model's maximum length)");
    }
    ot_generated_free(&generated);
    return rc;
}

/* Prints the bytes that fetches of experts have copied and saved. */
static void print_experts(const struct ot_session *s) {
    struct ot_engine_fetches fetches;
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    char copied[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    ot_engine_get_fetches(s->engine, &fetches);
    if (fetches.parts == 0 || !ot_log_is_terminal())
        return;
    int parts = ot_chain_most_parts(chain);
    ot_log(OT_LOG_INFO,
           "experts: %.1f of %d of a layer fetched on average · %s of weights copied, %s left at home",
           parts * (double)fetches.used / (double)fetches.parts, parts,
           ot_text_bytes((double)fetches.bytes, copied), ot_text_bytes((double)fetches.left_bytes, left));
}

/* A dialogue on a terminal: the user types a line and reads the answer. A line that is not a valid prompt
 * gets its error, and the dialogue continues. */
static int chat_by_turns(struct job *job) {
    int n;
    job->longest = DIALOGUE_TOKENS;
    OT_TRY(start(job));
    while ((n = ot_lines_read_stdin(&job->lines, 1)) > 0) {
        struct ot_prompt prompt = {0};
        size_t i = job->lines.n - 1;
        int rc = make_row_prompt(job, i, &prompt);
        if (rc < 0)
            ot_log(OT_LOG_ERROR, "%s", ot_error_text());
        else
            rc = generate_one(job, i, &prompt);
        ot_prompt_free(&prompt);
        if (rc < 0 && rc != -OT_E_INPUT)
            return rc;
        if (fflush(stdout) != 0)
            return ot_fail(OT_E_IO, "stdout: cannot write the text");
    }
    return n;
}

/* The conversation of --chat. Its template is checked before memory is taken. */
static int chat(struct job *job) {
    job->session.text.prompt_format = NULL; /* the format of a run's rows has no turns */
    OT_TRY(chat_check(&job->session));
    job->longest = OT_CHAT_TOKENS;
    OT_TRY(start(job));
    return chat_run(&job->session, job->capacity);
}

static int run(struct job *job) {
    if (job->session.options->chat)
        return chat(job);
    if (!job->session.options->prompt && isatty(STDIN_FILENO))
        return chat_by_turns(job);
    OT_TRY(read_prompts(job));
    OT_TRY(start(job));
    for (size_t i = 0; i < job->lines.n; i++)
        OT_TRY(generate_one(job, i, &job->prompts[i]));
    print_experts(&job->session);
    return 0;
}

int ot_command_generate(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct job job = {0};
    int rc = ot_session_open(&settings, &job.session);
    if (rc == 0)
        rc = run(&job);
    for (size_t i = 0; job.prompts && i < job.lines.n; i++)
        ot_prompt_free(&job.prompts[i]);
    free(job.prompts);
    ot_lines_clear(&job.lines);
    ot_session_close(&job.session);
    return rc;
}
