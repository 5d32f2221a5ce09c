"""Golden adapters: PEFT's LoRA over the models of models.py, in fp32, written to tests/golden/lora.bin.

Each case takes its base (config, weights, tokens, targets) from tests/golden/model_BASE.bin. In lora.bin, the names
of its arrays begin with "CASE." (the base's name is the case's up to the first "-"):

    rslora        i64  1: alpha / sqrt(r) in place of alpha / r
    dora          i64  1: with magnitudes, which begin 10 % off the norms of the base's rows
    alpha.MODULE  f64  of each module with an adapter; its rank is the first size of its lora_A. Of experts: of each
                       parameter of theirs, of whose lora_A each expert has as many rows
    weight.TENSOR f32  adapters at the beginning; neither A nor B is zero, so that both have gradients
    grad.TENSOR   f32  of the mean loss, of all that is trained
    logits, token_loss, loss, bf16_error   as in model_BASE.bin
    step_loss     f64  [20] mean loss before each step of AdamW, all steps with the same rows
    step_norm     f64  [20] global norm of the gradients before clipping
    final.TENSOR  f32  all that is trained, after the last step
    optimizer     f64  lr, beta1, beta2, eps, weight_decay, clip
    dropout       f64  the logits are without it
    lr_ratio      f64  learning rate of B, divided by that of A (LoRA+)

Weight decay applies where transformers' Trainer applies it, but not to magnitudes.

Dropout drops the elements that the program drops (Dropout below): those of step 1 and one micro-batch in the
losses and gradients; in the steps, the first row is a micro-batch, and the others are another.

As in models.py, gradients and losses must agree with those of double precision.

Run: python scripts/golden/lora.py [CASE...] (the others keep their results; needs torch, transformers, peft, numpy)
"""

import copy
import os
import re
import sys

import numpy as np
import peft
import peft.optimizers
import torch
from transformers import trainer_pt_utils

import goldenfile
import models

OUT = os.path.join(models.OUT, "lora.bin")
STEPS, LR, BETAS, EPS, DECAY, CLIP = 20, 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

SEED, USE_DROPOUT = 12345, 9  # the seed of tests/offload/tiny_run.c; OT_RANDOM_DROPOUT of src/base/random.h

