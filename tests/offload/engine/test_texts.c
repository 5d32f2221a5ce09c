/* Texts that grow side by side have the bits that each has alone: in any company, in any order of prompts and
 * steps, wherever weights live, and wherever the keys and values live. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/engine/engine_state.h"
#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { TEXTS = 5, STEPS = 4, MOST_PROMPT = 18, INPUTS = 5, MOST_ROOM = TINY_SEQUENCE };

/* LLAMA: norms of q and k, adapters. EXPERTS: gpt-oss, with sinks and biases. WINDOW: Gemma, whose logits are
 * capped. PAIRS: an encoder-decoder. */
enum kind { LLAMA, EXPERTS, WINDOW, PAIRS, KINDS };

static struct ot_lora_rank of_layers(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){ot_lora_layer_of(module) >= 0 ? 4 : 0, 8};
}

static const struct ot_lora LORA = {.choose = of_layers};

static void defaults(struct tiny_run *run, enum kind kind, enum ot_dtype dtype) {
    struct ot_model_config *c = &run->config;
    tiny_defaults(run, 2, false, dtype);
    if (kind == LLAMA) {
        c->family = OT_FAMILY_QWEN3;
        c->qk_norm = OT_QK_NORM_HEADS;
        c->n_kv_heads = 4;
        c->head_dim = c->rotary_dim = 16; /* rows of 256 bytes in fp32: the cache has several extents */
        run->lora = &LORA;
    } else if (kind == EXPERTS) {
        c->family = OT_FAMILY_GPT_OSS;
        c->n_experts = 8;
        c->top_experts = 2;
        c->expert_ffn = 24;
        c->qkv_bias = c->out_bias = c->sinks = c->router_bias = c->expert_bias = true;
        c->glu_limit = 0.5f;
        c->glu_alpha = 1.702f;
    } else if (kind == WINDOW) {
        c->window = 6;
        c->logit_softcap = 20;
        c->attention_softcap = 10;
    } else {
        *c = tiny_pair_config(true);
    }
    run->cache_rows = TEXTS * MOST_ROOM;
}

/* One text: its prompt, and the tokens that follow. */
struct text {
    int32_t tokens[MOST_PROMPT + STEPS];
    int64_t n_prompt, n_inputs, room;
};

/* Prompts of one token, of more than a micro-batch, and between. */
static void make_texts(const struct tiny_run *run, enum kind kind, struct text texts[TEXTS]) {
    static const int64_t lengths[TEXTS] = {9, 1, MOST_PROMPT, 7, 11};
    for (int t = 0; t < TEXTS; t++) {
        texts[t].n_inputs = kind == PAIRS ? INPUTS + t % 3 : 0;
        texts[t].n_prompt = kind == PAIRS ? texts[t].n_inputs + 1 : lengths[t];
        texts[t].room = MOST_ROOM - t; /* texts begin anywhere in an extent of the cache */
        for (int i = 0; i < MOST_PROMPT + STEPS; i++)
            texts[t].tokens[i] = (int32_t)ot_random_below(7, ot_random_stream(OT_RANDOM_TEST, (uint64_t)t, 3),
                                                          (uint64_t)i, (uint64_t)run->config.vocab);
    }
}

static struct ot_text_room room_of(const struct text *text) {
    return (struct ot_text_room){text->n_inputs, text->room};
}

/* The text's next tokens: its prompt, or one more. */
static struct ot_text_tokens next_of(const struct text *text, int number, int step) {
    return step == 0 ? (struct ot_text_tokens){number, text->tokens, text->n_prompt}
                     : (struct ot_text_tokens){number, text->tokens + text->n_prompt + step - 1, 1};
}

/* What texts must not depend on. Zeros: everything on the device, one text at a time. */
struct way {
    enum ot_home weights, cache;
    int texts, rounds;
    int slots, host_slots; /* of the cache */
    int64_t micro_tokens;  /* 0: half of the longest prompt */
};

