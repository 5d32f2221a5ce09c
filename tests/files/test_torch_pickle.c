/* The pickle in a file of torch.save: every instruction, function and class that weights do not need is
 * refused by its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/files/safetensors.h"
#include "tests/files/fixture.h"
#include "tests/files/torch_writer.h"

#define CASE(literal, words)                                                                                 \
    { literal, sizeof(literal) - 1, words }

/* Each pickle stands between the protocol and the end. */
static void test_refuses_other_pickles(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } cases[] = {
        CASE("cos\nsystem\n", "names os.system, which a file of weights does not need"),
        CASE("cposix\nsystem\n(X\2\0\0\0lstR", "names posix.system"),
        CASE("cbuiltins\neval\n", "names builtins.eval"),
        CASE("ctorch._utils\n_rebuild_tensor_v\n", "names torch._utils._rebuild_tensor_v"),
        CASE("ctorch._utils\n_rebuild_tensor_v22\n", "_rebuild_tensor_v22,"),
        CASE("ctorch._utils _rebuild_tensor\nv2\n", "names torch._utils _rebuild"),
        CASE("ctorch\nSize\n", "names torch.Size"),
        CASE("ctorch\33[2J\nx\n", "names torch [2J.x"),
        CASE("cos\nsystem", "a name has no end"),
        CASE("cos", "a name has no end"),
        CASE("", "no value to work on"),
        CASE("(", "no value to work on"),
        CASE("K\1", "holds an integer, not a dict of tensors"),
        CASE("]", "holds a list, not a dict"),
        CASE(")", "holds a tuple, not a dict"),
        CASE("N", "holds None, not"),
        CASE("\x88", "holds a bool, not"),
        CASE("G\0\0\0\0\0\0\0\0", "holds a float, not"),
        CASE("U\1a", "holds a text, not"),
        CASE("ctorch\nFloatStorage\n", "holds a class, not"),
        CASE("ccollections\nOrderedDict\n", "holds a function, not"),
        CASE(")Q", "holds a storage, not"),
        CASE("ctorch._utils\n_rebuild_tensor_v2\n)R", "holds a tensor, not"),
        CASE("}K\1K\2s", "a key of its dict is an integer"),
        CASE("}U\2a\0Ns", "a key of its dict is a text"),
        CASE("}U\1aK\2s", "a is an integer, not a tensor"),
        CASE("}U\5model}s", "model is a dict, not a tensor"),
        CASE("}U\1actorch._utils\n_rebuild_tensor_v2\n)Rs", "tensor a: it is not described"),
        CASE("}U\1actorch._utils\n_rebuild_tensor_v2\n(NK\0)))NtRs", "tensor a: it is not described"),
        CASE("}U\1actorch._utils\n_rebuild_tensor_v2\n()QK\0))N)tRs", "its storage is not described"),
        CASE("}U\1actorch._utils\n_rebuild_tensor_v2\n((U\7storagectorch\nFloatStorage\nK\1U\3cpu"
             "K\6tQK\0))N)tRs",
             "its storage is not described"),
        CASE("}K\1s", "no value to work on"),
        CASE("}(K\1u", "a key of a dict has no value"),
        CASE("}K\1u", "an instruction has no mark"),
        CASE("u", "an instruction has no mark"),
        CASE("(u", "no value to work on"),
        CASE("](K\1u", "adds values to something that is no list"),
        CASE("}K\1a", "adds values to something"),
        CASE("}(e", "adds values to something"),
        CASE(")K\1a", "adds values to something"),
        CASE("a", "no value to work on"),
        CASE("t", "an instruction has no mark"),
        CASE("\x85", "no value to work on"),
        CASE("K\1\x86", "no value to work on"),
        CASE("K\1(K\1\x86", "no value to work on"),
        CASE("K\1K\1\x87", "no value to work on"),
        CASE("R", "no value to work on"),
        CASE("K\1)R", "calls something that is no function"),
        CASE("ccollections\nOrderedDict\nK\1R", "without a tuple of arguments"),
        CASE("ccollections\nOrderedDict\n]\x85R", "an OrderedDict is made with arguments"),
        CASE("ctorch._utils\n_rebuild_parameter\nNN}\x87R", "a parameter is not made from a tensor"),
        CASE("ctorch._utils\n_rebuild_parameter\n)R", "a parameter is not made from a tensor"),
        CASE("}Nb", "attributes of something that is no OrderedDict"),
        CASE("N}b", "attributes of something that is no OrderedDict"),
        CASE("}b", "no value to work on"),
        CASE("Q", "no value to work on"),
        CASE("K\1Q", "a persistent id is no tuple"),
        CASE("q\0", "no value to work on"),
        CASE("h\0", "takes a value that was not remembered"),
        CASE("Nq\2h\1", "takes a value that was not remembered"),
        CASE("Nq\2h\3", "takes a value that was not remembered"),
        CASE("Nj\377\377\377\377", "takes a value that was not remembered"),
        CASE("Nr\377\377\377\377", "the memo has too many values"),
        CASE("\x8a\x09\0\0\0\0\0\0\0\0\0", "a number does not fit in 64 bits"),
        CASE("X\377\377\377\377a", "goes past the end"),
        CASE("X\3\0\0\0a", "goes past the end"),
        CASE("U\3a", "goes past the end"),
        CASE("J\0\0", "goes past the end"),
        CASE("G\0\0", "goes past the end"),
        CASE("\xff", "0xff is no instruction"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text pickle = {0};
        struct ot_safetensors *file;
        PUT(&pickle, "\x80\x02");
        put(&pickle, cases[i].bytes, cases[i].n);
        PUT(&pickle, ".");
        check_fails(open_pickle(&pickle, &file), OT_E_INPUT, cases[i].words);
    }
}