CASES = {
    # Grouped heads; every map of the layers.
    "llama-all": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    # q and v only, so that k lies between two maps with adapters; biases, tied, a window.
    "qwen2-qv_rslora": dict(r=5, lora_alpha=7, use_rslora=True, target_modules=["q_proj", "v_proj"]),
    # Ranks and scales differ within q, k, v and within gate, up; the head has an adapter; norms of q and k.
    "qwen3-patterns": dict(
        r=3, lora_alpha=6, target_modules=LINEAR + ["lm_head"],
        rank_pattern={"k_proj": 1, "layers.1.mlp.down_proj": 6},
        alpha_pattern={"v_proj": 5, "up_proj": 2, "lm_head": 4}),
    # A tied head with an adapter of its own.
    "qwen3_tied-head": dict(r=2, lora_alpha=3, target_modules=["o_proj", "down_proj", "lm_head"]),
    # The head is trained beside the adapters; biases on every map.
    "llama_bias-save": dict(r=2, lora_alpha=4, target_modules=["gate_proj", "up_proj", "k_proj"],
                            modules_to_save=["lm_head"]),
    # Dropout in every unit, and in the head.
    "qwen3-dropout": dict(r=3, lora_alpha=6, target_modules=LINEAR + ["lm_head"], lora_dropout=0.4),
    # DoRA on every map, with grouped heads.
    "llama-dora": dict(r=4, lora_alpha=8, target_modules="all-linear", use_dora=True),
    # DoRA on q and v, so that k lies between; biases; tied; a window.
    "qwen2-dora_qv": dict(r=5, lora_alpha=7, use_dora=True, use_rslora=True, target_modules=["q_proj", "v_proj"]),
    # DoRA with ranks and scales that differ, a head, and norms of q and k.
    "qwen3-dora_patterns": dict(
        r=3, lora_alpha=6, target_modules=LINEAR + ["lm_head"], use_dora=True,
        rank_pattern={"k_proj": 1, "layers.1.mlp.down_proj": 6},
        alpha_pattern={"v_proj": 5, "up_proj": 2, "lm_head": 4}),
    # DoRA on a tied head.
    "qwen3_tied-dora_head": dict(r=2, lora_alpha=3, target_modules=["o_proj", "lm_head"], use_dora=True),
    # DoRA beside trained tensors of the base; biases on every map.
    "llama_bias-dora_save": dict(r=2, lora_alpha=4, target_modules=["gate_proj", "up_proj", "down_proj", "o_proj"],
                                 modules_to_save=["lm_head"], use_dora=True),
    # The embedding, beside other maps; dropout leaves it alone.
    "llama-embed": dict(r=4, lora_alpha=6, target_modules=["embed_tokens", "q_proj", "down_proj"], lora_dropout=0.2),
    # The embedding alone: its adapter is all that is trained.
    "qwen2-embed_only": dict(r=3, lora_alpha=6, target_modules=["embed_tokens"]),
    # The embedding and a tied head, each with an adapter of its own.
    "qwen3_tied-embed_head": dict(r=2, lora_alpha=3, use_rslora=True, target_modules=["embed_tokens", "lm_head", "v_proj"]),
    # DoRA with dropout on every map, with grouped heads.
    "llama-dora_dropout": dict(r=4, lora_alpha=8, target_modules="all-linear", use_dora=True, lora_dropout=0.3),
    # DoRA with dropout on q and v, so that k lies between; biases; tied; a window.
    "qwen2-dora_dropout_qv": dict(r=5, lora_alpha=7, use_dora=True, use_rslora=True, lora_dropout=0.2,
                                  target_modules=["q_proj", "v_proj"]),
    # DoRA with dropout, ranks and scales that differ, a head, and norms of q and k; gate has no adapter.
    "qwen3-dora_dropout_head": dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"],
        use_dora=True, lora_dropout=0.4, rank_pattern={"k_proj": 1}, alpha_pattern={"v_proj": 5, "lm_head": 4}),
    # LoRA+, with a head, and maps of several ranks in a unit.
    "qwen3-plus": dict(r=3, lora_alpha=6, target_modules=LINEAR + ["lm_head"], rank_pattern={"k_proj": 1}),
    # Matrices as [in, out]: PEFT's fan_in_fan_out.
    "gpt2-all": dict(r=4, lora_alpha=8, target_modules="all-linear", fan_in_fan_out=True),
    # q, k and v of each head together in the rows of B. Dropout. The norm of the embedding is trained too.
    "bloom-qkv": dict(r=3, lora_alpha=12, target_modules=["query_key_value"], lora_dropout=0.3,
                      modules_to_save=["word_embeddings_layernorm"]),
    # Groups of heads in the rows of B and in magnitudes; two norms of one input.
    "falcon_two-dora": dict(r=3, lora_alpha=6, target_modules="all-linear", use_dora=True),
    # A scaled embedding.
    "gemma3-embed": dict(r=3, lora_alpha=6, target_modules=["embed_tokens", "v_proj", "down_proj"]),
    # One adapter for q, k and v, and one for gate and up.
    "phi3-all": dict(r=4, lora_alpha=4, target_modules="all-linear"),
    # Adapters of attention over frozen experts. ("all-linear" of PEFT would adapt the experts too.)
    "mixtral-attention": dict(r=4, lora_alpha=8, target_modules=LINEAR[:4]),
    # The same over experts whose weights do not sum to one, and a layer that has an MLP.
    "qwen3_moe-attention": dict(r=4, lora_alpha=8, target_modules=LINEAR[:4]),
    # Adapters of experts, with ranks and scales that differ, beside some of attention.
    "mixtral-experts": dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "o_proj"], target_parameters=EXPERTS,
        rank_pattern={"experts.down_proj": 2, "layers.1.mlp.experts.gate_up_proj": 5}, alpha_pattern={"experts.down_proj": 5}),
    # Of gate and up alone, and nothing else; one layer has none. PEFT calls them as it calls those of down elsewhere.
    "qwen3_moe-experts": dict(r=2, lora_alpha=30, use_rslora=True, target_modules=[], target_parameters=EXPERTS[:1]),
    # Interleaved rows of gate and up, beside a head and LoRA+.
    "gpt_oss-experts": dict(r=2, lora_alpha=4, target_modules=["v_proj", "lm_head"], target_parameters=EXPERTS),
}
LR_RATIOS = {"qwen3-plus": 3, "gpt_oss-experts": 2}
# In all steps, tokens stay away from the borders between two experts.
SEEDS = {"mixtral-attention": 337, "qwen3_moe-attention": 507, "qwen3_moe-experts": 324, "gpt_oss-experts": 323}

