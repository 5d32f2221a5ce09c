/* Resuming: which options the run takes from its checkpoint, and which changed commands are refused. */
#include "tests/train/resume_folder.h"

/* ---- taking options from the checkpoint ---- */

/* `o`: before, the options given; after, the options in effect. */
static int take_into(struct ot_resume *resume, struct ot_options *o) {
    struct ot_settings settings = {*o};
    int rc = ot_resume_take_over(resume, &settings);
    *o = settings.in_effect;
    return rc;
}

/* Resumes the run of the line `then` with the line `now`. */
static int take_over(const struct folder *f, const char *then, const char *now, struct ot_resume *resume,
                     struct ot_options *o) {
    static char line[2048];
    make_checkpoint(f->checkpoints, 120, then);
    snprintf(line, sizeof line, "%s --out %s", now, f->out);
    accept(o, line);
    check_ok(ot_resume_find(o, false, resume));
    return take_into(resume, o);
}

static void what_fixes_the_bits_is_taken_over(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    struct ot_options o;
    check_ok(take_over(f,
                       BASE "--lr 0.000123456789012345 --seq-len 64 --no-eos --pack no --template chatml "
                            "--warmup 7% --beta2 0.987654321098765 --eval-data e --seed 5 --steps 400 "
                            "--threads 7 --save-every 9 --tokenizer t",
                       BASE "--threads 2", &resume, &o));
    assert_true(o.lr == 0.000123456789012345 && o.beta2 == 0.987654321098765 && o.warmup.share == 0.07);
    assert_true(o.seq_len == 64 && o.no_eos && !o.pack && o.seed == 5 && o.steps == 400 &&
                o.micro_batch == 4);
    assert_string_equal(o.template_name, "chatml");
    assert_string_equal(o.eval_data, "e");
    assert_string_equal(o.tokenizer, "t");
    assert_int_equal(o.dtype, OT_CHOICE_DTYPE_FP32);
    assert_true(o.threads == 2 && o.save_every.seconds == 1800); /* these options change no bit */
    assert_true(ot_options_given(&o, "lr") && ot_options_given(&o, "eval-data"));
    static const char *const taken[] = {" --no-eos",      " --pack no", " --template chatml", " --warmup 7%",
                                        " --eval-data e", " --seed 5",  " --tokenizer t"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strstr(resume.taken, taken[i]))
            fail_msg("'%s' does not contain '%s'", resume.taken, taken[i]);
    assert_null(strstr(resume.taken, "dtype")); /* the program chose it, not the user */
    assert_null(strstr(resume.taken, "threads"));

    /* The resumed run records the same options as the run, as far as they decide bits. */
    struct ot_run_identity identity = {0};
    const struct ot_option *option;
    check_ok(ot_run_identity_take_options(&identity, &o));
    for (int i = 0; (option = ot_option_at(i)); i++) {
        struct ot_json_writer was = {.indent = -1}, is = {.indent = -1};
        if (option->on_resume == OT_RESUME_NOT_TRAIN || option->on_resume == OT_RESUME_FREE)
            continue;
        ot_json_put_value(&was, NULL, ot_json_get(resume.record->options, option->name));
        ot_json_put_value(&is, NULL, ot_json_get(identity.options, option->name));
        assert_string_equal(was.out.text, is.out.text);
        free(was.out.text);
        free(is.out.text);
    }
    ot_run_identity_free(&identity);
    ot_resume_close(&resume);
    ot_options_free(&o);
}

