"""Golden runs of objectives that compare answers: TRL's losses over the model "llama" of models.py, in fp32, written
to tests/golden/objectives.bin. Names of a case's arrays begin with "CASE.":

    rows        i32  prompt, then answer 0 and answer 1 of each comparison: [n, 3, longest], padded with -1
    good        i32  [n] KTO: answer 0 is a good one
    objective   f64  kind (enum ot_objective_kind), beta, smoothing, gamma, sft_weight, weight of good, of bad
    reference   f64  [n, 2] log-probabilities of the answers before step 1
    step_loss   f64  [20] before each step of AdamW, all steps with the same comparisons
    step_norm   f64  [20] global norm of the gradients before clipping
    chosen, rejected  f64  [20] mean rewards, as TRL logs them
    optimizer   f64  lr, beta1, beta2, eps, weight_decay, clip

The losses of dpo, ipo and kto come from TRL's trainers, those of simpo from its CPO trainer, and orpo's odds from its
ORPO trainer. TRL has no smoothed loss of DPO: the case is made of its loss of both orders. Its term of SFT is a mean
over the tokens of a batch, ours is a mean over answers, so that term is torch's. TRL gives KTO's row the answer of the
row before it, so the rows are given to TRL in the reverse order.

Run: python scripts/golden/objectives.py (needs torch, transformers, trl, peft, datasets, tokenizers, numpy)
"""

import copy
import os
import tempfile

import datasets
import numpy as np
import tokenizers
import torch
import transformers
import trl
from trl.experimental import cpo, orpo

import goldenfile
import lora
import models

OUT = os.path.join(models.OUT, "objectives.bin")
STEPS, LR, VOCAB = 20, 1e-3, 44
KINDS = ["sft", "dpo", "ipo", "simpo", "orpo", "kto"]
CASES = {
    "dpo": dict(kind="dpo", beta=0.3),
    "dpo-smooth": dict(kind="dpo", beta=0.5, smoothing=0.2),
    "dpo-sft": dict(kind="dpo", beta=0.1, sft_weight=0.7),
    "ipo": dict(kind="ipo", beta=0.4),
    "simpo": dict(kind="simpo", beta=2.0, gamma=0.8, smoothing=0.1),
    "orpo": dict(kind="orpo", beta=0.6),
    "kto": dict(kind="kto", beta=0.5, good=1.3, bad=0.7),
}


def make_rows(n, seed):
    """Prompts and answers of unequal lengths; the last token of an answer is the end of text, 0."""
    rng = np.random.default_rng(seed)
    text = lambda low, high: rng.integers(1, VOCAB, int(rng.integers(low, high))).tolist()
    return [(text(2, 5), text(2, 7) + [0], text(2, 7) + [0]) for _ in range(n)], rng.integers(0, 2, n)


def make_tokenizer():
    base = tokenizers.Tokenizer(tokenizers.models.WordLevel({word(i): i for i in range(VOCAB)}, unk_token=word(0)))
    base.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=base, eos_token=word(0), pad_token=word(0), unk_token=word(0))


def word(i):
    return f"<{i}>"


def words(ids, space=""):
    return space + " ".join(word(i) for i in ids)


def batch_of(trainer):
    return next(iter(trainer.get_train_dataloader()))


def make_trainer(options, model, rows, good):
    kind, n = options["kind"], len(rows)
    args = dict(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=n, report_to=[], use_cpu=True, bf16=False,
                beta=options["beta"], gradient_checkpointing=False, disable_dropout=True, max_length=64)
    pairs = [{"prompt": words(p), "chosen": words(c, " "), "rejected": words(r, " ")} for p, c, r in rows]
    tools = dict(model=model, processing_class=make_tokenizer())
    if kind in ("dpo", "ipo"):
        config = trl.DPOConfig(loss_type="sigmoid" if kind == "dpo" else "ipo", **args)
        return trl.DPOTrainer(args=config, ref_model=copy.deepcopy(model), train_dataset=datasets.Dataset.from_list(pairs), **tools)
    if kind == "kto":
        single = [{"prompt": words(p), "completion": words(c, " "), "label": bool(g)} for (p, c, _), g in zip(rows, good)]
        config = trl.KTOConfig(desirable_weight=options["good"], undesirable_weight=options["bad"], **args)
        return trl.KTOTrainer(args=config, ref_model=copy.deepcopy(model),
                              train_dataset=datasets.Dataset.from_list(single[::-1]), **tools)
    return None


def log_probabilities(model, rows):
    """[n, 2], with gradients, and the tokens of each answer."""
    def one(prompt, answer):
        ids = torch.tensor([prompt + answer])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1:-1]
        return torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, -1)[
            torch.arange(len(answer)), torch.tensor(answer)].sum()
    sums = torch.stack([torch.stack([one(p, a), one(p, b)]) for p, a, b in rows])
    return sums, torch.tensor([[len(a), len(b)] for _, a, b in rows])