# The unit of maps that share dropout, as the place of its first weight among a layer's.
UNITS = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 3, "gate_proj": 4, "up_proj": 4, "down_proj": 6,
         "query_key_value": 0}


def mix(x):
    """The finalizer of splitmix64, as in src/base/random.c."""
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb % 2**64
    return x ^ (x >> 31)


def stream(use, step, tensor):
    return mix(mix(mix(use) ^ step) ^ tensor)


def noise(seed, stream):
    """The first two words of block 0 of Philox4x32-10."""
    c, k = [0, 0, stream % 2**32, stream >> 32], [seed % 2**32, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 % 2**32, p0 >> 32 ^ c[3] ^ k[1], p0 % 2**32]
        k = [(k[0] + 0x9e3779b9) % 2**32, (k[1] + 0xbb67ae85) % 2**32]
    return c[0], c[1]


def words(keys, index):
    """ot_state_word of kernels/state_format.h, for indices below 2^32."""
    mask = np.uint64(2**32 - 1)
    x = (np.uint64(keys[0]) + index * np.uint64(0x9e3779b1)) & mask
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x7feb352d) & mask
    return (x ^ x >> np.uint64(15) ^ np.uint64(keys[1])) * np.uint64(0x846ca68b) & mask


class Dropout(torch.nn.Module):
    """In place of torch's dropout in front of an adapter."""
    rows = []  # the stream of the micro-batch and the place in it of the coming rows; empty: no dropout
    row = None

    def __init__(self, number, drop):
        super().__init__()
        self.number, self.drop = number, np.float32(drop)

    @classmethod
    def next_row(cls, *_):
        cls.row = cls.rows.pop(0) if cls.rows else None

    def forward(self, x):
        if self.row is None:
            return x
        of_micro, first = self.row
        rows, width = x.shape[1:]
        index = np.arange(first * width, (first + rows) * width, dtype=np.uint64).reshape(rows, width)
        keys = noise(SEED, stream(USE_DROPOUT, of_micro, self.number))
        kept = words(keys, index) >= int(float(self.drop) * 2**32)
        factor = np.float32(1 / (1 - float(self.drop)))
        return x * torch.tensor(np.where(kept, factor, np.float32(0))).to(x.dtype)


def number_of(model, module):
    """The number of the first weight of the module's unit (models/model.h)."""
    own = [n for n, _ in model.named_parameters() if "lora_" not in n and "modules_to_save" not in n]
    first = sum("embed" in n for n in own)  # the tables and the norm in front of the layers
    layer_tensors = sum(".layers.0." in n or ".h.0." in n for n in own)
    if module.endswith("lm_head"):
        return first + model.config.num_hidden_layers * layer_tensors
    layer = re.search(r"[.](?:layers|h)[.](\d+)[.]", module)[1]
    return first + int(layer) * layer_tensors + UNITS[module.split(".")[-1]]


