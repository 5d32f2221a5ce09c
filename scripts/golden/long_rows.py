"""Golden long rows: models of models.py on a row of 3,000 tokens and a short one behind it, written to
tests/golden/long_rows.bin.

Each case takes its model from tests/golden/model_CASE.bin, with more positions, and with windows that end inside a chunk of
128 tokens. There is one for each form of attention. In long_rows.bin, the names of its arrays begin with "CASE-long.":

    config_json, tokens, targets, position, row_start, token_loss, loss, grad.TENSOR   as in models.py

Angles of rope are exact here: those of transformers, in fp32, are off by up to 4e-5 at position 3,000, and with them losses by
5e-5. As there, the gradients must agree with those of double precision. Tokens with experts are not so near the border between two
of them that rounding chooses one.

Run: python scripts/golden/long_rows.py (needs torch, transformers, peft, numpy)
"""

import os

import numpy as np
import torch

import goldenfile
import lora
import models

OUT = os.path.join(models.OUT, "long_rows.bin")
ROW_TOKENS = (3000, 40)
# Grouped heads; a window; ALiBi; caps and a window in every second layer; sinks and experts.
CASES = {"llama": {}, "mistral": dict(sliding_window=300), "bloom": {}, "gemma2": dict(sliding_window=200),
         "gpt_oss": dict(sliding_window=150)}


def turn_exactly(rope):
    """Makes the rope of a model compute its angles in double. Of YaRN, the frequencies stay those of transformers."""
    inverse = rope.inv_freq.double()
    if rope.rope_type == "default":
        n = 2 * len(inverse)
        inverse = rope.config.rope_parameters["rope_theta"] ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    rounded = type(rope).forward

    def forward(x, position_ids):
        angles = position_ids[0].double()[:, None] * inverse
        _, like = rounded(rope, x, position_ids)
        angles = angles.repeat(1, like.shape[-1] // len(inverse))[None]
        return [(f(angles) * rope.attention_scaling).to(x.dtype) for f in (torch.cos, torch.sin)]
    rope.forward = forward


def make_model(case, changes):
    base, _ = lora.make_base(case)
    family, options = models.CASES[case]
    positions = {} if case == "bloom" else dict(max_position_embeddings=4096)
    model = models.make_model(family, options | positions | changes, 0)
    model.load_state_dict(base.state_dict())
    if case != "bloom":
        turn_exactly(model.model.rotary_emb)
    return model


def make_rows(vocab):
    rng = np.random.default_rng(5)
    rows = []
    for n in ROW_TOKENS:
        ids = rng.integers(0, vocab, n + 1)
        targets = ids[1:].copy()
        targets[:7] = -1
        rows.append((ids[:-1], targets))
    return rows


def golden_run(case, changes):
    model = make_model(case, changes)
    rows = make_rows(model.config.vocab_size)
    assert models.choice_gap(model, rows) > 2e-6, case
    _, token_loss, loss = models.run(model, rows)
    exact, _ = models.run_as(model, rows, torch.float64)
    worst = max(models.error(p.grad, e) for p, e in zip(model.parameters(), exact))
    assert worst < 5e-6, (case, worst)
    print(f"{case}: loss {loss.item():.4f}, gradients fp32 against fp64 {worst:.1e}")
    out = {"config_json": models.config_json(model)} | models.row_arrays(rows)
    out |= {"token_loss": token_loss, "loss": np.array([loss.item()])}
    for name, p in model.named_parameters():
        out |= {f"grad.{n}": part for n, part in models.in_files(models.CASES[case][0], name, p.grad).items()}
    return {f"{case}-long.{n}": a for n, a in out.items()}


def main():
    torch.set_num_threads(1)
    arrays = {}
    for case, changes in CASES.items():
        arrays |= golden_run(case, changes)
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