/* Writes NaNs over all memory of a cache: no pass may read rows that it did not write. */
static void spoil(const struct ot_engine *en, const int *buffers, int n) {
    for (int i = 0; buffers && i < n; i++) {
        const struct ot_buffer *b = buffers[i] == OT_NO_BUFFER ? NULL : &en->layout.buffers[buffers[i]];
        if (b && b->tier == OT_TIER_GPU)
            ot_lane_fill(en->lane, ot_engine_at(en, buffers[i]), 0xff, b->bytes);
        else if (b && b->tier == OT_TIER_HOST)
            memset(ot_engine_at(en, buffers[i]), 0xff, b->bytes);
    }
}

static void spoil_cache(const struct ot_engine *en) {
    spoil(en, en->layout.cache, en->chain.n_blocks);
    spoil(en, en->layout.cache_slots, en->plan.cache_slots);
    spoil(en, en->layout.host_cache_slots, en->plan.host_cache_slots);
    check_ok(ot_lane_sync(en->lane));
}

static void open_engine(struct tiny_run *run, struct way way, struct tiny_engine *tiny) {
    bool pairs = run->config.n_encoder_layers > 0;
    run->micro_sequences = 1;
    tiny_plan(run, way.weights, OT_HOME_HOST, OT_HOME_GPU, 2);
    run->plan.micro_tokens = way.micro_tokens ? way.micro_tokens : pairs ? TINY_SEQUENCE : MOST_PROMPT / 2;
    run->plan.texts = way.texts;
    run->plan.cache = way.cache;
    run->plan.cache_slots = way.slots;
    run->plan.host_cache_slots = way.host_slots;
    if (way.rounds > 1)
        ot_plan_set_rounds(&run->plan, way.rounds);
    tiny_finish(run);
    tiny_open(run, tiny);
    spoil_cache(tiny->engine);
}

static void close_engine(struct tiny_run *run, struct tiny_engine *tiny) {
    ot_engine_decode_end(tiny->engine);
    tiny_close(tiny);
    ot_plan_free(&run->plan);
}

/* A prompt in pieces has the logits of the prompt in one piece, within fp32 rounding. */
static void pieces_make_the_prompt(void **state) {
    (void)state;
    struct tiny_run run;
    struct text texts[TEXTS];
    defaults(&run, LLAMA, OT_F32);
    make_texts(&run, LLAMA, texts);
    size_t vocab = (size_t)run.config.vocab;
    float *logits[2];
    for (int whole = 0; whole < 2; whole++) {
        struct tiny_engine tiny;
        const struct text *text = &texts[2];
        struct ot_text_room room = room_of(text);
        struct ot_text_tokens prompt = next_of(text, 0, 0);
        logits[whole] = malloc(vocab * sizeof(float));
        assert_non_null(logits[whole]);
        open_engine(&run, (struct way){.micro_tokens = whole ? MOST_PROMPT : 5}, &tiny);
        check_ok(ot_engine_texts_begin(tiny.engine, &room, 1));
        check_ok(ot_engine_texts_append(tiny.engine, &prompt, 1, logits[whole]));
        close_engine(&run, &tiny);
    }
    double largest = 0;
    for (size_t i = 0; i < vocab; i++)
        largest = fmax(largest, fabs((double)logits[0][i]));
    for (size_t i = 0; i < vocab; i++)
        assert_true(fabs((double)logits[0][i] - (double)logits[1][i]) < 1e-4 * largest);
    free(logits[0]);
    free(logits[1]);
}

/* want: [TEXTS][STEPS + 1][vocab], each text alone. */
static void generate_alone(struct tiny_run *run, const struct text texts[TEXTS], float *want) {
    struct tiny_engine tiny;
    open_engine(run, (struct way){.rounds = TINY_STEP_SEQUENCES}, &tiny); /* and a piece in a pass */
    for (int t = 0; t < TEXTS; t++) {
        struct ot_text_room room = room_of(&texts[t]);
        check_ok(ot_engine_texts_begin(tiny.engine, &room, 1));
        for (int s = 0; s <= STEPS; s++) {
            struct ot_text_tokens next = next_of(&texts[t], 0, s);
            check_ok(ot_engine_texts_append(tiny.engine, &next, 1,
                                            want + (t * (STEPS + 1) + s) * run->config.vocab));
        }
        ot_engine_decode_end(tiny.engine);
    }
    close_engine(run, &tiny);
}