def replace_dropout(model, drop):
    for name, module in model.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer) and not isinstance(module, peft.tuners.lora.Embedding):
            module.lora_dropout["default"] = Dropout(number_of(model, name), drop)
    model.register_forward_pre_hook(Dropout.next_row)


def drop_rows(rows, step=None):
    """Before the rows are run. step None: they are one micro-batch of step 1."""
    micro, first = 0, 0
    Dropout.rows = []
    for i, (ids, _) in enumerate(rows):
        if step and i == 1:
            micro, first = 1, 0
        Dropout.rows.append((stream(USE_DROPOUT, step or 1, micro), first))
        first += len(ids)


def read(path):
    """The arrays of a golden file."""
    dtypes = {short: name for name, short in goldenfile.DTYPES.items()}
    with open(path, "rb") as file:
        data = file.read()
    head, data = data[:data.index(b"\n\n")], data[data.index(b"\n\n") + 2:]
    arrays = {}
    for line in head.decode().split("\n")[1:]:
        name, dtype, dims, offset = line.split()
        shape = [int(d) for d in dims.split("x")]
        arrays[name] = np.frombuffer(data, dtypes[dtype], int(np.prod(shape)), int(offset)).reshape(shape)
    return arrays


def make_base(name):
    family, options = models.CASES[name]
    base = models.make_model(family, options, 0)
    arrays = read(os.path.join(models.OUT, f"model_{name}.bin"))
    with torch.no_grad():
        for tensor, p in base.named_parameters():
            for part, values in models.in_files(family, tensor, p).items():
                values.copy_(torch.tensor(arrays[f"weight.{part}"]))
    starts = sorted(set(arrays["row_start"].tolist())) + [len(arrays["tokens"])]
    tokens, targets = arrays["tokens"].astype(np.int64), arrays["targets"].astype(np.int64)
    return base, [(tokens[a:b], targets[a:b]) for a, b in zip(starts, starts[1:])]


def make_model(name, options, seed):
    base, rows = make_base(name)
    torch.manual_seed(seed)
    model = peft.get_peft_model(base, peft.LoraConfig(**({"task_type": "CAUSAL_LM"} | options)))
    if options.get("lora_dropout"):
        replace_dropout(model, options["lora_dropout"])
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            if "lora_B" in tensor or "lora_embedding_A" in tensor:
                p.copy_(0.1 * torch.randn_like(p))
            if "lora_magnitude_vector" in tensor:
                p.mul_(1 + 0.1 * torch.randn_like(p))
    return model, rows


def trained(model):
    """What is trained, under the names of PEFT's files; of the base's tensors, under the base's names."""
    names = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            saved = ".modules_to_save.default" in name
            name = name.replace(".default", "").replace(".modules_to_save", "")
            name = name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
            names[name.removeprefix("base_model.model.") if saved else name] = p
    return names


def target_of(name, module):
    """What has the adapter: a module, or a parameter of experts, whose modules PEFT puts around each other."""
    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
    return f"{name}.{module.parameter_name}" if isinstance(module, peft.tuners.lora.ParamWrapper) else name


def alphas(model):
    return {f"alpha.{target_of(name, m)}": np.array([float(m.lora_alpha["default"])])
            for name, m in model.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}


# Weight decay does not apply to these names: those of transformers' Trainer.get_decay_parameter_names.
KEPT = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


