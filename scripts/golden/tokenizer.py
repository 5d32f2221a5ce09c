#!/usr/bin/env python3
"""Golden vectors of the tokenizer, made with Hugging Face `tokenizers` (0.23). sentencepiece (0.2) compiles a table of
replacements for the normalizer Precompiled.

    scripts/golden/tokenizer.py [SHARED]

Writes tests/golden/tokenizers/:
  NAME.json           small tokenizers, one per family, trained here on our own text
  byte_level.json     not made here: a copy of the output of src/tokenizer/byte_level.c, as input for Hugging Face
  texts.json          hostile texts, general texts and random strings
  NAME.expected.json  the results of Hugging Face for these texts
  variants.json       pre-tokenizers, normalizers and decoders to be put into crossing.json, with their results
  classes.json        the characters in the regex classes of Hugging Face
With SHARED, the folder of real inputs (default ../shared/data beside the repository, if it is there), also
NAME.expected.json of the real tokenizers in it; their files themselves are not copied.

scripts/golden/sentencepiece_models.py makes the vectors of SentencePiece models.

An existing tokenizer is kept, so a new run changes no ids; remove the file to train it again.
Offsets are byte offsets of the character in which a token starts. Characters that Unicode 14 does not assign are left
out: the libraries on the two sides know different versions.
"""
import base64
import codecs
import io
import json
import pathlib
import random
import sys
import tempfile
import unicodedata
import zlib

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/tokenizers"
MARK = "\u2581"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+")


# ---- text of our own -------------------------------------------------------------------------------------------------

def corpus():
    rng = random.Random(7)
    tables = ["orders", "customers", "cities", "planets", "invoices", "trains", "teams", "players"]
    columns = ["name", "year", "price", "country", "points", "date", "total_amount", "id", "home_team"]
    words = "the a of and to in that it was for on with as his her they at be this from or had by hot".split()
    nouns = "river house table train winter letter number garden question answer morning window city".split()
    other = ["Die Straße führt über die Brücke nach Süden.", "L'été dernier, j'ai vu la forêt brûler.",
             "El niño comió una manzana en la montaña.", "今天的天气很好，我们去公园。", "東京は大きな街です。",
             "Привет, как дела? Всё хорошо.", "مرحبا بالعالم، كيف حالك؟", "नमस्ते दुनिया।", "안녕하세요 세계",
             "Ελληνικά γράμματα.", "😀 😃 👍🏽 👩‍👩‍👧 🇩🇪", "naïve café, façade — “quoted” … ½ ² №"]
    for _ in range(400):
        a, b, t = rng.choice(columns), rng.choice(columns), rng.choice(tables)
        yield f"SELECT {a}, COUNT({b}) FROM {t} WHERE {b} > {rng.randrange(2000)} GROUP BY {a};\n"
        yield f"CREATE TABLE {t} ({a} VARCHAR, {b} INTEGER)\n"
        yield f"What is the {a} of the {t} whose {b} is \"{rng.choice(nouns)}\"? It's {rng.randrange(100)}.{rng.randrange(10)}%\n"
        yield " ".join(rng.choice(words) + " " + rng.choice(nouns) for _ in range(6)) + ", don't you'll we've I'm he'd.\n"
        yield "def f(x):\n    if x == 1:\n        return [x, 2]\n\treturn {'a': x}\r\n"
        yield rng.choice(other) + "\n"


# ---- tokenizers ------------------------------------------------------------------------------------------------------

def byte_level_trainer(size, specials=()):
    return trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False,
                               initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))


def frame(before, vocab, after=()):
    names = [*before, "$A", *after]
    return processors.TemplateProcessing(single=" ".join(names), pair="$A $B",
                                         special_tokens=[(n, vocab[n]) for n in names if n != "$A"])


def special(text, **kwargs):
    return AddedToken(text, special=True, **{"normalized": False, **kwargs})


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(size, *stages, prefix=False, use_regex=False, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex, trim_offsets=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([*stages, last]) if stages else last
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), byte_level_trainer(size))
    return t