/* Text t begins `late[t]` calls after the first. Compares after each call. */
static void generate_together(struct tiny_run *run, struct ot_engine *engine, const struct text texts[TEXTS],
                              const int late[TEXTS], const float *want) {
    struct ot_text_room rooms[TEXTS];
    int64_t vocab = run->config.vocab;
    float *logits = malloc((size_t)(TEXTS * vocab) * sizeof *logits);
    assert_non_null(logits);
    for (int t = 0; t < TEXTS; t++)
        rooms[t] = room_of(&texts[t]);
    check_ok(ot_engine_texts_begin(engine, rooms, TEXTS));
    for (int call = 0; call <= STEPS + 2; call++) {
        struct ot_text_tokens next[TEXTS];
        int n = 0;
        for (int t = 0; t < TEXTS; t++)
            if (call >= late[t] && call - late[t] <= STEPS)
                next[n++] = next_of(&texts[t], t, call - late[t]);
        if (n == 0)
            continue;
        check_ok(ot_engine_texts_append(engine, next, n, logits));
        for (int i = 0; i < n; i++) {
            int t = next[i].text, s = call - late[t];
            assert_memory_equal(logits + i * vocab, want + (t * (STEPS + 1) + s) * vocab,
                                (size_t)vocab * sizeof *logits);
        }
    }
    free(logits);
}

/* The emulated GPU takes a hundred times longer. */
static bool is_slow(void) {
    return !tiny_is_on_cpu() && tests_are_few();
}

static void same_bits_in_company(void **state) {
    (void)state;
    static const int all_at_once[TEXTS] = {0}, in_turn[TEXTS] = {0, 1, 0, 2, 1};
    static const struct way ways[] = {{OT_HOME_GPU, OT_HOME_GPU, 2, 1, 0, 0, 0},
                                      {OT_HOME_HOST, OT_HOME_HOST, 3, 2, 1, 0, 0},
                                      {OT_HOME_GPU, OT_HOME_HOST, TEXTS, 1, 2, 0, 0},
                                      {OT_HOME_HOST, OT_HOME_NVME, 64, 3, 2, 3, 0},
                                      {OT_HOME_HOST, OT_HOME_NVME, TEXTS, 1, 3, 1, 0}};
    for (int variant = 0; variant < KINDS * 2; variant++) {
        struct tiny_run run;
        struct text texts[TEXTS];
        defaults(&run, (enum kind)(variant / 2), variant & 1 ? OT_BF16 : OT_F32);
        if (is_slow() && !(variant & 1))
            continue;
        make_texts(&run, (enum kind)(variant / 2), texts);
        float *want = malloc((size_t)(TEXTS * (STEPS + 1) * run.config.vocab) * sizeof *want);
        assert_non_null(want);
        generate_alone(&run, texts, want);
        for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
            struct tiny_engine tiny;
            run.delay_seed = way & 1 ? way : 0;
            open_engine(&run, ways[way], &tiny);
            for (int again = 0; again < 1 + !is_slow(); again++) /* in the cache of other texts */
                generate_together(&run, tiny.engine, texts, way & 2 ? in_turn : all_at_once, want);
            close_engine(&run, &tiny);
        }
        free(want);
    }
}

/* A cache on nvme is moved in extents of 4 KiB here: 16 rows of k, or of v. A pass reads the extents in which
 * its texts have rows, and those to which it adds some rows but not all. It writes those to which it adds. An
 * extent that was never written is not read. */
