#include "src/cli/chat.h"

#include <errno.h>
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
#include "src/cli/turns.h"
#include "src/session/open.h"
#include "src/session/session_ranks.h"
#include "src/train/generator.h"

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

int ot_chat_check(const struct ot_session *session) {
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
    int rc = ot_turns_generate(chat->session, &generation, &answer);
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
static int wait_for_line(const struct chat *chat) {
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    pthread_sigmask(SIG_BLOCK, &blocked, &open);
    int rc = interrupts > 0 ? 0 : ot_turns_await(chat->session, &open);
    pthread_sigmask(SIG_SETMASK, &open, NULL);
    return rc;
}

/* Shows the prompt and waits at a terminal. Returns 1, 0 if the user wants to end, or an error. With one
 * rank, a read waits for the lines of a script. */
static int invite(const struct chat *chat) {
    if (!chat->terminal && chat->session->ranks.comm)
        return wait_for_line(chat);
    for (int times = 0; chat->terminal; times++) {
        fputs("> ", stderr);
        int rc = wait_for_line(chat);
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

int ot_chat_run(struct ot_session *session, int64_t capacity) {
    struct chat chat = {.session = session, .capacity = capacity, .terminal = isatty(STDIN_FILENO)};
    struct sigaction before;
    if (chat.terminal)
        ot_log(OT_LOG_INFO, "type a turn; Ctrl-C stops an answer, /reset begins anew, Ctrl-D or /exit ends");
    catch_interrupts(&before);
    ot_turns_begin(session);
    int rc = begin(&chat);
    if (rc == 0)
        rc = converse(&chat);
    rc = ot_turns_end(session, rc);
    sigaction(SIGINT, &before, NULL);
    keep_turns(&chat, 0);
    free(chat.turns);
    return rc;
}