def make_optimizer(model, tensors, lr, lr_ratio):
    if lr_ratio != 1:
        assert all(p.dim() == 2 for p in tensors)  # PEFT gives vectors the rate of B
        return peft.optimizers.create_loraplus_optimizer(model, torch.optim.AdamW, lr=lr, loraplus_lr_ratio=lr_ratio,
                                                         loraplus_weight_decay=DECAY, betas=BETAS, eps=EPS)
    names = trainer_pt_utils.get_parameter_names(model, [torch.nn.LayerNorm], KEPT)
    decayed = {id(p) for name, p in model.named_parameters() if name in names and "magnitude_vector" not in name}
    decays = [id(p) in decayed for p in tensors]
    groups = [dict(params=[p for p, decay in zip(tensors, decays) if decay], weight_decay=DECAY),
              dict(params=[p for p, decay in zip(tensors, decays) if not decay], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, eps=EPS)


def train(model, rows, lr=LR, lr_ratio=1):
    tensors = list(trained(model).values())
    optimizer = make_optimizer(model, tensors, lr, lr_ratio)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        drop_rows(rows, step + 1)
        losses.append(models.run(model, rows)[2].item())
        norms.append(torch.nn.utils.clip_grad_norm_(tensors, CLIP).item())
        optimizer.step()
    return np.array(losses), np.array(norms)


def run_as(model, rows, dtype):
    other = copy.deepcopy(model).to(dtype)
    other.zero_grad()
    drop_rows(rows)
    _, token_loss, _ = models.run(other, rows)
    return [p.grad for p in trained(other).values()], token_loss


def golden_case(case, options, seed, lr=LR):
    lr_ratio = LR_RATIOS.get(case, 1)
    model, rows = make_model(case.split("-")[0], options, seed)
    assert models.choice_gap(model, rows) > 0.015  # rounding to bf16 chooses no other expert
    Dropout.rows = []
    logits, _, _ = models.run(model, rows)
    model.zero_grad()
    drop_rows(rows)
    _, token_loss, loss = models.run(model, rows)
    named = trained(model)
    grads = [p.grad for p in named.values()]
    exact, _ = run_as(model, rows, torch.float64)
    worst = max(models.error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (case, worst)
    bf16, bf16_loss = run_as(model, rows, torch.bfloat16)
    arrays = {"rslora": np.array([int(options.get("use_rslora", False))]),
              "dora": np.array([int(options.get("use_dora", False))]),
              "dropout": np.array([options.get("lora_dropout", 0.0)]),
              "lr_ratio": np.array([float(lr_ratio)]),
              "optimizer": np.array([lr, *BETAS, EPS, DECAY, CLIP])} | alphas(model)
    arrays |= {f"weight.{n}": p.detach().clone() for n, p in named.items() if "lora_" in n}
    arrays |= {f"grad.{n}": p.grad.clone() for n, p in named.items()}
    arrays |= {"logits": logits, "token_loss": token_loss, "loss": np.array([loss.item()]),
               "bf16_error": np.array([models.error(models.flat(bf16), models.flat(grads)),
                                       models.error(bf16_loss, token_loss)])}
    exact_losses, _ = train(copy.deepcopy(model).double(), rows, lr, lr_ratio)
    gaps, _ = models.watch_choices(model)
    losses, norms = train(model, rows, lr, lr_ratio)
    assert min(gaps) > 1e-4, (case, min(gaps))
    drift = np.abs(losses - exact_losses).max()
    assert drift < 2e-6, (case, drift)
    assert 0 < (norms > CLIP).sum(), (case, norms)
    arrays |= {"step_loss": losses, "step_norm": norms}
    arrays |= {f"final.{n}": p.detach().clone() for n, p in trained(model).items()}
    print(f"{case}: {len(named)} tensors, gradients fp32 against fp64 {worst:.1e}, loss {losses[0]:.4f} -> "
          f"{losses[-1]:.4f} (fp32 against fp64 {drift:.1e}), norms {norms.min():.2f}..{norms.max():.2f}")
    return {f"{case}.{n}": a for n, a in arrays.items()}


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or CASES
    arrays = {n: a for n, a in read(OUT).items() if n.split(".")[0] not in wanted} if sys.argv[1:] else {}
    for i, (case, options) in enumerate(CASES.items()):
        if case in wanted:
            arrays |= golden_case(case, options, SEEDS.get(case, 300 + i))
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