def make_llama3():
    t = byte_level(420, split(LLAMA3), ignore_merges=True)
    # A whole word that merging cannot reach: ignore_merges must find it.
    d = json.loads(t.to_str())
    d["model"]["vocab"]["\u0120unreachable"] = len(t.get_vocab())
    t = Tokenizer.from_str(json.dumps(d))
    t.add_special_tokens([special(s) for s in ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                            frame(["<|begin_of_text|>"], t.get_vocab())])
    return t


def make_qwen():
    t = byte_level(420, split(QWEN), normalizer=normalizers.NFC())
    t.add_special_tokens([special(s) for s in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def make_gpt2():
    t = byte_level(420, use_regex=True)
    t.add_special_tokens([special("<|endoftext|>")])
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(31, 1, -1)])
    t.add_tokens([AddedToken("\t" * n, normalized=True) for n in range(9, 1, -1)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def make_bloom():
    t = byte_level(420, split(BLOOM))
    t.add_special_tokens([special(s, normalized=True) for s in ["<unk>", "<s>", "</s>", "<pad>"]])
    t.post_processor = frame([], t.get_vocab(), ["</s>"])
    return t


def make_falcon():
    t = byte_level(380)
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation(behavior="contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True, trim_offsets=False),
        pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")])
    t.train_from_iterator(corpus(), byte_level_trainer(380))
    t.add_special_tokens([special(">>TITLE<<"), special("<|endoftext|>")])
    return t


def make_o200k():
    t = byte_level(420, pre_tokenizers.Split(Regex(O200K), "removed", invert=True))
    t.add_special_tokens([special("<|endoftext|>", lstrip=True, rstrip=True), special("word", single_word=True)])
    return t


def sentencepiece(size, pre_tokenizer, normalizer):
    """A BPE with byte fallback: trained on marked text, then given the byte tokens."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    limit = [c for c in map(chr, range(33, 127))]
    t.train_from_iterator((line.strip() for line in corpus()), trainers.BpeTrainer(
        vocab_size=size, special_tokens=names, show_progress=False, initial_alphabet=limit, limit_alphabet=110))
    d = json.loads(t.to_str())
    d["added_tokens"] = d["added_tokens"][:3]
    d["normalizer"] = json.loads(normalizer) if normalizer else None
    d["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(d))
    t.post_processor = frame(["<s>"], t.get_vocab())
    t.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return t


PREPEND = json.dumps({"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]})
REPLACE = json.dumps({"type": "Replace", "pattern": {"String": " "}, "content": MARK})


def make_prepend():
    """Like Llama-2, but merges may cross words, as those of some small models do."""
    t = sentencepiece(700, None, PREPEND)
    t.add_special_tokens([special("<|user|>"), special("<pad>", normalized=True)])
    t.add_tokens([AddedToken("left", lstrip=True, normalized=False), AddedToken("right", rstrip=True, normalized=False),
                  AddedToken("both", lstrip=True, rstrip=True), AddedToken("day", single_word=True)])
    return t


def make_words():
    """Like Llama-2: no merge crosses a word."""
    return sentencepiece(700, pre_tokenizers.Metaspace(prepend_scheme="never"), PREPEND)


def make_metaspace():
    t = sentencepiece(700, pre_tokenizers.Metaspace(prepend_scheme="never"), None)
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return t


def make_gemma():
    t = sentencepiece(700, pre_tokenizers.Metaspace(prepend_scheme="never"), REPLACE)
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 8)])
    return t


def make_unknown():
    """No byte fallback, some characters unknown, unk fused; normalizers that change lengths."""
    d = json.loads(sentencepiece(600, pre_tokenizers.Metaspace(prepend_scheme="never"), None).to_str())
    d["model"]["byte_fallback"] = False
    t = Tokenizer.from_str(json.dumps(d))
    t.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    return t


def make_crossing():
    """Byte-level and trained without any split, so that where a variant splits shows in the ids."""
    t = byte_level(600)
    t.add_special_tokens([special("<|end|>")])
    return t


# Our own table for the normalizer Precompiled: keys of one to three characters, replacements longer and shorter than
# their key, a key that is the start of another one, a line break of two characters. U+E001 is removed; no text below has
# it, because Hugging Face counts offsets wrongly in a text that begins with a removed character.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\r\n": " ", "\u00a0": " ", "\u3000": " ", "\u200b": " ", "\ue001": "", "\ufb01": "fi",
         "\u2026": "...", "\u00bd": "1\u20442", "\u2122": "TM", "\u212b": "\u00c5", "e\u0301": "\u00e9", "A\u030a": "\u00c5",
         "\u0438\u0306": "\u0439", "\u00b2": "2", "\u2460": "1", "\u0344": "\u0308\u0301", "\u1100\u1161": "\uac00",
         "\u1100\u1161\u11a8": "\uac01", "\u0132": "IJ", "\u2167": "VIII", "\uff71": "\u30a2", "\u2581": " "}


def rules():
    """The table as sentencepiece reads it."""
    return "".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in RULES.items())


def charsmap():
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write(rules())
        file.flush()
        spm.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d e f"] * 9), model_writer=model, vocab_size=12,
                                                 model_type="char", normalization_rule_tsv=file.name, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def unigram(size, specials, **stages):
    """Trained on marked text; `stages` are what the finished tokenizer has."""
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.train_from_iterator((line.strip() for line in corpus()), trainers.UnigramTrainer(
        vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False, max_piece_length=12))
    d = json.loads(t.to_str())
    # The least likely characters become unknown: some texts must need <unk> or bytes.
    d["model"]["vocab"] = [[token, score] for token, score in d["model"]["vocab"] if len(token) > 1 or ord(token) < 0x2e80 or
                           token == MARK]
    d.update(added_tokens=d["added_tokens"][:len(specials)], normalizer=None, pre_tokenizer=None)
    if stages.pop("byte_fallback", False):
        d["model"]["byte_fallback"] = True
        d["model"]["vocab"][len(specials):len(specials)] = [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    t = Tokenizer.from_str(json.dumps(d))
    for name, value in stages.items():
        setattr(t, name, value)
    return t


def make_t5():
    t = unigram(500, ["<pad>", "</s>", "<unk>"],
                normalizer=normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Strip(left=False, right=True),
                                                 normalizers.Replace(Regex(" {2,}"), MARK)]),
                pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                       pre_tokenizers.Metaspace(prepend_scheme="always")]),
                decoder=decoders.Metaspace(prepend_scheme="always"))
    t.add_special_tokens([special(f"<extra_id_{i}>", lstrip=True, rstrip=True) for i in (1, 0)])
    t.post_processor = frame([], t.get_vocab(), ["</s>"])
    return t


def make_unigram_bytes():
    """No pre-tokenizer: a whole text is one word. Unknown characters become bytes."""
    t = unigram(700, ["<unk>", "<s>", "</s>"], byte_fallback=True,
                normalizer=normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
                decoder=decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)]))
    t.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    return t


def make_unigram_ties():
    """Equal scores: of two best paths, Hugging Face takes the one that it finds first. <unk> is a token of the text too,
    some unknown characters are a token together, and no score is below the unknown ones' by much."""
    vocab = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -2.0), ("ba", -2.0), ("aba", -3.0), (" ", -1.0), ("th", -2.0), ("t", -1.0),
             ("h", -1.0), ("e", -1.5), ("the", -3.5), ("\u4e2d\u6587", -40.0), ("o", -0.25), ("oo", -0.5), (MARK, -1.0), ("1", -1.0),
             ("2", -2.5), ("12", -3.5), ("123", -50.0)]
    t = Tokenizer(models.Unigram(vocab, unk_id=0))
    t.decoder = decoders.Fuse()
    t.post_processor = processors.Sequence([processors.RobertaProcessing(("b", 2), ("a", 1), False, False),
                                            processors.ByteLevel(trim_offsets=False), frame(["<unk>", "th"], t.get_vocab())])
    return t


def make_roberta():
    t = byte_level(420, use_regex=True)
    t.add_special_tokens([special(s) for s in ["<s>", "<pad>", "</s>", "<unk>"]] + [special("<mask>", lstrip=True)])
    v = t.get_vocab()
    t.post_processor = processors.RobertaProcessing(("</s>", v["</s>"]), ("<s>", v["<s>"]), trim_offsets=False,
                                                    add_prefix_space=False)
    return t


MAKERS = {name[5:]: fn for name, fn in list(globals().items()) if name.startswith("make_")}


# ---- texts -----------------------------------------------------------------------------------------------------------

HOSTILE = [
    "", " ", "  ", "   ", "a", " a", "a ", " a  b   c    ", "Hello, world!", "Hello  world\n", "\n", "\n\n", "\r\n\r\n",
    "\t\tx", "a\r\nb\r\n", "  \n  \n x", "don't DON'T you'LL we've I'm 'S 's '\u017f", "it's'll've", "'", "''s",
    "SELECT name, COUNT(*) FROM cities WHERE year > 1999 AND price <= 12.50;", "x=1234567890 12 345 6", "1,000,000.00",
    "\u00e9\u00e8\u00ea e\u0301 \u0065\u0323\u0307 q\u0307\u0323 \u212b \u00c5 A\u030a", "\u0344 \u0f73 \u2126 \ufb1d",
    "\uac00 \u1100\u1161 \u1100\u1161\u11a8 \uac00\u11a8 \u1161", "\ufb01 \ufdfa \u2460 \uff71 \u00bd \u00b2 \u2167",
    "\u0130stanbul \u01c4 \u1e9e \u03a3", "中文，没有空格。日本語テキスト", "한국어 문장입니다", "Привет мир", "مرحبا بالعالم، نعم",
    "नमस्ते दुनिया।", "😀😃 👩\u200d👩\u200d👧 🇩🇪 👍🏽", "\U0001f600" * 5, "a\u200db\u200cc\ufeffd", "\ufeffBOM",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180eh\u202fi", "NUL \x00 in \x00\x00 text", "\x01\x02\x1b[0m\x7f",
    "<s>", "</s>", "<s>Hello</s>", "Hi<s> there</s> <s>", "<|endoftext|>", "a <|endoftext|> b<|endoftext|>",
    "<|im_start|>user\nhi<|im_end|>\n", "<tool_call>{}</tool_call>", "<|begin_of_text|>x<|eot_id|>", "<|user|>Hi<|end|>",
    "a left b left", "  left  ", "right  x right", " both both ", "day Day days today day", "word words word, aword word",
    "<pad> <pad>", "<unk>", "<0x0A><0x41>", "\u2581\u2581a\u2581", "\u0120\u010a", " unreachable unreachable",
    "    if x:\n        y", "\t\t\t\tx", " " * 50, "a" * 70, "ab " * 40, "-" * 30 + "=" * 30, "!?.,;:", "(a|b[c]d)",
    "snake_case camelCase HTTPServer x_1_y", "https://example.org/a?b=c&d=%20", "path/to/file.txt:12:3\n\n\n\n",
]
LONG = [("the river of winter ", 120), ("a", 3000), ("\u00e9\u4e2d", 400), ("0123456789", 60), (" ", 200), ("x_y'z", 300)]
INVALID = ["ff", "61ff62", "e282", "e28261", "f09f98", "eda080", "c080", "80808080", "61e282ac80ffc3", "f4908080", "20fe20"]
PIECES = [" ", "  ", "\n", "\r\n", "\t", MARK, "é", "e\u0301", "ß", "\u017f", "'s", "'LL", "don't", "hello", " world", "the",
          "SELECT", " FROM t", "1234567", "12", "٣٤", "²", "½", "Ⅷ", "中文", "日本語", "한국어", "\u1100", "\u1161", "\u11a8", "각",
          "😀", "\u200d", "\ufeff", "\x00", "\x7f", "\u0085", "\u00a0", "\u3000", "\u180e", "...", "!?", "(", "|", "[", "…", "。",
          "،", "नमस्ते", "\u1fb3", "ﬁ", "\u0323\u0307", "\u0307\u0323", "\u0344", "\ufb1d", "\u0130", "<s>", "</s>", "<pad>",
          "<|endoftext|>", "<|im_end|>", "<|user|>", "<|end|>", "left", "right", "both", "day", "word", "__", "--", "Ġ", "Ċ",
          "a", "b", "\u212b", "①", "ｱ", "\U0001d15e"]


def assigned(text):
    """Without what a library may not know: Hugging Face normalises by Unicode 12 or so, without these digits."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs") and not "\U0001fbf0" <= c <= "\U0001fbf9")


def random_texts(count, seed):
    rng = random.Random(seed)

    def one():
        if rng.random() < 0.8:
            return rng.choice(PIECES)
        low, high = rng.choice([(32, 127), (0, 0x300), (0x300, 0xD800), (0x10000, 0x20000)])
        return chr(rng.randrange(low, high))

    return [assigned("".join(one() for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 21])))) for _ in range(count)]


def decode_invalid(data):
    """The text, and for each character where it comes from: an invalid part is one U+FFFD."""
    invalid = []

    def handler(error):
        invalid.append((error.start, error.end))
        return "\ufffd", error.end

    codecs.register_error("note", handler)
    text = data.decode("utf-8", "note")
    starts, at, rest = [], 0, list(invalid)
    for char in text:
        starts.append(at)
        if rest and rest[0][0] == at:
            at = rest.pop(0)[1]
        else:
            at += len(char.encode())
    return text, starts + [at]


def all_texts():
    """(bytes, how texts.json spells it)"""
    for text in HOSTILE:
        yield text.encode(), text
    for text, times in LONG:
        yield text.encode() * times, {"repeat": text, "times": times}
    for data in INVALID:
        yield bytes.fromhex(data), {"hex": data}


# ---- results ---------------------------------------------------------------------------------------------------------

def own_offsets(tokens, offsets, text):
    """A Unigram model gives all bytes of a run of unknown characters the offset of the run. Here each byte has the offset
    of its character, if the run was not normalised."""
    out, i = [a for a, _ in offsets], 0
    while i < len(tokens):
        end = i
        while end < len(tokens) and offsets[end] == offsets[i] and len(tokens[end]) == 6 and tokens[end].startswith("<0x"):
            end += 1
        run = [offsets[i][0] + k for k, c in enumerate(text[slice(*offsets[i])]) for _ in c.encode()]
        if len(run) == end - i:
            out[i:end] = run
        i = max(end, i + 1)
    return out


def first_blank(text, at):
    """Hugging Face gives the replacement of a run of spaces the offset of the last space. Here it is the first one's."""
    def is_blank(i):
        return RULES.get(text[i], text[i]) == " "
    while 0 < at < len(text) and is_blank(at) and is_blank(at - 1):
        at -= 1
    return at


def encode(t, data):
    """Ids without the frame, byte offsets of where they start."""
    text, starts = decode_invalid(data)
    e = t.encode(text, add_special_tokens=False)
    offsets = own_offsets(e.tokens, e.offsets, text) if isinstance(t.model, models.Unigram) else [a for a, _ in e.offsets]
    if t.normalizer and " {2,}" in str(t.normalizer):
        offsets = [first_blank(text, a) for a in offsets]
    return e.ids, [starts[min(a, len(text))] for a in offsets]


def crc(numbers):
    return zlib.crc32(b"".join(n.to_bytes(4, "little") for n in numbers))


def frame_of(t):
    before, after = [], []
    ids = t.encode("x").ids
    inner = t.encode("x", add_special_tokens=False).ids
    for i in range(len(ids) - len(inner) + 1):
        if ids[i:i + len(inner)] == inner:
            before, after = ids[:i], ids[i + len(inner):]
    return before, after


def expected(t, has_normalized_specials, limit=400):
    """Lists for the texts at hand, checksums for long and random ones."""
    rows = []
    for data, spelled in all_texts():
        ids, starts = encode(t, data)
        row = {"decoded": t.decode(ids, skip_special_tokens=False)}
        if isinstance(spelled, dict) and "repeat" in spelled:
            row = {"n": len(ids), "ids_crc": crc(ids), "start_crc": crc(starts)}
        else:
            row.update(ids=ids, start=starts)
            # Hugging Face forgets to skip special tokens that it matches in normalised form.
            if not has_normalized_specials:
                row["skipped"] = t.decode(ids, skip_special_tokens=True)
        rows.append(row)
    sums = []
    for text in random_texts(limit, 1):
        ids, starts = encode(t, text.encode())
        sums.append([crc(ids), crc(starts), zlib.crc32(t.decode(ids, skip_special_tokens=False).encode())])
    t.encode_special_tokens = True
    plain = [crc(encode(t, text.encode())[0]) for text in HOSTILE]
    t.encode_special_tokens = False
    before, after = frame_of(t)
    return {"before": before, "after": after, "texts": rows, "random": sums, "specials_as_text": plain}


def normalized_specials(d):
    return any(a["special"] and a["normalized"] for a in d["added_tokens"])


def write(name, value):
    # One line per item of the lists: readable, and small changes stay small in git.
    def lines(v):
        if isinstance(v, dict) and any(isinstance(x, list) and len(x) > 20 for x in v.values()):
            return "{\n" + ",\n".join(f"{json.dumps(k)}: {lines(x)}" for k, x in v.items()) + "}"
        if isinstance(v, list) and len(v) > 20 and isinstance(v[0], (dict, str)):
            return "[\n" + ",\n".join(json.dumps(x, separators=(",", ":"), ensure_ascii=False) for x in v) + "]"
        return json.dumps(v, separators=(",", ":"), ensure_ascii=False)

    (OUT / name).write_text(lines(value) + "\n")


# ---- variants of crossing.json ---------------------------------------------------------------------------------------

def variants():
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    patterns = [{"String": " "}, {"String": "th"}, {"Regex": r"\s+"}, {"Regex": r"\p{L}+|\d"}, {"Regex": r"(?<=e)"},
                {"Regex": r"[aeiou]{,2}"}]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}

    def pre(*stages, **kwargs):
        return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*stages, {**level, **kwargs}]}}

    for pattern in patterns:
        for behavior in behaviors:
            for invert in (False, True):
                yield pre({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
    for regex in [LLAMA3, QWEN, BLOOM, O200K, CL100K, TEKKEN, DEEPSEEK, "[一-龥぀-ゟ゠-ヿ]+", r"[^\w\s]+", r"\b", r"\w+|\W", r"(?m:e.{2})", r"^\w+|\w+$", r"[^\S\n]+|\n", r"[\w-]+",
                  r"[[a-c]x-z]+", r"\h{2,}", r"(?>\s+)\S", r"x?+\u0065", r"\p{Han}+|\p{Lu}\p{Ll}*|\P{L}", r"[.=:,-]+"]:
        yield pre({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})
    for behavior in behaviors:
        yield pre({"type": "Punctuation", "behavior": behavior})
    yield pre({"type": "Digits", "individual_digits": True})
    yield pre({"type": "Digits", "individual_digits": False})
    yield pre({"type": "Whitespace"})
    yield pre({"type": "WhitespaceSplit"})
    yield pre({"type": "CharDelimiterSplit", "delimiter": "e"})
    yield pre({"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True}, add_prefix_space=True)
    yield pre(add_prefix_space=True, use_regex=True)
    yield pre(add_prefix_space=True)
    yield pre({**level, "use_regex": True})
    for scheme in ("first", "always", "never"):
        for divide in (True, False):
            yield pre({"type": "Metaspace", "replacement": "_", "prepend_scheme": scheme, "split": divide})
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        yield {"normalizer": {"type": kind}}
    for left, right in ((True, False), (False, True), (True, True)):
        yield {"normalizer": {"type": "Strip", "strip_left": left, "strip_right": right}}
    yield {"normalizer": {"type": "Prepend", "prepend": "the "}}
    yield {"normalizer": {"type": "Replace", "pattern": {"String": "e"}, "content": ""}}
    yield {"normalizer": {"type": "Replace", "pattern": {"Regex": r"\d"}, "content": "num"}}
    yield {"normalizer": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, "no_start": True}
    yield {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Strip", "strip_left": True,
                                                                                     "strip_right": True}]},
        {"type": "NFKC"}, {"type": "Prepend", "prepend": "\u00e9"}]}}
    yield {"decoder": None}
    yield {"decoder": {"type": "Fuse"}}
    yield {"decoder": {"type": "Metaspace", "replacement": "\u0120", "prepend_scheme": "never"}}
    yield {"decoder": {"type": "Metaspace", "replacement": "\u0120", "prepend_scheme": "always"}}
    yield {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "<0xC3>"}, {"type": "ByteFallback"},
        {"type": "Strip", "content": "t", "start": 2, "stop": 0}]}}
    yield {"decoder": {"type": "Sequence", "decoders": [level, {"type": "Strip", "content": " ", "start": 3, "stop": 0}]}}


