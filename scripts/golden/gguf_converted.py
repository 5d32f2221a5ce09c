#!/usr/bin/env python3
"""What llama.cpp makes of the models of tests/support/tiny_models.py, written to tests/golden/gguf/converted.json.

    scripts/golden/gguf_converted.py LLAMA_CPP

LLAMA_CPP is a folder with llama.cpp's sources, whose converter is run: the sdist of llama-cpp-python 0.3.36 has them in
vendor/llama.cpp. llama.cpp itself is the package xllamacpp (2026.10). Also needs torch, transformers, peft and numpy.

The file has for each model:
  architecture, keys   of the converter's file, without those that say nothing about the computation (LEFT_OUT)
  tensors              {name: [shape, CRC-32 of the fp32 values, or of the blocks of MXFP4]}
  loss                 llama.cpp's mean loss over TEXT, one byte a token after token 256. Of a T5: over TARGET after the start
                       token, for INPUT before token 257. llama.cpp does not divide the logits of a tied T5 by the root of the
                       width: this script does

and for the adapters of experts of some models (tiny_models.write_adapters):
  tensors              {type: {name: [shape, CRC-32 of the bytes]}} of the GGUF file of adapters that this script makes. llama.cpp's
                       convert_lora_to_gguf.py does not know the names that PEFT gives to adapters of experts
  loss                 llama.cpp's, with the fp32 file over the converter's file. The script checks that PEFT has the same loss
"""
import ctypes
import json
import logging
import math
import pathlib
import struct
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA_CPP = pathlib.Path(sys.argv[1]).resolve()
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py"), str(ROOT / "tests/support")]

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import peft  # noqa: E402
import safetensors.numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import xllamacpp.xllamacpp  # noqa: E402
from conversion import get_model_class  # noqa: E402
from conversion.base import ModelBase, ModelType, get_model_architecture  # noqa: E402

import tiny_models  # noqa: E402

TEXT = "CREATE TABLE singer (name TEXT, age INT); the cat sat on a mat, and then it left for the city of 1234 lights."
INPUT, TARGET = TEXT.split("; ")
LEFT_OUT = {
    "tokenizer.ggml.model",
    "t5.attention.layer_norm_epsilon",  # llama.cpp reads layer_norm_rms_epsilon
    "falcon.context_length",  # always 2048
    "falcon.tensor_data_layout",  # llama.cpp does not read it
    "olmo2.attention.sliding_window_pattern",  # llama.cpp's default, if the layers are the usual ones
    "olmo2.rope.freq_base_swa",  # llama.cpp does not use it
    "olmo2.rope.scaling.yarn_beta_fast", "olmo2.rope.scaling.yarn_beta_slow",  # llama.cpp does not read them
}


# ---- the converter ---------------------------------------------------------------------------------------------------

def convert(folder, out, vocab):
    """The converter without a tokenizer, which is not tested here."""
    hparams = ModelBase.load_hparams(folder, False)
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("none")
        keys = self.gguf_writer.kv_data[0]
        if not any(key.endswith(".vocab_size") for key in keys):
            self.gguf_writer.add_vocab_size(vocab)
    tokenless = type("Tokenless", (model_class,), {"model_arch": model_class.model_arch, "set_vocab": set_vocab})
    with torch.inference_mode():
        model = tokenless(folder, gguf.LlamaFileType.ALL_F32, out, hparams=hparams)
        if hasattr(model, "impl"):
            model.impl.set_vocab = set_vocab.__get__(model.impl)
        model.write()


def describe(path):
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()
            if not name.startswith(("GGUF.", "general.")) and name not in LEFT_OUT}
    tensors = {}
    for tensor in reader.tensors:
        values = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        raw = tensor.data if tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4 else values
        tensors[tensor.name] = [list(values.shape), zlib.crc32(raw.tobytes())]
    return {"architecture": reader.fields["general.architecture"].contents(), "keys": dict(sorted(keys.items())),
            "tensors": dict(sorted(tensors.items()))}


