#!/usr/bin/env python3
"""Golden vectors of GGUF, made with llama.cpp's package gguf (0.19), and with xllamacpp (2026.10), llama.cpp compiled.

    scripts/golden/gguf_files.py

Writes tests/golden/gguf/:
  blocks.bin   values and their blocks, for each type: encoded by gguf, or by llama.cpp where gguf cannot encode; of the latter
               and of MXFP4 also blocks of random bytes; and what gguf decodes
  spm.gguf     a tiny llama with a SentencePiece tokenizer, scores and no merges, and with an output matrix
  bpe.gguf     a tiny qwen2 with a byte-level tokenizer and a tied embedding, as version 2 of the format
The values of the models are a function of the tensor's place in the sorted list of Hugging Face's names and of the
index (value_of), which tests/gguf/test_gguf_foreign.c knows too.
"""
import ctypes
import pathlib
import struct

import gguf
import numpy as np
import xllamacpp.xllamacpp
from gguf import GGMLQuantizationType as Type

import goldenfile

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/gguf"
ENCODED = [Type.F16, Type.BF16, Type.Q8_0, Type.Q5_0, Type.Q4_0, Type.MXFP4]
SEARCHED = {Type.Q4_K: "quantize_row_q4_K_ref", Type.Q6_K: "quantize_row_q6_K_ref"}


# ---- blocks ----------------------------------------------------------------------------------------------------------

def values():
    """Blocks of 256 values: random of several sizes, zeros, equal values, one spike, ties of rounding, tiny, huge."""
    rng = np.random.default_rng(11)
    rows = [rng.normal(0, scale, 256) for scale in (1, 0.02, 1e-4, 300)]
    rows += [rng.uniform(0, 1, 256), -rng.uniform(0, 1, 256), np.zeros(256), np.full(256, -0.37), np.full(256, 2.5)]
    spike = rng.normal(0, 1e-3, 256)
    spike[77] = -4
    ties = np.arange(256) % 255 / 2 - 63.5
    ties[::32] = 127
    tails = rng.standard_t(3, (4, 256))
    rows += [*tails, spike, ties, rng.normal(0, 1e-9, 256), rng.normal(0, 1e-36, 256), rng.normal(0, 1e4, 256).clip(-65000, 65000)]
    return np.array(rows, np.float32)


def packed(raw):
    """Bytes as int32, which golden files have."""
    raw = np.ascontiguousarray(raw).view(np.uint8).ravel()
    return np.pad(raw, (0, -len(raw) % 4)).view(np.int32)


