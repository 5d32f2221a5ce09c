/* The options of plan: rates with units, the length of the run, and refusals; and the homes that commands
 * have a use for. */
#include <stdio.h>
#include <string.h>

#include "tests/options/option_lines.h"
#include "tests/support/check.h"

static void plans_take_rates_and_the_runs_length(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double want;
    } good[] = {{"25GB", 25e9},     {"25G", 25e9}, {"800MB/s", 8e8},    {"1.5t", 1.5e12},
                {"25gib", 0x19p30}, {"7e9", 7e9},  {"12.6GB/s", 12.6e9}};
    struct ot_options o;
    char line[128];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(line, sizeof line, "plan m --gpu rtx4090 --pcie %s", good[i].text);
        accept(&o, line);
        assert_true(o.pcie == good[i].want);
        ot_options_free(&o);
    }
    accept(&o,
           "plan --model m --nvme 500G --nvme-write 3GB --tokens 10M --epochs 2 --price/h 1.89 --explain");
    assert_int_equal(o.command, OT_COMMAND_PLAN);
    assert_true(o.tokens == 10 << 20 && o.epochs == 2 && strcmp(o.price, "1.89") == 0 && o.explain && !o.gpu);
    ot_options_free(&o);
    accept(&o, "plan --gpu list --json");
    ot_options_free(&o);
    static const char *const bad[] = {"0", "25", "GB", "-5GB", "25GB/h", "1e30", "fast"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, "plan m --gpu rtx4090 --host-bw %s", bad[i]);
        refuse(line, "--host-bw");
        refuse(line, "must be a rate from 1MB to 10TB per second");
    }
    refuse("plan", "plan needs --model");
    refuse("plan m --out d", "--out has no effect with plan");
    refuse("plan m --gpu h200 --pack no", "--pack has no effect without --data");
    refuse("--model m --data d.jsonl --gpu rtx4090", "--gpu has no effect with train; it belongs to plan");
    refuse("plan m --gpu h200 --home state=nvme", "needs --nvme");
    refuse("plan m --gpu h200 --price 3", "its name here is --price/h (");
    refuse("plan m --tokens 1e14", "must be a whole number");
}

/* One word names all homes, also those that a command does not have. */
static void homes_are_those_of_the_command(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, "generate m --nvme /a --home weights=host,cache=nvme");
    assert_int_equal(o.home.cache, OT_HOME_NVME);
    assert_int_equal(o.home.weights, OT_HOME_HOST);
    assert_int_equal(o.home.state, OT_HOME_AUTO);
    ot_options_free(&o);
    accept(&o, "generate m --home weights=host");
    assert_int_equal(o.home.cache, OT_HOME_AUTO);
    ot_options_free(&o);
    accept(&o, "generate m --home host");
    assert_int_equal(o.home.cache, OT_HOME_HOST);
    ot_options_free(&o);
    accept(&o, "eval m --data d --generate 1 --home cache=gpu");
    assert_int_equal(o.home.cache, OT_HOME_GPU);
    ot_options_free(&o);
    refuse("generate m --home cache=nvme", "--home cache=nvme needs --nvme DIR");
    refuse("generate m --home cache=host,state=host",
           "--home state=host has no effect here: nothing is trained");
    refuse("eval m --data d --home cache=gpu", "--home cache=gpu has no effect here: no text is generated");
    refuse("plan m --home cache=host", "--home cache=host has no effect here: no text is generated");
    refuse("train --model m --data d --eval-fraction 0 --home cache=host",
           "--home cache=host has no effect here: no text is generated");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_take_rates_and_the_runs_length),
        cmocka_unit_test(homes_are_those_of_the_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