/* All instructions of pickle that no file of weights needs. */
static void test_refuses_instructions_by_name(void **state) {
    (void)state;
    static const char *const refused[256] = {['0'] = "POP",
                                             ['1'] = "POP_MARK",
                                             ['2'] = "DUP",
                                             ['F'] = "FLOAT",
                                             ['I'] = "INT",
                                             ['L'] = "LONG",
                                             [0x8b] = "LONG4",
                                             ['P'] = "PERSID",
                                             ['S'] = "STRING",
                                             ['T'] = "BINSTRING",
                                             ['V'] = "UNICODE",
                                             ['d'] = "DICT",
                                             ['g'] = "GET",
                                             ['i'] = "INST",
                                             ['l'] = "LIST",
                                             ['o'] = "OBJ",
                                             ['p'] = "PUT",
                                             ['B'] = "BINBYTES",
                                             ['C'] = "SHORT_BINBYTES",
                                             [0x81] = "NEWOBJ",
                                             [0x82] = "EXT1",
                                             [0x83] = "EXT2",
                                             [0x84] = "EXT4",
                                             [0x8c] = "SHORT_BINUNICODE",
                                             [0x8d] = "BINUNICODE8",
                                             [0x8e] = "BINBYTES8",
                                             [0x8f] = "EMPTY_SET",
                                             [0x90] = "ADDITEMS",
                                             [0x91] = "FROZENSET",
                                             [0x92] = "NEWOBJ_EX",
                                             [0x93] = "STACK_GLOBAL",
                                             [0x94] = "MEMOIZE",
                                             [0x95] = "FRAME",
                                             [0x96] = "BYTEARRAY8",
                                             [0x97] = "NEXT_BUFFER",
                                             [0x98] = "READONLY_BUFFER"};
    static const char known[] = "\x80.(N\x88\x89JKM\x8aGXU)t\x85\x86\x87]ae}suqrhjcRbQ";
    for (int op = 0; op < 256; op++) {
        struct text pickle = {0};
        struct ot_safetensors *file;
        char words[64];
        PUT(&pickle, "\x80\x02}");
        put(&pickle, &(char){(char)op}, 1);
        PUT(&pickle, ".");
        if (op != 0x80 && memchr(known, op, sizeof known - 1))
            continue;
        if (op == 0x80) /* the protocol stands only at the start */
            snprintf(words, sizeof words, "is no instruction");
        else if (refused[op])
            snprintf(words, sizeof words, "byte 3: the instruction %s is not one of", refused[op]);
        else
            snprintf(words, sizeof words, "byte 3: 0x%02x is no instruction", (unsigned)op);
        check_fails(open_pickle(&pickle, &file), OT_E_INPUT, words);
    }
}

