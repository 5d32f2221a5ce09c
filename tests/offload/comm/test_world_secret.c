/* Ranks that share a secret: who does not know it can neither join nor end the run, and never learns it. */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/offload/comm/world_ranks.h"

static const char secret[] = "correct horse battery staple";

static int gather_number(struct ot_world *world) {
    int mine = ot_world_ranks(world)->rank, all[TEST_RANKS];
    return ot_world_all_gather(world, &mine, sizeof mine, all);
}

static struct ot_world_config secret_config(int rank, int ranks, const char *own) {
    struct ot_world_config config = config_of(rank, ranks);
    config.secret = own;
    config.secret_name = "$SECRET";
    return config;
}

static void start_with(int rank, int ranks, const char *own) {
    struct ot_world_config config = secret_config(rank, ranks, own);
    start_rank(&config, gather_number);
}

static void check_no_secret_is_told(void) {
    assert_null(strstr(log_text(), "horse"));
    for (int rank = 0; rank < TEST_RANKS; rank++)
        assert_null(strstr(shared->reports[rank].text, "horse"));
}

static void ranks_with_one_secret_connect(void **state) {
    (void)state;
    for (int rank = 2; rank >= 0; rank--)
        start_with(rank, 3, secret);
    await_ranks();
    check_no_errors(3);
    check_no_secret_is_told();
}

/* A rank that does not know the secret ends; the others wait on. own: its secret; NULL: none. */
static void check_outsider(const char *own, const char *words, const char *log) {
    start_with(0, 2, secret);
    start_with(1, 2, own);
    await_report(1);
    check_report_code(1, OT_E_USAGE, words);
    check_report_code(1, OT_E_USAGE, "give all ranks the same $SECRET");
    start_with(1, 2, secret);
    await_ranks();
    check_no_errors(2);
    check_log(log);
    check_no_secret_is_told();
}

static void another_secret_is_refused(void **state) {
    (void)state;
    check_outsider("incorrect horse",
                   "rank 1 and rank 0 at localhost:", "warning: rank 0 drops a connection from ");
    check_log("it closed before it proved that it knows the secret");
}

static void a_rank_without_secret_is_refused(void **state) {
    (void)state;
    check_outsider(NULL, "has no secret, but rank 0 has one", "has no secret, but rank 0 has one");
}

static void an_empty_secret_is_none(void **state) {
    (void)state;
    check_outsider("", "has no secret, but rank 0 has one", "has no secret");
}

static void rank_0_without_secret_is_refused(void **state) {
    (void)state;
    start_with(0, 2, NULL);
    start_with(1, 2, secret);
    await_ranks();
    for (int rank = 0; rank < 2; rank++)
        check_report_code(rank, OT_E_USAGE,
                          "has a secret, but rank 0 has none; give all ranks the same $SECRET");
    check_no_secret_is_told();
}

/* ---- connections by hand ---- */

/* Says hello to rank 0, and hears the challenge. */
static int be_challenged(const struct ot_world_hello *hello, struct ot_world_reply *reply) {
    int fd = dial();
    say(fd, hello, sizeof *hello);
    hear(fd, reply, sizeof *reply);
    assert_int_equal(reply->verdict, OT_WORLD_CHALLENGE);
    return fd;
}

static void check_dropped(int fd, const void *proof) {
    struct ot_world_reply reply;
    say(fd, proof, OT_SHA256_BYTES);
    assert_true(recv(fd, &reply, sizeof reply, MSG_WAITALL) <= 0);
    close(fd);
}

static void no_proof_can_be_made_up(void **state) {
    (void)state;
    struct ot_world_hello hello = hello_of(1, 2);
    struct ot_world_reply reply, other;
    uint8_t nothing[OT_SHA256_BYTES] = {0};
    hello.has_secret = 1;
    strcpy(hello.version, "99.1"); /* would end the run, if it were proved */
    start_with(0, 2, secret);
    check_dropped(be_challenged(&hello, &reply), nothing);
    check_dropped(be_challenged(&hello, &reply), reply.proof); /* what rank 0 has proved */
    close(be_challenged(&hello, &other));
    assert_memory_not_equal(reply.nonce, other.nonce, sizeof reply.nonce);
    assert_memory_not_equal(reply.proof, other.proof, sizeof reply.proof);
    start_with(1, 2, secret);
    await_ranks();
    check_no_errors(2);
    check_log("it does not know the secret");
}

/* The proof is that of this test's own arithmetic, so both sides of the program agree with the formula. A
 * proof covers the hello: it is of no use for another one. */
static void a_proof_belongs_to_its_hello(void **state) {
    (void)state;
    struct ot_world_hello hello = hello_of(1, 2), changed;
    struct ot_world_reply reply;
    uint8_t proof[OT_SHA256_BYTES];
    struct ot_hmac mac;
    hello.has_secret = 1;
    changed = hello;
    strcpy(changed.host, "near");
    start_with(0, 2, secret);
    for (int i = 0; i < 2; i++) {
        int fd = be_challenged(i ? &hello : &changed, &reply);
        ot_hmac_begin(&mac, secret, strlen(secret));
        ot_hmac_add(&mac, "offload-train rank\0\0\0\0\0", 24);
        ot_hmac_add(&mac, &hello, sizeof hello);
        ot_hmac_add(&mac, reply.nonce, sizeof reply.nonce);
        ot_hmac_end(&mac, proof);
        say(fd, proof, sizeof proof);
        ssize_t n = recv(fd, &reply, sizeof reply, MSG_WAITALL);
        assert_int_equal(n, i ? (ssize_t)sizeof reply : 0);
        assert_true(!i || reply.verdict == OT_WORLD_TAKEN);
        close(fd);
    }
    await_ranks();
    check_report(0, "rank 1 (host far, process 4711) is lost");
}

/* Rank 1 connects to somebody in rank 0's place, who answers so. Nothing but the hello is sent to him. */
static void check_false_root(uint32_t verdict, const char *words) {
    int listener = listen_here();
    struct ot_world_hello hello;
    struct ot_world_reply reply = {.magic = OT_WORLD_MAGIC,
                                   .protocol = OT_WORLD_PROTOCOL,
                                   .verdict = verdict,
                                   .nonce = {1},
                                   .proof = {2}};
    char more;
    start_with(1, 2, secret);
    int fd = accept(listener, NULL, NULL);
    hear(fd, &hello, sizeof hello);
    assert_int_equal(hello.has_secret, 1);
    say(fd, &reply, sizeof reply);
    assert_true(recv(fd, &more, 1, 0) <= 0);
    await_ranks();
    check_report_code(1, OT_E_USAGE, words);
    close(fd);
    close(listener);
}

static void a_false_rank_0_is_refused(void **state) {
    (void)state;
    check_false_root(OT_WORLD_CHALLENGE, "have different secrets");
    check_false_root(OT_WORLD_TAKEN, "did not prove that it knows the secret of rank 1");
}

#define RANKS_TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        RANKS_TEST(ranks_with_one_secret_connect),    RANKS_TEST(another_secret_is_refused),
        RANKS_TEST(a_rank_without_secret_is_refused), RANKS_TEST(an_empty_secret_is_none),
        RANKS_TEST(rank_0_without_secret_is_refused), RANKS_TEST(no_proof_can_be_made_up),
        RANKS_TEST(a_proof_belongs_to_its_hello),     RANKS_TEST(a_false_rank_0_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
