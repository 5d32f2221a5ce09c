/* The options of plan: rates with units, the length of the run, and refusals. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_take_rates_and_the_runs_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