def searched(rows, kind):
    """Blocks by llama.cpp's reference."""
    blocks = np.zeros((len(rows), gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    library[SEARCHED[kind]](ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(blocks.ctypes.data),
                            ctypes.c_int64(rows.size))
    return blocks


def write_blocks():
    arrays = {"values": values()}
    for kind in ENCODED:
        blocks = gguf.quantize(arrays["values"], kind)
        if kind == Type.MXFP4:  # all scales and codes, but the scale 255
            raw = np.random.default_rng(13).integers(0, 256, (32, blocks.shape[1]), dtype=np.uint8)
            raw[:, ::17] = np.arange(256).clip(0, 251).reshape(32, 8)
            blocks = np.concatenate([blocks, raw])
        arrays[f"{kind.name}.blocks"] = packed(blocks)
        arrays[f"{kind.name}.decoded"] = gguf.dequantize(blocks, kind)
    rng = np.random.default_rng(12)
    for kind in SEARCHED:
        bytes_each = gguf.GGML_QUANT_SIZES[kind][1]
        raw = rng.integers(0, 256, (12, bytes_each), dtype=np.uint8)
        for row in raw:  # fp16 scales that are finite
            for at in (0, 2) if kind == Type.Q4_K else (208,):
                row[at:at + 2] = np.frombuffer(np.float16(rng.normal(0, 0.1)).tobytes(), np.uint8)
        blocks = np.concatenate([searched(arrays["values"], kind), raw])
        arrays[f"{kind.name}.blocks"] = packed(blocks)
        arrays[f"{kind.name}.decoded"] = gguf.dequantize(blocks, kind)
    goldenfile.write(OUT / "blocks.bin", arrays)


# ---- files -----------------------------------------------------------------------------------------------------------

HIDDEN, FFN, LAYERS, HEADS, KV, HEAD = 32, 64, 2, 4, 2, 8
PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def shapes(vocab, tied, bias):
    found = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        found["lm_head.weight"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for part, rows in (("q", HEADS * HEAD), ("k", KV * HEAD), ("v", KV * HEAD)):
            found[f"{at}self_attn.{part}_proj.weight"] = (rows, HIDDEN)
            if bias:
                found[f"{at}self_attn.{part}_proj.bias"] = (rows,)
        found[f"{at}self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD)
        for part in ("gate", "up"):
            found[f"{at}mlp.{part}_proj.weight"] = (FFN, HIDDEN)
        found[f"{at}mlp.down_proj.weight"] = (HIDDEN, FFN)
        for part in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}{part}.weight"] = (HIDDEN,)
    return dict(sorted(found.items()))


def value_of(place, shape):
    """Multiples of 1/64 between -2 and 2: exact in every plain type."""
    return ((np.arange(np.prod(shape)) * 37 + 11 * place) % 256 - 128).reshape(shape).astype(np.float32) / 64


def name_of(tensor):
    if tensor.startswith("model.layers."):
        _, _, layer, part = tensor.split(".", 3)
        part, ending = part.rsplit(".", 1)
        return f"blk.{layer}.{PARTS[part]}.{ending}"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[tensor]


def permuted(weights, heads):
    """As llama.cpp's conversion of LlamaForCausalLM reorders the rows of q and k."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def write_model(path, arch, vocab, tied, bias, kinds, add_tokenizer):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    add_tokenizer(writer)
    for place, (tensor, shape) in enumerate(shapes(vocab, tied, bias).items()):
        weights = value_of(place, shape)
        if arch == "llama" and ".q_proj." in tensor:
            weights = permuted(weights, HEADS)
        if arch == "llama" and ".k_proj." in tensor:
            weights = permuted(weights, KV)
        kind = Type.F32 if len(shape) == 1 else kinds[place % len(kinds)]
        writer.add_tensor(name_of(tensor), gguf.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WORDS = ["\u2581", "t", "h", "e", "c", "a", "\u2581t", "he", "\u2581the", "at", "cat", "\u2581cat"]


def add_spm(writer):
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    tokens = special + [(f"<0x{byte:02X}>", 6) for byte in range(256)] + [(word, 1) for word in WORDS]
    scores = {"he": -1, "\u2581t": -2, "\u2581the": -3, "at": -4, "cat": -5, "\u2581cat": -6}
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([float(scores.get(text, -100 if kind == 1 else 0)) for text, kind in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def byte_characters():
    """GPT-2's printable characters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte if byte in plain else 256 + rest.index(byte)) for byte in range(256)]


def add_bpe(writer):
    merges = ["t h", "th e", "\u0120 the", "c a", "ca t"]
    tokens = byte_characters() + [merge.replace(" ", "") for merge in merges]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + ["<|endoftext|>"] + [f"[PAD{i}]" for i in range(len(tokens) + 1, 272)])
    writer.add_token_types([1] * len(tokens) + [3] + [5] * (271 - len(tokens)))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(len(tokens))


def main():
    OUT.mkdir(exist_ok=True)
    write_blocks()
    write_model(OUT / "spm.gguf", "llama", 3 + 256 + len(WORDS), False, False, [Type.F16, Type.F32, Type.BF16], add_spm)
    write_model(OUT / "bpe.gguf", "qwen2", 272, True, True, [Type.F16], add_bpe)
    with open(OUT / "bpe.gguf", "r+b") as file:  # version 2 has the same layout
        file.seek(4)
        file.write(struct.pack("<I", 2))


main()