def own_loss(options, model, rows, reference):
    """The loss in torch, with TRL's functions where it has them."""
    sums, n = log_probabilities(model, rows)
    kind, beta, smoothing = options["kind"], options["beta"], options.get("smoothing", 0)
    means = sums / n
    if kind == "simpo":
        maker = cpo.CPOTrainer.__new__(cpo.CPOTrainer)
        maker.alpha, maker.loss_type, maker.beta = 0.0, "simpo", beta
        maker.simpo_gamma, maker.label_smoothing = options["gamma"], smoothing
        maker.accelerator = type("", (), {"device": torch.device("cpu")})()
        losses, chosen, rejected = maker.cpo_loss(means[:, 0], means[:, 1])
        return losses.mean(), chosen.mean(), rejected.mean()
    if kind == "orpo":
        maker = orpo.ORPOTrainer.__new__(orpo.ORPOTrainer)
        maker.beta, maker.accelerator = beta, type("", (), {"device": torch.device("cpu")})()
        ratios, chosen, rejected, _, _ = maker.odds_ratio_loss(means[:, 0], means[:, 1])
        return (-means[:, 0] - ratios).mean(), chosen.mean(), rejected.mean()
    rewards = beta * (sums - reference)
    if kind == "ipo":
        ratios = (sums - reference) / n
        return ((ratios[:, 0] - ratios[:, 1] - 1 / (2 * beta)) ** 2).mean(), rewards[:, 0].mean(), rewards[:, 1].mean()
    d = rewards[:, 0] - rewards[:, 1]
    log_sigmoid = torch.nn.functional.logsigmoid
    losses = -(1 - smoothing) * log_sigmoid(d) - smoothing * log_sigmoid(-d) - options.get("sft_weight", 0) * means[:, 0]
    return losses.mean(), rewards[:, 0].mean(), rewards[:, 1].mean()


def trl_loss(trainer, batch, model):
    trainer._metrics["train"].clear()
    loss = trainer._compute_loss(model, dict(batch), False)
    logged = trainer._metrics["train"]
    return loss, torch.tensor(logged["rewards/chosen"][-1]), torch.tensor(logged["rewards/rejected"][-1])


def run(options, rows, good, dtype):
    model = lora.make_base("llama")[0].to(dtype)
    with torch.no_grad():
        reference = log_probabilities(model, rows)[0].detach()
    plain = not options.get("smoothing") and not options.get("sft_weight")
    trainer = make_trainer(options, model, rows, good) if plain and dtype == torch.float32 else None
    batch = batch_of(trainer) if trainer else None
    model.train()
    tensors = list(lora.trained(model).values())
    optimizer = lora.make_optimizer(model, tensors, LR, 1)
    out = {"loss": [], "norm": [], "chosen": [], "rejected": []}
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, chosen, rejected = trl_loss(trainer, batch, model) if trainer else own_loss(options, model, rows, reference)
        loss.backward()
        out["norm"].append(torch.nn.utils.clip_grad_norm_(tensors, lora.CLIP).item())
        optimizer.step()
        for name, value in (("loss", loss), ("chosen", chosen), ("rejected", rejected)):
            out[name].append(value.item())
    return {name: np.array(values) for name, values in out.items()}, reference


def pad(rows):
    longest = max(len(part) for row in rows for part in row)
    return np.array([[part + [-1] * (longest - len(part)) for part in row] for row in rows], np.int32)


def golden_case(name, options):
    rows, good = make_rows(4, 11)
    good[:2] = [1, 0]
    if options["kind"] == "kto":  # answer 1 is the next row's, after this row's prompt
        rows = [(p, a, rows[(i + 1) % len(rows)][1]) for i, (p, a, _) in enumerate(rows)]
    found, reference = run(options, rows, good, torch.float32)
    if options["kind"] != "kto":
        exact, _ = run(options, rows, good, torch.float64)
        drift = np.abs(found["loss"] - exact["loss"]).max()
        assert drift < 5e-6 * max(1, exact["loss"].max()), (name, drift)
    print(f"{name}: loss {found['loss'][0]:.4f} -> {found['loss'][-1]:.4f}, norms {found['norm'].min():.2f}.."
          f"{found['norm'].max():.2f}, rewards {found['chosen'][-1]:.3f} {found['rejected'][-1]:.3f}")
    numbers = [KINDS.index(options["kind"]), options["beta"], options.get("smoothing", 0), options.get("gamma", 0),
               options.get("sft_weight", 0), options.get("good", 1), options.get("bad", 1)]
    return {f"{name}.{n}": a for n, a in {
        "rows": pad(rows), "good": good.astype(np.int32), "objective": np.array(numbers, np.float64),
        "reference": reference.double(), "step_loss": found["loss"], "step_norm": found["norm"],
        "chosen": found["chosen"], "rejected": found["rejected"],
        "optimizer": np.array([LR, *lora.BETAS, lora.EPS, lora.DECAY, lora.CLIP])}.items()}


def main():
    torch.set_num_threads(1)
    arrays = {}
    for name, options in CASES.items():
        arrays |= golden_case(name, options)
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
