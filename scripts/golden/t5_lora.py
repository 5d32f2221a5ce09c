"""Golden adapters of encoder-decoders: PEFT's LoRA over the models of t5.py, in fp32, written to tests/golden/t5_lora.bin.

The file is as that of lora.py, with these differences. It has the array bf16_worst, f64: the largest error of one
gradient in bf16: rank 4 leaves so little of some that rounding takes a tenth. `logits` and `token_loss` are 0 for inputs, as in t5.py. All rows
are one micro-batch in the steps too: dropout drops the elements of a row's inputs and targets at their places in it.

Run: python scripts/golden/t5_lora.py (needs torch, transformers, peft, numpy)
"""

import os
import re

import numpy as np
import torch

import goldenfile
import lora
import models
import t5

OUT = os.path.join(models.OUT, "t5_lora.bin")
CASES = {
    # Every map of the layers; a tied head, whose logits are divided.
    "t5-all": dict(r=4, lora_alpha=20, target_modules="all-linear"),
    # PEFT's default targets, so that k lies between two maps with adapters, and in cross attention one map has none; the head.
    "t5_gated-qv_head": dict(r=5, lora_alpha=7, use_rslora=True, target_modules=["q", "v", "lm_head"],
                             rank_pattern={"EncDecAttention.v": 2}, alpha_pattern={"lm_head": 4}),
    # Dropout in every unit. The last norms of both stacks are trained too.
    "t5_gated-dropout": dict(r=3, lora_alpha=6, target_modules="all-linear", lora_dropout=0.4,
                             modules_to_save=["final_layer_norm"]),
    "t5_gated-dora": dict(r=4, lora_alpha=8, target_modules="all-linear", use_dora=True),
    # k of cross attention has an adapter and v has none; a tied head, whose logits are divided.
    "t5-dora_dropout": dict(r=3, lora_alpha=15, target_modules=["q", "k", "o", "wo"], use_dora=True, lora_dropout=0.2),
}
SEED = 370


class Dropout(lora.Dropout):
    """The place of a row's inputs, and that of its targets, is `first`."""

    def __init__(self, number, drop, reads_inputs):
        super().__init__(number, drop)
        self.reads_inputs = reads_inputs

    def forward(self, x):
        row = lora.Dropout.row
        if row is None:
            return x
        lora.Dropout.row = (row[0], row[1][0 if self.reads_inputs else 1])
        y = super().forward(x)
        lora.Dropout.row = row
        return y


def number_of(config, module):
    """The number of the first weight of the module's unit (models/params.c): the embedding comes first, then what all layers
    share, then the layers, each with its matrices and its norms."""
    stack, layer = re.search(r"(encoder|decoder)[.]block[.](\d+)[.]", module).groups()
    mlp, decoder = 3 if config.is_gated_act else 2, stack == "decoder"
    before = int(layer) * (4 + mlp + 2) if not decoder else config.num_layers * (4 + mlp + 2) + int(layer) * (8 + mlp + 3)
    kind, name = module.split(".")[-2:]
    places = {"SelfAttention": {"q": 0, "k": 0, "v": 0, "o": 3}, "EncDecAttention": {"q": 4, "k": 5, "v": 5, "o": 7}}
    places["DenseReluDense"] = {name: (8 if decoder else 4) + at for name, at in (
        ("wi", 0), ("wi_0", 0), ("wi_1", 0), ("wo", mlp - 1))}
    return 4 + before + places[kind][name]


def replace_dropout(model, drop):
    for name, module in model.named_modules():
        if isinstance(module, lora.peft.tuners.lora.LoraLayer):
            reads_inputs = ".encoder." in name or name.endswith(("EncDecAttention.k", "EncDecAttention.v"))
            module.lora_dropout["default"] = Dropout(number_of(model.config, name), drop, reads_inputs)
    model.register_forward_pre_hook(lora.Dropout.next_row)


def drop_rows(rows, step=None):
    of_micro = lora.stream(lora.USE_DROPOUT, step or 1, 0)
    inputs = np.cumsum([0] + [len(i) for i, _ in rows])
    targets = inputs[-1] + np.cumsum([0] + [len(t) for _, t in rows])
    lora.Dropout.rows = [(of_micro, (int(i), int(t))) for i, t in zip(inputs[:-1], targets[:-1])]


def make_base(name):
    seed = t5.SEED + list(t5.CASES).index(name)
    return t5.make_model(name, seed), t5.make_rows(seed)


def run(model, rows):
    """As t5.run; inputs have logits and losses of 0."""
    logits, token_loss, loss = t5.run(model, rows)
    n = sum(len(i) for i, _ in rows)
    return torch.cat([torch.zeros(n, logits.shape[1]), logits]), torch.cat([torch.zeros(n), token_loss]), loss


def worst_in_bf16(case, options, seed):
    model, rows = lora.make_model(case.split("-")[0], options, seed)
    drop_rows(rows)
    run(model, rows)
    bf16, _ = lora.run_as(model, rows, torch.bfloat16)
    return max(models.error(b, p.grad) for b, p in zip(bf16, lora.trained(model).values()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    models.run, lora.make_base, lora.replace_dropout, lora.drop_rows = run, make_base, replace_dropout, drop_rows
    models.choice_gap = lambda *_: 1  # there are no experts
    arrays = {}
    for i, (case, options) in enumerate(CASES.items()):
        # PEFT 0.21's class for SEQ_2_SEQ_LM asks transformers 5.24 for a method that has another name there.
        options |= {"task_type": None}
        arrays |= lora.golden_case(case, options, SEED + i, t5.LR)
        arrays[f"{case}.bf16_worst"] = np.array([worst_in_bf16(case, options, SEED + i)])
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")