def write_variants():
    base = json.loads((OUT / "crossing.json").read_text())
    texts = HOSTILE + random_texts(60, 2)
    rows = []
    for change in variants():
        change = dict(change)
        no_start = change.pop("no_start", False)
        t = Tokenizer.from_str(json.dumps({**base, **change}))
        ids, starts, decoded = [], [], b""
        for text in texts:
            i, s = encode(t, text.encode())
            ids += i
            starts += s
            if "decoder" in change:
                decoded += t.decode(i, skip_special_tokens=False).encode() + b"\0"
        row = {**change, "n": len(ids), "ids_crc": crc(ids), "start_crc": 0 if no_start else crc(starts)}
        if "decoder" in change:
            row["decoded_crc"] = zlib.crc32(decoded)
        rows.append(row)
    write("variants.json", {"hostile": len(HOSTILE), "texts": random_texts(60, 2), "variants": rows})


# ---- characters of regex classes -------------------------------------------------------------------------------------

def write_classes():
    chars = [c for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]

    def ranges(members):
        out, known = [], set(members)
        for c in chars:  # neighbours among the assigned ones count as adjacent
            if c in known:
                if out and out[-1][2]:
                    out[-1][1] = c
                else:
                    out.append([c, c, True])
            elif out:
                out[-1][2] = False
        return [x for a, b, _ in out for x in (a, b)]

    rows = []
    for pattern in [r"\s", r"\S", r"\w", r"\W", r"\d", r"\h", r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{Lu}", r"\p{Han}",
                    r"[^\s\p{L}\p{N}]", r"[^(\s|[.,!?…。，、।۔،])]", r"[^\S\n]", "(?i:s)", "(?i:[a-z])"]:
        removed = pre_tokenizers.Split(Regex(pattern), "removed")
        rows.append({"pattern": pattern, "members": ranges([c for c in chars if not removed.pre_tokenize_str(chr(c))])})
    known, assigned_ranges = set(chars), []
    for c in range(0x30001):
        if (c in known) != (len(assigned_ranges) % 2 == 1):
            assigned_ranges.append(c)
    write("classes.json", {"assigned": assigned_ranges, "classes": rows})