static void used_extents_alone_move(void **state) {
    (void)state;
    static const struct {
        bool begins;       /* a new generation, in the cache of the last one */
        int text, n;       /* appends n tokens to this text */
        int reads, writes; /* extents of k in a layer */
    } cases[] = {
        {true, 0, 9, 0, 1},   /* rows 0 to 8 */
        {false, 0, 1, 1, 1},  /* row 9 */
        {false, 1, 9, 0, 2},  /* rows 24 to 32, of the second and the third extent */
        {false, 1, 1, 2, 1},  /* row 33 */
        {false, 0, 8, 2, 2},  /* rows 10 to 17: the second extent has rows of text 1, too */
        {false, 2, 20, 0, 2}, /* rows 48 to 67 */
        {true, 2, 20, 1, 2},  /* all of the fourth extent is new */
    };
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_store_usage before, after;
    static const int32_t tokens[TINY_SEQUENCE] = {1, 2, 3};
    struct ot_text_room rooms[3] = {{0, MOST_ROOM}, {0, MOST_ROOM}, {0, MOST_ROOM}};
    defaults(&run, LLAMA, OT_F32);
    open_engine(
        &run, (struct way){.cache = OT_HOME_NVME, .slots = 2, .host_slots = 3, .micro_tokens = TINY_SEQUENCE},
        &tiny);
    float *logits = malloc((size_t)run.config.vocab * sizeof *logits);
    assert_non_null(logits);
    int64_t each = 2 * run.config.n_layers * OT_STORE_ALIGN;
    assert_int_equal(tiny.engine->layout.cache_extent_bytes, OT_STORE_ALIGN);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_text_tokens next = {cases[i].text, tokens, cases[i].n};
        if (cases[i].begins)
            check_ok(ot_engine_texts_begin(tiny.engine, rooms, 3));
        ot_engine_store_usage(tiny.engine, &before);
        check_ok(ot_engine_texts_append(tiny.engine, &next, 1, logits));
        ot_engine_store_usage(tiny.engine, &after);
        assert_int_equal(after.read_bytes - before.read_bytes, cases[i].reads * each);
        assert_int_equal(after.written_bytes - before.written_bytes, cases[i].writes * each);
    }
    free(logits);
    close_engine(&run, &tiny);
}

/* The plan's ledger has every byte of the cache, on each tier. */
static void planned_bytes_are_used(void **state) {
    (void)state;
    for (int home = 0; home < OT_TIER_COUNT; home++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct ot_device_usage usage;
        struct ot_store_usage store;
        size_t cache = 0;
        struct ot_text_room room = {0, MOST_ROOM};
        defaults(&run, LLAMA, OT_BF16);
        open_engine(&run, (struct way){.cache = (enum ot_home)home, .slots = 1, .host_slots = 1}, &tiny);
        const struct ot_ledger *ledger = &run.plan.ledger;
        check_ok(ot_engine_texts_begin(tiny.engine, &room, 1));
        ot_device_usage(tiny.device, &usage);
        ot_engine_store_usage(tiny.engine, &store);
        assert_int_equal(usage.used_bytes - usage.scratch_bytes, ot_ledger_total(ledger, OT_TIER_GPU));
        assert_int_equal(tiny.engine->layout.tier_bytes[OT_TIER_HOST], ot_ledger_total(ledger, OT_TIER_HOST));
        assert_int_equal(store.file_bytes, ot_ledger_total(ledger, OT_TIER_NVME));
        for (int e = 0; e < ledger->n; e++)
            if (strcmp(ledger->entries[e].name, "key/value cache") == 0) {
                assert_int_equal(ledger->entries[e].tier, home);
                cache = ledger->entries[e].bytes;
            }
        assert_true(cache >= ot_engine_kv_bytes(&tiny.chain, run.cache_rows));
        close_engine(&run, &tiny);
    }
}

/* A pass of several prompts fetches streamed weights once: a fetch a slab, whatever the number of texts. */
static void weights_cross_once(void **state) {
    (void)state;
    int64_t bytes[2];
    for (int together = 0; together < 2; together++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct ot_text_room rooms[3] = {{0, 8}, {0, 8}, {0, 8}};
        struct ot_engine_fetches before, after;
        static const int32_t tokens[3] = {1, 2, 3};
        defaults(&run, EXPERTS, OT_BF16); /* its parts count what is fetched */
        open_engine(&run, (struct way){.weights = OT_HOME_HOST, .texts = together ? 3 : 1}, &tiny);
        float *logits = malloc((size_t)(3 * run.config.vocab) * sizeof *logits);
        assert_non_null(logits);
        check_ok(ot_engine_texts_begin(tiny.engine, rooms, 3));
        ot_engine_get_fetches(tiny.engine, &before);
        for (int call = 0; call < 2; call++) { /* a prompt, then a step */
            struct ot_text_tokens next[3];
            for (int t = 0; t < 3; t++)
                next[t] = (struct ot_text_tokens){t, tokens, call == 0 ? 3 : 1};
            check_ok(ot_engine_texts_append(tiny.engine, next, 3, logits));
        }
        ot_engine_get_fetches(tiny.engine, &after);
        bytes[together] = after.bytes - before.bytes;
        free(logits);
        close_engine(&run, &tiny);
    }
    assert_true(bytes[1] > 0);
    assert_true(2 * bytes[1] < bytes[0]);
}

