#!/usr/bin/env python3
"""Golden vectors of SentencePiece models, made with sentencepiece (0.2), the converters of transformers (4.57), and
tokenizers (0.23).

    scripts/golden/sentencepiece_models.py

Writes tests/golden/tokenizers/:
  NAME.model            small SentencePiece models, trained here on the text of tokenizer.py
  sentencepiece.json    cases: a model and the JSON files beside it in a model directory; and texts with the ids that
                        SentencePiece itself gives, for classes without a converter
  CASE.expected.json    what the tokenizer gives that transformers makes of such a directory (format: tokenizer.py)

An existing model is kept, so a new run changes no ids; remove the file to train it again.
"""
import importlib.metadata
import io
import json
import pathlib
import shutil
import tempfile

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2

import tokenizer as golden

# The last transformers with these converters wants an older tokenizers, whose decoding of added tokens differs.
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.22.2" if name == "tokenizers" else version(name)
import transformers  # noqa: E402  pylint: disable=wrong-import-position

MODELS = {
    # Like Llama's: no normalisation, byte fallback; a piece that the user defined.
    "llama_bpe": dict(model_type="bpe", vocab_size=620, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, user_defined_symbols=["<mask>", "x=1"], split_digits=True,
                      allow_whitespace_only_pieces=True),
    # Like T5's: a table of replacements; <pad>, </s> and <unk> come first.
    "t5_unigram": dict(model_type="unigram", vocab_size=420, pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
    # Unigram with byte fallback, as some Llamas have it.
    "llama_unigram": dict(model_type="unigram", vocab_size=560, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False),
}

TOKEN = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}


def decoder(**tokens):
    """added_tokens_decoder; the name of a keyword is _ID."""
    return {name[1:]: {**TOKEN, "normalized": False, "special": True, **value} for name, value in tokens.items()}


def llama(config=None, **more):
    return {"model": "llama_bpe", "model_type": "llama", "tokenizer_config.json": config and
            {"tokenizer_class": "LlamaTokenizer", **config}, **more}


CASES = {
    "sp_bare": llama(),
    "sp_new": llama({"legacy": False, "bos_token": {"__type": "AddedToken", "content": "<s>", **TOKEN},
                     "eos_token": {"__type": "AddedToken", "content": "</s>", **TOKEN}, "add_eos_token": True},
                    **{"special_tokens_map.json": {"unk_token": {"content": "<unk>", **TOKEN}, "pad_token": "<pad>"}}),
    "sp_older": llama({"bos_token": "<s>", "pad_token": "[PAD]", "add_bos_token": False},
                      **{"added_tokens.json": {"[PAD]": 620, "word": 621, "<|im_start|>": 622},
                         "special_tokens_map.json": {"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|end|>"}}),
    "sp_decoder": llama({"added_tokens_decoder": decoder(
        _0=dict(content="<unk>"), _1=dict(content="<s>"), _2=dict(content="</s>"),
        _620=dict(content="left", lstrip=True, normalized=True, special=False), _621=dict(content="right", rstrip=True),
        _622=dict(content="day", single_word=True, special=False)), "add_prefix_space": False}),
    "sp_never": llama({"legacy": False, "add_prefix_space": False, "unk_token": "<unk>"}),
    "sp_unigram": {**llama({}), "model": "llama_unigram"},
    "sp_t5": {"model": "t5_unigram", "model_type": "t5"},
    "sp_t5_new": {"model": "t5_unigram", "model_type": "t5", "tokenizer_config.json": {
        "tokenizer_class": "T5Tokenizer", "legacy": False, "extra_ids": 2, "additional_special_tokens":
        ["<extra_id_0>", "<extra_id_1>"], "pad_token": "<pad>"}},
    "sp_gemma": {"model": "gemma_bpe", "model_type": "gemma", "tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer"}},
}
MODELS["gemma_bpe"] = dict(model_type="bpe", vocab_size=620, byte_fallback=True, normalization_rule_name="identity",
                           remove_extra_whitespaces=False, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                           pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
                           user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "\n\n", "\t"])
OTHERS = ["llama_bpe", "gemma_bpe"]


def train(name, settings):
    settings = dict(settings)
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        if "normalization_rule_name" not in settings:
            file.write(golden.rules())
            file.flush()
            settings["normalization_rule_tsv"] = file.name
        spm.SentencePieceTrainer.train(sentence_iterator=(line.strip("\r\n") for line in golden.corpus()), model_writer=model,
                                       character_coverage=0.98, num_threads=1, minloglevel=2, max_sentencepiece_length=12,
                                       **settings)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this machine
    (golden.OUT / f"{name}.model").write_bytes(proto.SerializeToString())


def load(case):
    """What transformers makes of the directory."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        name = "spiece.model" if case["model_type"] == "t5" else "tokenizer.model"
        shutil.copy(golden.OUT / f"{case['model']}.model", folder / name)
        (folder / "config.json").write_text(json.dumps({"model_type": case["model_type"]}))
        for key, value in case.items():
            if key.endswith(".json") and value is not None:
                (folder / key).write_text(json.dumps(value))
        return transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer


def own_ids():
    """SentencePiece's own ids. It does not read control pieces in a text, so texts with them are left out."""
    rows = []
    for name in OTHERS:
        sp = spm.SentencePieceProcessor(model_file=str(golden.OUT / f"{name}.model"))
        names = [sp.id_to_piece(i) for i in range(sp.get_piece_size()) if sp.is_control(i) or sp.is_unknown(i)]
        texts = [t for t in golden.HOSTILE + golden.random_texts(200, 4)
                 if not any(n in t for n in names) and "\0" not in t and golden.MARK not in t and "<0x" not in t]
        rows.append({"model": name, "texts": texts, "ids": [sp.encode(t) for t in texts]})
    return rows


def main():
    transformers.utils.logging.set_verbosity_error()
    for name, settings in MODELS.items():
        if not (golden.OUT / f"{name}.model").exists():
            train(name, settings)
    for name, case in CASES.items():
        t = load(case)
        golden.write(f"{name}.expected.json", golden.expected(t, golden.normalized_specials(json.loads(t.to_str()))))
    golden.write("sentencepiece.json", {"cases": [{"name": n, **c} for n, c in CASES.items()], "others": own_ids()})


if __name__ == "__main__":
    main()