/* The line of what was taken over has a bounded length: it is cut, and nothing behind it is written. */
static void the_line_of_taken_options_is_cut(void **state) {
    const struct folder *f = *state;
    struct {
        struct ot_resume resume;
        char behind[1024];
    } places = {0};
    struct ot_options o;
    char name[80];
    static char line[1024];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(line, sizeof line,
             BASE "--eval-data %s --tokenizer %s --template %s --train %s --beta1 0.123456789012345 --beta2 "
                  "0.234567890123456 --eps 0.000345678901234567 --weight-decay 0.456789012345678 --clip "
                  "0.567890123456789 --skip-spikes 6.78901234567891 --seed 123456789012345 --schedule wsd "
                  "--warmup 12345 --no-eos --pack no --train-on-prompt --skip-bad",
             name, name, name, name);
    check_ok(take_over(f, line, BASE, &places.resume, &o));
    assert_int_equal(strlen(places.resume.taken), sizeof places.resume.taken - 1);
    for (size_t i = 0; i < sizeof places.behind; i++)
        assert_int_equal(places.behind[i], 0);
    name[60] = '\0'; /* long values are cut, too */
    snprintf(line, sizeof line, " --eval-data %s --t", name);
    assert_non_null(strstr(places.resume.taken, line));
    ot_resume_close(&places.resume);
    ot_options_free(&o);
}

static void the_same_command_takes_over_what_was_chosen_then(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    struct ot_options o;
    check_ok(take_over(f, BASE "--seed 5 --dtype auto --no-eos", BASE "--seed 5 --dtype auto --no-eos",
                       &resume, &o));
    assert_int_equal(o.epochs, 3);
    assert_int_equal(o.micro_batch, 4);
    assert_true(o.lr == 3e-4 && o.dtype == OT_CHOICE_DTYPE_FP32);
    assert_string_equal(resume.taken, "");
    ot_resume_close(&resume);
    ot_options_free(&o);
}

static void expect_difference(const struct folder *f, const char *then, const char *now,
                              const char *sentence) {
    struct ot_resume resume;
    struct ot_options o;
    check_fails(take_over(f, then, now, &resume, &o), OT_E_USAGE, sentence);
    ot_resume_close(&resume);
    ot_options_free(&o);
}

static void another_run_is_refused_with_all_differences(void **state) {
    const struct folder *f = *state;
    expect_difference(f, BASE "--lr 1e-4", BASE "--lr 2e-4", "--lr 0.0001, you gave 0.0002. Use the");
    expect_difference(f, BASE "--lr 1e-4", BASE "--lr 2e-4", "step-00000120 was made with --lr");
    expect_difference(f, BASE "--pack no --seed 1", BASE "--pack yes --seed 2",
                      "--pack no, you gave yes; --seed 1, you gave 2. ");
    expect_difference(f, BASE, BASE "--no-eos", "--no-eos off, you gave on");
    expect_difference(f, BASE, BASE "--template chatml", "--template not given, you gave chatml");
    expect_difference(f, BASE "--eval-data e", BASE "--eval-fraction 1%",
                      "--eval-fraction not given, you gave 0.01");
    expect_difference(f, BASE, BASE "--dtype bf16", "--dtype fp32, you gave bf16");
    expect_difference(f, BASE, BASE "--micro-batch 8", "--micro-batch 4, you gave 8");
    expect_difference(f, BASE, BASE "--skip-spikes 4", "--skip-spikes 0.0, you gave 4.0");
    expect_difference(f, BASE "--max-rows 5", BASE "--max-rows 6", "--max-rows 5, you gave 6");
    expect_difference(f, BASE, BASE "--dedup --text-by line",
                      "--text-by document, you gave line; --dedup off, you gave on");
    expect_difference(f, BASE, BASE "--seed 1 --clip 2 --beta1 0.5 --beta2 0.5 --eps 1e-3 --no-eos",
                      "; and more. Use the");
}

static void what_fixes_no_bit_may_change(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    struct ot_options o;
    check_ok(take_over(f, BASE "--gpu-mem 1G --home host --threads 2 --keep 3",
                       "--model elsewhere/m --data elsewhere/d --gpu-mem 2G --home gpu --threads 1 --keep 1 "
                       "--eval-every 5 --rounds 3 --recompute all --shadow 8G --no-forecast --max-skips 3",
                       &resume, &o));
    assert_string_equal(o.model, "elsewhere/m");
    assert_true(o.keep == 1 && o.home.weights == OT_HOME_GPU && o.rounds == 3);
    ot_resume_close(&resume);
    ot_options_free(&o);
}