# ---- llama.cpp -------------------------------------------------------------------------------------------------------

class Params(ctypes.Structure):
    """Room for any of llama.cpp's structs of parameters, which are passed by value as the last argument."""
    _fields_ = [("bytes", ctypes.c_uint8 * 1024)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
SILENT = Log(lambda *_: None)


def library():
    found = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ("llama_log_set", None, [Log, pointer]), ("llama_backend_init", None, []),
            ("llama_model_default_params", Params, []), ("llama_context_default_params", Params, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Params]),
            ("llama_init_from_model", pointer, [pointer, Params]), ("llama_free", None, [pointer]),
            ("llama_model_free", None, [pointer]), ("llama_adapter_lora_init", pointer, [pointer, ctypes.c_char_p]),
            ("llama_set_adapters_lora", integer,
             [pointer, ctypes.POINTER(pointer), ctypes.c_size_t, ctypes.POINTER(ctypes.c_float)]), ("llama_batch_init", Batch, [integer] * 3),
            ("llama_decode", integer, [pointer, Batch]), ("llama_encode", integer, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, integer])):
        getattr(found, name).restype, getattr(found, name).argtypes = result, arguments
    found.llama_log_set(SILENT, None)
    found.llama_backend_init()
    return found


def context_params(llama):
    """256 tokens, one thread, no flash attention, an fp32 cache; the places are those of llama.h."""
    raw = bytearray(bytes(llama.llama_context_default_params().bytes))
    assert struct.unpack_from("<2i", raw, 104) == (1, 1), "type_k and type_v are elsewhere"
    struct.pack_into("<I", raw, 0, 256)
    struct.pack_into("<2i", raw, 28, 1, 1)
    struct.pack_into("<i", raw, 52, 0)
    struct.pack_into("<2i", raw, 104, 0, 0)
    return Params.from_buffer_copy(bytes(raw))


def run(llama, call, context, ids):
    """A whole text in one call of llama_encode or llama_decode."""
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert call(context, batch) == 0


def add_adapters(llama, model, context, path):
    adapters = llama.llama_adapter_lora_init(model, str(path).encode())
    assert adapters, path
    assert llama.llama_set_adapters_lora(context, (ctypes.c_void_p * 1)(adapters), 1, (ctypes.c_float * 1)(1)) == 0


def mean_loss(llama, path, config, adapters=None):
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    assert model, path
    context, ids, divisor = llama.llama_init_from_model(model, context_params(llama)), [256, *TEXT.encode()], 1
    if adapters:
        add_adapters(llama, model, context, adapters)
    if config["model_type"] == "t5":
        run(llama, llama.llama_encode, context, [*INPUT.encode(), 257])
        ids = [config["decoder_start_token_id"], *TARGET.encode()]
        divisor = math.sqrt(config["d_model"]) if config.get("tie_word_embeddings", True) else 1
    run(llama, llama.llama_decode, context, ids)
    vocab = config["vocab_size"]
    rows = np.array([np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (vocab,)) for i in range(len(ids) - 1)],
                    np.float64) / divisor
    llama.llama_free(context)
    llama.llama_model_free(model)
    rows -= rows.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(rows).sum(1)) - rows[np.arange(len(rows)), ids[1:]]))


# ---- adapters of experts ---------------------------------------------------------------------------------------------