/* The pieces of one prompt share a pass, as far as a round has places for them. */
static void pieces_share_a_pass(void **state) {
    (void)state;
    int64_t fetched[3];
    static const int rounds[3] = {TINY_STEP_SEQUENCES, 2, 1}; /* 6, 2 and 1 passes for 6 pieces */
    for (int i = 0; i < 3; i++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct text texts[TEXTS];
        struct ot_engine_fetches fetches;
        defaults(&run, EXPERTS, OT_BF16);
        make_texts(&run, EXPERTS, texts);
        struct ot_text_room room = room_of(&texts[2]);
        struct ot_text_tokens prompt = next_of(&texts[2], 0, 0);
        open_engine(&run, (struct way){.weights = OT_HOME_HOST, .rounds = rounds[i], .micro_tokens = 3},
                    &tiny);
        float *logits = malloc((size_t)run.config.vocab * sizeof *logits);
        assert_non_null(logits);
        check_ok(ot_engine_texts_begin(tiny.engine, &room, 1));
        check_ok(ot_engine_texts_append(tiny.engine, &prompt, 1, logits));
        ot_engine_get_fetches(tiny.engine, &fetches);
        fetched[i] = fetches.parts; /* the parts of all passes, copied or not */
        free(logits);
        close_engine(&run, &tiny);
    }
    assert_true(fetched[2] > 0);
    assert_int_equal(fetched[1], 2 * fetched[2]);
    assert_int_equal(fetched[0], 6 * fetched[2]);
}

static void refusals(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    static const int32_t tokens[8] = {1, 2, 3};
    struct ot_text_room rooms[2] = {{0, 6}, {0, 4}}, long_room = {0, 100000};
    defaults(&run, LLAMA, OT_F32);
    run.cache_rows = 10;
    open_engine(&run, (struct way){.texts = 2}, &tiny);
    float *logits = malloc((size_t)(2 * run.config.vocab) * sizeof *logits);
    assert_non_null(logits);
    struct ot_text_tokens two[2] = {{0, tokens, 3}, {1, tokens, 5}};
    check_fails(ot_engine_texts_begin(tiny.engine, &long_room, 1), OT_E_INPUT, "positions");
    check_fails(ot_engine_texts_begin(tiny.engine, &(struct ot_text_room){0, 0}, 1), OT_E_INPUT, "0 tokens");
    check_ok(ot_engine_texts_begin(tiny.engine, &(struct ot_text_room){0, 1}, 1));
    assert_int_equal(ot_engine_kv_bytes(&tiny.chain, 10),
                     2 * 10 * run.config.n_layers * run.config.n_kv_heads * run.config.head_dim * 4);
    check_ok(ot_engine_texts_begin(tiny.engine, rooms, 2));
    rooms[1].capacity = 5;
    check_fails(ot_engine_texts_begin(tiny.engine, rooms, 2), OT_E_BUDGET,
                "texts of 11 tokens do not fit the plan's cache of 10 tokens");
    check_fails(ot_engine_texts_append(tiny.engine, two, 2, logits), OT_E_INPUT, "the cache holds 4");
    two[1].n = 4;
    check_ok(ot_engine_texts_append(tiny.engine, two, 2, logits));
    two[1].n = 1;
    check_fails(ot_engine_texts_append(tiny.engine, two, 2, logits), OT_E_INPUT, "would grow to 5");
    two[1].text = 0;
    check_fails(ot_engine_texts_append(tiny.engine, two, 2, logits), OT_E_INTERNAL, "not in order");
    two[0].text = 2;
    check_fails(ot_engine_texts_append(tiny.engine, two, 1, logits), OT_E_INTERNAL, "text 2");
    free(logits);
    close_engine(&run, &tiny);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_in_company),
        cmocka_unit_test(pieces_make_the_prompt),
        cmocka_unit_test(weights_cross_once),
        cmocka_unit_test(pieces_share_a_pass),
        cmocka_unit_test(used_extents_alone_move),
        cmocka_unit_test(planned_bytes_are_used),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
