"""Golden QLoRA: PEFT's LoRA over bases that transformers loads in NF4 with bitsandbytes, on the CPU, in fp32, written to
tests/golden/qlora.bin.

The arrays are those of lora.py, with one more in each case:

    base_type     i64  the base's enum ot_base_type (models/model.h)

The bases are those of models.py, saved in fp32 and loaded with load_in_4bit: the matrices of the layers are NF4; the
embedding, the head, norms and biases are not. transformers leaves experts as they are (they are no linear maps), but the
program stores each matrix of an expert in NF4 too: here bitsandbytes encodes and decodes it in its place. The router is
plain. In double quantisation, bitsandbytes on the CPU may take the neighbour of
the nearest code of a scale (kernels/weight_format.h says why); such codes are replaced by the nearest ones.

Losses and gradients must agree with those in double precision of a plain model that has the decoded weights. bf16_error
is that of torch's bf16 run of this plain model, as in lora.py: what bf16 costs once the base is fixed.

Run: python scripts/golden/qlora.py [CASE...] (the others keep their results; needs torch, transformers, peft, bitsandbytes, accelerate, numpy)
"""

import copy
import os
import sys
import tempfile

import bitsandbytes as bnb
import numpy as np
import peft
import torch
import transformers

import goldenfile
import lora
import models

OUT = os.path.join(models.OUT, "qlora.bin")
NF4, NF4_DOUBLE = 4, 5