def gguf_adapters(folder, config):
    """{name: values} of a GGUF file, from a directory of PEFT; its alpha is that of all but down_proj."""
    loaded, found = safetensors.numpy.load_file(folder / "adapter_model.safetensors"), {}
    experts, alpha = config.get("num_local_experts") or config["num_experts"], tiny_models.ADAPTER_CONFIG["lora_alpha"]
    for layer in range(config["num_hidden_layers"]):
        at, out = f"base_model.model.model.layers.{layer}.", f"blk.{layer}."

        def take(module, at=at):
            a, b = (loaded[f"{at}{module}.lora_{matrix}.weight"] for matrix in "AB")
            return a, b

        def of_experts(module):
            a, b = take(module)
            return a.reshape(experts, -1, a.shape[1]), b.reshape(len(b), -1, experts).transpose(2, 0, 1)
        a, b = of_experts("mlp.experts.base_layer")
        half = b.shape[1] // 2
        gate, up = (b[:, ::2], b[:, 1::2]) if config["model_type"] == "gpt_oss" else (b[:, :half], b[:, half:])
        down_a, down_b = of_experts("mlp.experts")
        down_b = down_b * np.float32(tiny_models.ADAPTER_CONFIG["alpha_pattern"]["experts.down_proj"] / alpha)
        for name, pair in (("attn_output", take("self_attn.o_proj")), ("ffn_gate_exps", (a, gate)), ("ffn_up_exps", (a, up)),
                           ("ffn_down_exps", (down_a, down_b))):
            found |= {f"{out}{name}.weight.lora_{end}": np.ascontiguousarray(x) for end, x in zip("ab", pair)}
    return found


def write_gguf_adapters(path, architecture, tensors, kind):
    """Returns {name: [shape, CRC-32 of the bytes]}. Rows that are not whole blocks are F16 in a file of Q8_0."""
    writer, found = gguf.GGUFWriter(path, architecture), {}
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", tiny_models.ADAPTER_CONFIG["lora_alpha"])
    for name, values in tensors.items():
        of = gguf.GGMLQuantizationType[kind if kind != "Q8_0" or values.shape[-1] % 32 == 0 else "F16"]
        data = gguf.quantize(values, of)
        writer.add_tensor(name, data, raw_dtype=of)
        found[name] = [list(values.shape), zlib.crc32(data.tobytes())]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dict(sorted(found.items()))


def peft_loss(base, folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([[256, *TEXT.encode()]])
    with torch.inference_mode():
        logits = peft.PeftModel.from_pretrained(model, folder)(ids).logits[0, :-1].double()
        return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))


def adapt(llama, folder, base, architecture, config):
    """folder: of the base; base: its GGUF file."""
    adapters = folder.with_suffix(".lora")
    tiny_models.write_adapters(adapters, config, str(folder))
    tensors, losses, found = gguf_adapters(adapters, config), {}, {}
    for kind in ("F32", "F16", "Q8_0"):
        found[kind] = write_gguf_adapters(adapters / f"{kind}.gguf", architecture, tensors, kind)
        losses[kind] = mean_loss(llama, base, config, adapters / f"{kind}.gguf")
    wanted = peft_loss(folder, adapters)
    print("  with adapters:", losses, "PEFT:", wanted, flush=True)
    assert abs(wanted - losses["F32"]) < 1e-5
    assert abs(losses["F16"] - wanted) < 1e-3 and abs(losses["Q8_0"] - wanted) < 0.05  # llama.cpp rounds inputs to 8 bits too
    return {"tensors": found, "loss": losses["F32"]}


# ---- all -------------------------------------------------------------------------------------------------------------

def main():
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    llama, found = library(), {"text": TEXT, "input": INPUT, "target": TARGET, "models": {}, "adapters": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for name, config in tiny_models.MODELS.items():
            folder, out = pathlib.Path(temporary) / name, pathlib.Path(temporary) / f"{name}.gguf"
            tiny_models.write_model(folder, config)
            vocab = {str(i): i for i in range(config["vocab_size"])}  # that of Gemma 3 cuts the embedding to this size
            (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
            convert(folder, out, config["vocab_size"])
            found["models"][name] = {**describe(out), "loss": mean_loss(llama, out, config)}
            print(name, found["models"][name]["loss"], flush=True)
            if name in tiny_models.ADAPTED:
                found["adapters"][name] = adapt(llama, folder, out, found["models"][name]["architecture"], config)
    text = json.dumps(found, separators=(",", ":"), indent=None).replace('"architecture"', '\n"architecture"')
    (ROOT / "tests/golden/gguf/converted.json").write_text(text + "\n")


main()
