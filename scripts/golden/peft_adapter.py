"""A directory that PEFT's save_pretrained wrote, for tests/cli/test_lora_program.py: tests/golden/peft.

The base is a small random llama of its own (base/), so that the test needs no other model. The adapters have random
values: adapter/ has ranks and alphas by pattern, an excluded module, and trained norms (modules_to_save); dora/ is DoRA;
embedding/ has an adapter of the embedding. loss.json has a
text, and its mean loss by transformers with PEFT in fp32: of the base, and of each directory unmerged and
after merge_and_unload. Its ids are
those of the program's byte-level tokenizer: 256, which begins a text, and the bytes.

Run: python scripts/golden/peft_adapter.py (needs torch, transformers, peft)
"""

import copy
import json
import os
import shutil

import peft
import torch
import transformers

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/peft")


def loss_of(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()


def main():
    torch.manual_seed(17)
    shutil.rmtree(OUT, ignore_errors=True)
    config = transformers.LlamaConfig(vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                      tie_word_embeddings=False, bos_token_id=256, eos_token_id=257)
    base = transformers.LlamaForCausalLM(config).float().eval()
    for parameter in base.parameters():
        parameter.data.mul_(3)  # a random model's logits are almost 0 otherwise
    base.save_pretrained(os.path.join(OUT, "base"))
    text = "SELECT name FROM singer WHERE age > (SELECT avg(age) FROM singer)"
    ids = [256, *text.encode()]
    losses = {"text": text, "base": loss_of(base, ids)}
    lora = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6}
    for name, more in {
            "adapter": {"lora_dropout": 0.1, "target_modules": "all-linear", "exclude_modules": ["k_proj"], "use_rslora": True,
                        "rank_pattern": {"down_proj": 2, "layers.1.self_attn.q_proj": 7}, "alpha_pattern": {"o_proj": 3.5},
                        "modules_to_save": ["norm"]},
            "dora": {"use_dora": True, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]},
            "embedding": {"target_modules": ["embed_tokens", "up_proj"]}}.items():
        model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**lora, **more)).eval()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
        model.peft_config["default"].base_model_name_or_path = None
        model.save_pretrained(os.path.join(OUT, name), save_embedding_layers=False)
        os.remove(os.path.join(OUT, name, "README.md"))
        losses[name] = [loss_of(model, ids), loss_of(model.merge_and_unload(), ids)]
    with open(os.path.join(OUT, "loss.json"), "w") as file:
        json.dump(losses, file)


if __name__ == "__main__":
    main()
