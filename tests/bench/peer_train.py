"""The peer of bench_train.c: the same small Llama, step, optimizer and threads in PyTorch.

    peer_train.py [THREADS [WINDOWS]]     default: all CPUs, 4

transformers' LlamaForCausalLM with sdpa attention, clip_grad_norm_ 1.0, torch.optim.AdamW (fused and foreach).
bf16 runs in the two usual ways: autocast over fp32 parameters, and a bf16 model with an fp32 master copy. Every
way gets one window of a few steps; the fastest way of each dtype gets the other windows. The best window counts;
CPU seconds are beside it, as in bench_train.c.
"""
import os
import sys
import time

import torch
import transformers

SEQUENCE, SEQUENCES, VOCAB = 512, 4, 4096
WINDOW_STEPS, PRODUCT = 2, 2048


def make_model(dtype):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1376,
        vocab_size=VOCAB, max_position_embeddings=SEQUENCE, rms_norm_eps=1e-5, tie_word_embeddings=False,
        use_cache=False, attn_implementation="sdpa")
    return transformers.LlamaForCausalLM(config).to(dtype).train()


class Training:
    """One way to train. step() makes a whole step."""

    def __init__(self, dtype, autocast, optimizer):
        self.name = ("fp32" if dtype == torch.float32 and not autocast else "bf16",
                     ("autocast" if autocast else "bf16 + fp32 master" if dtype == torch.bfloat16 else "fp32")
                     + ", AdamW " + optimizer)
        self.model = make_model(dtype)
        self.autocast = autocast
        self.params = list(self.model.parameters())
        self.master = ([p.detach().float().requires_grad_() for p in self.params] if dtype == torch.bfloat16
                       else self.params)
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                                           **{optimizer: True})
        self.tokens = torch.randint(VOCAB, (SEQUENCES, SEQUENCE))
        self.seconds = self.cpu_seconds = float("inf")

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        split = self.master is not self.params
        if split:
            for master, param in zip(self.master, self.params):
                master.grad = param.grad.float()
        torch.nn.utils.clip_grad_norm_(self.master, 1.0)
        self.optimizer.step()
        if split:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.master)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        return loss

    def window(self):
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(WINDOW_STEPS):
            self.step()
        self.seconds = min(self.seconds, (time.perf_counter() - start) / WINDOW_STEPS)
        self.cpu_seconds = min(self.cpu_seconds, (time.process_time() - cpu_start) / WINDOW_STEPS)


def product_rate(dtype):
    a, b = (torch.full((PRODUCT, PRODUCT), 0.03, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        a @ b.T
        best = min(best, time.perf_counter() - start)
    return 2 * PRODUCT**3 / best


def main():
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else os.cpu_count())
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        print(f"product of {PRODUCT}, {name} {product_rate(dtype) * 1e-9:8.0f} GFLOP/s")
    cases = [Training(dtype, autocast, optimizer)
             for dtype, autocast in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False))
             for optimizer in ("fused", "foreach")]
    for case in cases:
        case.step()
        case.window()
    fastest = [min((case for case in cases if case.name[0] == dtype), key=lambda case: case.cpu_seconds)
               for dtype in ("fp32", "bf16")]
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 4):
        for case in fastest:
            case.window()
    for case in cases:
        rate = SEQUENCES * SEQUENCE / case.seconds
        print(f"{case.name[0]:5s} {case.name[1]:36s} {rate:8.0f} tokens/s {case.seconds * 1e3:8.1f} ms a step "
              f"{case.cpu_seconds * 1e3:8.1f} ms CPU")


main()