/* A record is a file that may be damaged like any other. */
static void records_that_cannot_be_are_refused(void **state) {
    const struct folder *f = *state;
    static const char *const records[][2] = {
        {"{\"lr\": \"fast\"}", "step-00000120/checkpoint.json: lr fast: must be a number"},
        {"{\"lr\": [1]}", "checkpoint.json: lr: an array is not a valid value"},
        {"{\"steps\": -5}", "checkpoint.json: steps must be at least 1."},
        {"{\"template\": \"a\\u0000b\"}", "checkpoint.json: template: a NUL character"},
        {"{\"rotate-by\": 3}", "checkpoint.json: this version does not know option 'rotate-by'"},
        {"{\"temperature\": 3}", "checkpoint.json: this version does not know option 'temperature'"},
    };
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        struct ot_resume resume;
        struct ot_options o;
        make_checkpoint(f->checkpoints, 120, NULL);
        check_ok(find(f, "", &resume));
        struct ot_json *options = parse_json(records[i][0]);
        struct ot_checkpoint_record record = *resume.record;
        record.options = options;
        resume.record = &record;
        accept(&o, BASE);
        check_fails(take_into(&resume, &o), OT_E_INPUT, records[i][1]);
        ot_options_free(&o);
        ot_json_free(options);
        ot_resume_close(&resume);
    }
}

/* ---- checking the identity of the run ---- */

static void expect_verdict(const struct folder *f, const struct ot_run_identity *identity, const char *words,
                           const char *sentence) {
    struct ot_resume resume;
    struct ot_options o;
    char line[256];
    check_ok(find(f, "", &resume));
    snprintf(line, sizeof line, BASE "%s", words);
    accept(&o, line);
    int rc = ot_resume_check(&resume, &o, identity);
    if (sentence)
        check_fails(rc, OT_E_INPUT, sentence);
    else
        check_ok(rc);
    ot_options_free(&o);
    ot_resume_close(&resume);
}

static void another_model_or_other_rows_are_refused(void **state) {
    const struct folder *f = *state;
    struct ot_run_identity identity = {.data = rows_print};
    make_checkpoint(f->checkpoints, 120, NULL);
    static const char *const models[][2] = {
        {"{\"hidden_size\": 256, \"torch_dtype\": \"bfloat16\"}", NULL},
        {"{\"hidden_size\": 512}",
         "was made with another model: hidden_size is 256 in the checkpoint and 512 now. Use the"},
        {"{}", "hidden_size is 256 in the checkpoint and absent now"},
        {"{\"hidden_size\": 256, \"ffn\": 3}", "ffn is absent in the checkpoint and 3 now"},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        identity.model = parse_json(models[i][0]);
        expect_verdict(f, &identity, "", models[i][1]);
        ot_json_free(identity.model);
    }
    identity.model = parse_json(models[0][0]);
    identity.data.rows = 40000;
    identity.data.tokens = 2100000;
    expect_verdict(f, &identity, "", "d.jsonl: has 40,000 rows with 2,100,000 tokens, but ");
    expect_verdict(f, &identity, "", "was trained on 41,000 rows with 2,121,000 tokens. Use the");
    identity.data = rows_print;
    identity.data.crc++;
    expect_verdict(f, &identity, "", "as many rows and tokens as ");
    identity.data = rows_print;
    identity.eval_data = rows_print;
    expect_verdict(f, &identity, "--eval-data e", "was made without --eval-data");
    ot_json_free(identity.model);
}

/* ---- changing the length ---- */

/* Resumes a run of `then` with STEPS steps as a run with `steps` steps. The error must contain the sentence;
 * NULL: it is accepted. */