# ---- main ------------------------------------------------------------------------------------------------------------

def real_tokenizers(shared):
    yield "codegen", shared / "tokenizers/codegen/tokenizer.json"
    yield "llama2", shared / "tokenizers/llama2/tokenizer.json"
    yield "stories260k", shared / "models/stories260k/tokenizer.json"
    yield "story-llama", shared / "models/story-llama/tokenizer.json"


def repair(d):
    """Llama-2's no-break spaces, which the copy has as plain ones (see src/tokenizer/load.c)."""
    merges = d["model"]["merges"]
    if not any(isinstance(m, str) and m.count(" ") > 1 for m in merges):
        return d
    broken = {"   ": ("\u00a0", "\u00a0"), "     ": ("\u00a0\u00a0",) * 2, MARK + "  ": (MARK, "\u00a0")}
    d["model"]["merges"] = [broken.get(m) or m.split(" ") for m in merges]
    d["model"]["vocab"] = {k.replace(" ", "\u00a0"): v for k, v in d["model"]["vocab"].items()}
    return d


def main():
    shared = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/data"
    OUT.mkdir(parents=True, exist_ok=True)
    write("texts.json", {"texts": [spelled for _, spelled in all_texts()], "random": random_texts(400, 1)})
    for name, make in [*MAKERS.items(), ("byte_level", None)]:
        path = OUT / f"{name}.json"
        if make and not path.exists():
            path.write_text(make().to_str() + "\n")
        d = json.loads(path.read_text())
        write(f"{name}.expected.json", expected(Tokenizer.from_file(str(path)), normalized_specials(d)))
    for name, path in real_tokenizers(shared):
        if path.exists():
            d = repair(json.loads(path.read_text()))
            t = Tokenizer.from_str(json.dumps(d))
            if name == "codegen":  # its ByteLevel post-processor trims offsets
                t.post_processor = processors.ByteLevel(trim_offsets=False)
            write(f"{name}.expected.json", expected(t, normalized_specials(d)))
    write_variants()
    write_classes()


if __name__ == "__main__":
    main()