CASES = {
    # Grouped heads; every map of the layers; blocks of 64 that end with the matrices.
    "llama-nf4": (NF4, dict(r=4, lora_alpha=4, target_modules="all-linear")),
    "llama-double": (NF4_DOUBLE, dict(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    # Biases on every map, the head trained beside the adapters; the last block of a matrix is shorter.
    "llama_bias-nf4": (NF4, dict(r=2, lora_alpha=4, target_modules=["gate_proj", "up_proj", "k_proj"],
                                 modules_to_save=["lm_head"])),
    # A head with an adapter, dropout, norms of q and k.
    "qwen3-nf4_dropout": (NF4, dict(r=3, lora_alpha=6, target_modules=lora.LINEAR + ["lm_head"], lora_dropout=0.4)),
    # Experts in NF4 below adapters of attention.
    "mixtral-nf4": (NF4, dict(r=4, lora_alpha=8, target_modules=lora.LINEAR[:4])),
}
# mixtral: in all steps, tokens stay away from the borders between two experts.
SEEDS = {"llama-nf4": 500, "llama-double": 501, "llama_bias-nf4": 502, "qwen3-nf4_dropout": 503, "mixtral-nf4": 507}


def load_quantised(base, kind):
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                             bnb_4bit_use_double_quant=kind == NF4_DOUBLE,
                                             bnb_4bit_compute_dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        base.save_pretrained(folder)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.float32,
                                                                 device_map="cpu", attn_implementation="eager")


def encode_experts(model):
    """Replaces each matrix of an expert by what its NF4 decodes to."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                halves = 2 if "gate_up" in name else 1
                for matrix in (half for expert in tensor for half in expert.chunk(halves)):
                    codes, state = bnb.functional.quantize_4bit(matrix.contiguous(), quant_type="nf4")
                    matrix.copy_(bnb.functional.dequantize_4bit(codes, state))


def quantised(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, bnb.nn.Linear4bit)}


def take_nearest(weight, state):
    """Gives every scale its nearest code. Returns the number of codes that changed. weight: before quantisation."""
    blocks = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % state.blocksize)).view(-1, state.blocksize)
    scales, nested = blocks.abs().amax(1), state.state2
    scaled = (scales - state.offset) / nested.absmax[torch.arange(len(scales)) // nested.blocksize]
    codes = (nested.code[None] - scaled[:, None]).abs().argmin(1)
    assert (codes - state.absmax.long()).abs().max() <= 1
    changed = int((codes != state.absmax.long()).sum())
    state.absmax.copy_(codes)
    return changed


def decoded(base, model):
    """A plain copy of the base with the weights that the quantised model computes with."""
    plain = copy.deepcopy(base)
    with torch.no_grad():
        for name, module in quantised(model).items():
            weight = module.weight
            plain.get_submodule(name).weight.copy_(bnb.functional.dequantize_4bit(weight.data, weight.quant_state))
    return plain


def adapt(base, options, seed):
    """The adapters depend on the seed and the shapes alone."""
    torch.manual_seed(seed)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    if options.get("lora_dropout"):
        lora.replace_dropout(model, options["lora_dropout"])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            if "lora_" in tensor:
                p.copy_((0.1 if "lora_B" in tensor else 0.2) * torch.randn(p.shape, generator=generator))
    return model


def golden_case(case, kind, options, seed):
    base, rows = lora.make_base(case.split("-")[0])
    four_bit = load_quantised(base, kind)
    maps = 4 if hasattr(base.config, "num_local_experts") else 7
    assert len(quantised(four_bit)) == maps * base.config.num_hidden_layers
    changed = sum(take_nearest(base.get_submodule(name).weight, m.weight.quant_state)
                  for name, m in quantised(four_bit).items() if kind == NF4_DOUBLE)
    plain = adapt(decoded(base, four_bit), options, seed)
    model = adapt(four_bit, options, seed)
    for other in plain, model:
        encode_experts(other)
    assert models.choice_gap(model, rows) > 0.015  # rounding to bf16 chooses no other expert
    lora.Dropout.rows = []
    logits, _, _ = models.run(model, rows)
    exact_logits, _, _ = models.run(base, rows)
    model.zero_grad()
    lora.drop_rows(rows)
    _, token_loss, loss = models.run(model, rows)
    named = lora.trained(model)
    grads = [p.grad for p in named.values()]
    exact, _ = lora.run_as(plain, rows, torch.float64)
    worst = max(models.error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (case, worst)
    bf16, bf16_loss = lora.run_as(plain, rows, torch.bfloat16)
    arrays = {"rslora": np.array([int(options.get("use_rslora", False))]),
              "dropout": np.array([options.get("lora_dropout", 0.0)]), "base_type": np.array([kind]),
              "optimizer": np.array([lora.LR, *lora.BETAS, lora.EPS, lora.DECAY, lora.CLIP])} | lora.alphas(model)
    arrays |= {f"weight.{n}": p.detach().clone() for n, p in named.items() if "lora_" in n}
    arrays |= {f"grad.{n}": p.grad.clone() for n, p in named.items()}
    arrays |= {"logits": logits, "token_loss": token_loss, "loss": np.array([loss.item()]),
               "bf16_error": np.array([models.error(models.flat(bf16), models.flat(grads)),
                                       models.error(bf16_loss, token_loss)])}
    exact_losses, exact_norms = lora.train(copy.deepcopy(plain).double(), rows)
    gaps, _ = models.watch_choices(model)
    losses, norms = lora.train(model, rows)
    assert min(gaps) > 1e-4, (case, min(gaps))
    drift = np.abs(losses - exact_losses).max()
    drift_of_norms = np.abs(norms / exact_norms - 1).max()
    assert drift < 2e-6 and drift_of_norms < 2e-5, (case, drift, drift_of_norms)
    arrays |= {"step_loss": losses, "step_norm": norms}
    arrays |= {f"final.{n}": p.detach().clone() for n, p in lora.trained(model).items()}
    print(f"{case}: {len(named)} tensors, gradients against fp64 {worst:.1e}, loss {losses[0]:.4f} -> {losses[-1]:.4f} "
          f"(against fp64 {drift:.1e}, norms {drift_of_norms:.1e}), norms {norms.min():.2f}..{norms.max():.2f}, base's logits off by "
          f"{models.error(logits, exact_logits):.2f}, bf16 off by {arrays['bf16_error']}, {changed} codes of scales changed")
    return {f"{case}.{n}": a for n, a in arrays.items()}


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or CASES
    arrays = {n: a for n, a in lora.read(OUT).items() if n.split(".")[0] not in wanted} if sys.argv[1:] else {}
    for case, (kind, options) in CASES.items():
        if case in wanted:
            arrays |= golden_case(case, kind, options, SEEDS[case])
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