static void expect_length(const struct folder *f, const char *then, int64_t steps, const char *sentence) {
    struct ot_resume resume;
    struct ot_options o;
    struct ot_run_shape shape = {0};
    char line[128];
    snprintf(line, sizeof line, BASE "--steps %d", (int)steps);
    check_ok(take_over(f, then, line, &resume, &o));
    assert_true(o.steps == steps && o.epochs == 0);
    check_ok(ot_shape_schedule(&o, 0, steps, &shape.lr));
    int rc = ot_resume_check_length(&resume, &o, &shape);
    if (sentence)
        check_fails(rc, OT_E_USAGE, sentence);
    else
        check_ok(rc);
    ot_options_free(&o);
    ot_resume_close(&resume);
}

static void a_run_may_grow_where_its_past_stays_what_it_was(void **state) {
    const struct folder *f = *state;
    expect_length(f, BASE "--steps 400", 400, NULL);
    expect_length(f, BASE "--epochs 3", 400, NULL); /* the same length */
    expect_length(f, BASE "--steps 400", 500, "in a run of 500 steps, step 1 would have had another");
    expect_length(f, BASE "--steps 400 --warmup 10", 500, "step 11 would have had another");
    expect_length(f, BASE "--steps 400 --schedule constant", 500, "step 1 would have had another");
    expect_length(f, BASE "--steps 400 --schedule constant --warmup 10", 500, NULL);
    expect_length(f, BASE "--steps 400 --schedule constant --warmup 10", 120, NULL);
    expect_length(f, BASE "--steps 400 --schedule constant --warmup 10", 119,
                  "the run would end after 119 steps, but 120 are done already in ");
    /* wsd decreases in the last 20 % of the steps: with 400 steps not yet at step 120, with 130 already. */
    expect_length(f, BASE "--steps 400 --schedule wsd --warmup 10", 1000, NULL);
    expect_length(f, BASE "--steps 400 --schedule wsd --warmup 10", 130,
                  "step 107 would have had another learning rate");
}

/* 100 sequences an epoch, 8 a step: 13 steps, and the last step has 4. */
static void a_step_has_one_position(void **state) {
    static const struct {
        int64_t step, epoch, sequence;
        bool fits;
    } cases[] = {{0, 0, 0, true},    {12, 0, 96, true},   {13, 1, 0, true},   {15, 1, 16, true},
                 {12, 0, 95, false}, {13, 0, 104, false}, {13, 0, 96, false}, {15, 0, 16, false}};
    struct ot_run_shape shape = {.step_sequences = 8, .sequences = 100, .steps_per_epoch = 13};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_checkpoint_record record = {.progress.step = cases[i].step,
                                              .position = {cases[i].epoch, cases[i].sequence}};
        struct ot_resume resume = {.record = &record, .dir = "out", .record_name = OT_RECORD_NAME};
        int rc = ot_resume_check_position(&resume, &shape);
        if (cases[i].fits)
            check_ok(rc);
        else
            check_fails(rc, OT_E_INPUT, "out/checkpoint.json: damaged: step ");
    }
}

static void without_a_checkpoint_nothing_happens(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    struct ot_options o;
    accept(&o, BASE "--no-save");
    check_ok(ot_resume_find(&o, true, &resume));
    check_ok(take_into(&resume, &o));
    check_ok(ot_resume_check(&resume, &o, NULL));
    check_ok(ot_resume_check_length(&resume, &o, NULL));
    check_ok(ot_resume_clear_newer(&resume, f->root, STEPS));
    ot_resume_print(&resume);
    ot_resume_close(&resume);
    ot_options_free(&o);
}

int main(void) {
#define resume_test(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
    const struct CMUnitTest tests[] = {
        resume_test(what_fixes_the_bits_is_taken_over),
        resume_test(the_line_of_taken_options_is_cut),
        resume_test(the_same_command_takes_over_what_was_chosen_then),
        resume_test(another_run_is_refused_with_all_differences),
        resume_test(what_fixes_no_bit_may_change),
        resume_test(records_that_cannot_be_are_refused),
        resume_test(another_model_or_other_rows_are_refused),
        resume_test(a_run_may_grow_where_its_past_stays_what_it_was),
        resume_test(a_step_has_one_position),
        resume_test(without_a_checkpoint_nothing_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