/* Every accepted instruction in one dict: memo, lists, parameters, versions of modules, short numbers. */
static void test_reads_all_that_pytorch_writes(void **state) {
    (void)state;
    struct text pickle = {0};
    struct tensor a = plain("a"), bare = plain(NULL);
    struct ot_safetensors *file;
    PUT(&pickle, "\x80\x02"
                 "ccollections\nOrderedDict\nq\xc8)Rq\x02");
    put_tensor(&pickle, &a);
    PUT(&pickle, "r\x05\x01\0\0s(");
    put_text(&pickle, "b");
    PUT(&pickle, "j\x05\x01\0\0");
    put_text(&pickle, "p");
    PUT(&pickle, "ctorch._utils\n_rebuild_parameter\n");
    put_tensor(&pickle, &bare);
    PUT(&pickle, "\x88h\xc8)R\x87RU\x03sho"
                 "ctorch._utils\n_rebuild_tensor_v2\n(");
    put_storage(&pickle, &a);
    PUT(&pickle, "K\x01\x8a\x01\x02\x8a\0\x86"
                 "M\x01\0K\x01\x86\x89h\xc8)RtRu}q\x09");
    put_text(&pickle, "_metadata");
    PUT(&pickle, "}(U\x01v](K\x01"
                 "eNaU\x01wG\0\0\0\0\0\0\0\0U\x01xJ\xff\xff\xff\xff\x85U\x01yh\x09usb.");
    check_ok(open_pickle(&pickle, &file));
    assert_int_equal(ot_safetensors_count(file), 4);
    check_values(file, "a", six, 6);
    check_values(file, "b", six, 6);
    check_values(file, "p", six, 6);
    assert_int_equal(ot_safetensors_find(file, "sho")->shape[0], 2);
    assert_int_equal(ot_safetensors_find(file, "sho")->count, 0);
    ot_safetensors_close(file);
}

/* Deep containers, many instructions and a long pickle end in a sentence, not in a crash. */
static void test_bounds_depth_and_length(void **state) {
    (void)state;
    static const struct {
        char op;
        size_t n;
        const char *words;
    } rounds[] = {{(char)0x85, 6000, "holds a tuple, not a dict"},
                  {')', (1 << 22) + 8, "more than 4194304 instructions"},
                  {')', (16 << 20) + 1, "data.pkl has 16777217 bytes, more than any model needs"}};
    for (size_t round = 0; round < sizeof rounds / sizeof *rounds; round++) {
        struct ot_safetensors *file;
        size_t n = rounds[round].n, bytes;
        char *pickle = malloc(n);
        assert_non_null(pickle);
        memset(pickle, rounds[round].op, n);
        memcpy(pickle, "\x80\x02N", 3);
        pickle[n - 1] = '.';
        struct text head = {0}, tail = {0};
        const char name[] = "m/data.pkl";
        static const char zeros[12] = "";
        uint32_t crc = ot_crc32(0, pickle, n);
        put_number(&head, 0x04034b50, 4);
        put(&head, zeros, 10);
        put(&head, zeros, 12);
        put_number(&head, sizeof name - 1, 2);
        put_number(&head, 0, 2);
        put(&head, name, sizeof name - 1);
        put_number(&tail, 0x02014b50, 4);
        put(&tail, zeros, 12);
        put_number(&tail, crc, 4);
        put_number(&tail, n, 4);
        put_number(&tail, n, 4);
        put_number(&tail, sizeof name - 1, 2);
        put(&tail, zeros, 12);
        put_number(&tail, 0, 4);
        put(&tail, name, sizeof name - 1);
        size_t directory = tail.n;
        put_number(&tail, 0x06054b50, 4);
        put_number(&tail, 0, 4);
        put_number(&tail, 1, 2);
        put_number(&tail, 1, 2);
        put_number(&tail, directory, 4);
        put_number(&tail, head.n + n, 4);
        put_number(&tail, 0, 2);
        bytes = head.n + n + tail.n;
        char *whole = malloc(bytes);
        assert_non_null(whole);
        memcpy(whole, head.bytes, head.n);
        memcpy(whole + head.n, pickle, n);
        memcpy(whole + head.n + n, tail.bytes, tail.n);
        check_fails(open_bytes(whole, bytes, &file), OT_E_INPUT, rounds[round].words);
        free(whole);
        free(pickle);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_other_pickles),
        cmocka_unit_test(test_refuses_instructions_by_name),
        cmocka_unit_test(test_reads_all_that_pytorch_writes),
        cmocka_unit_test(test_bounds_depth_and_length),
    };
    return cmocka_run_group_tests_name("torch_pickle", tests, NULL, NULL);
}
