#include "src/cli/turns.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/session/session_ranks.h"

enum event { USER_THINKS, PROMPT, END };

/* A turn for the other ranks: the head, then the ids of the prompt. */
struct head {
    int64_t n_prompt, max_new;
    uint64_t number;
};

void ot_turns_begin(const struct ot_session *s) {
    if (s->ranks.comm)
        setvbuf(stdin, NULL, _IONBF, 0);
}

int ot_turns_await(struct ot_session *s, const sigset_t *open) {
    static const struct timespec second = {.tv_sec = 1};
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        int event = USER_THINKS, rc = ppoll(&input, 1, s->ranks.comm ? &second : NULL, open);
        if (rc < 0 && errno != EINTR)
            return ot_fail_errno(OT_E_IO, errno, "stdin: cannot wait");
        if (rc != 0)
            return rc > 0;
        OT_TRY(ot_session_ranks_choose(s, &event));
    }
}

static int hand(struct ot_session *s, const struct ot_generation *generation) {
    struct head head = {generation->n_prompt, generation->max_new, generation->number};
    size_t ids = (size_t)head.n_prompt * sizeof *generation->prompt, n = sizeof head + ids;
    int event = PROMPT;
    unsigned char *bytes = malloc(n);
    if (!bytes)
        return ot_fail(OT_E_BUDGET, "no memory for a prompt of %lld tokens", (long long)head.n_prompt);
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, generation->prompt, ids);
    int rc = ot_session_ranks_choose(s, &event);
    if (rc == 0)
        rc = ot_session_ranks_hand(s, 0, &bytes, &n);
    free(bytes);
    return rc;
}

int ot_turns_generate(struct ot_session *s, const struct ot_generation *generation,
                      struct ot_generated *out) {
    if (s->ranks.comm)
        OT_TRY(hand(s, generation));
    return ot_generate(s, generation, out);
}

int ot_turns_end(struct ot_session *s, int rc) {
    int event = END;
    return rc < 0 ? rc : ot_session_ranks_choose(s, &event);
}

/* Takes part in one turn. */
static int follow(struct ot_session *s) {
    const struct ot_options *o = s->options;
    struct ot_generated text = {0};
    struct head head;
    unsigned char *bytes = NULL;
    size_t n = 0;
    int rc = ot_session_ranks_hand(s, 0, &bytes, &n);
    if (rc == 0) {
        memcpy(&head, bytes, sizeof head);
        memmove(bytes, bytes + sizeof head, n - sizeof head); /* now the ids are aligned */
        struct ot_generation generation = {.prompt = (const int32_t *)(void *)bytes,
                                           .n_prompt = head.n_prompt,
                                           .max_new = head.max_new,
                                           .temperature = o->temperature,
                                           .top_p = o->top_p,
                                           .seed = (uint64_t)o->seed,
                                           .number = head.number};
        rc = ot_generate(s, &generation, &text);
    }
    ot_generated_free(&text);
    free(bytes);
    return rc;
}

int ot_turns_follow(struct ot_session *s) {
    int event = USER_THINKS;
    while (event != END) {
        OT_TRY(ot_session_ranks_choose(s, &event));
        int rc = event == PROMPT ? follow(s) : 0;
        if (rc < 0 && rc != -OT_E_INPUT) /* rank 0 decides whether a bad prompt ends the dialogue */
            return rc;
    }
    return 0;
}
