#!/usr/bin/env python3
"""Which families transformers reads from nf4 and int8: tests/golden/replaced.json.

For each family, a small model (that of config_keys.py) is built without memory, and transformers replaces its linear
layers as it does when it loads a quantised directory. The value is a matrix of the layers that it does not replace, and
so would read wrongly; null if there is none. Routers and the modules that transformers keeps in fp32 do not count.

Run: python scripts/golden/replaced.py (needs torch, transformers 5, bitsandbytes)
"""

import json
import os

import bitsandbytes as bnb
import torch
import transformers
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

from config_keys import CONFIGS

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/replaced.json")
ROUTERS = ("gate", "router")


def is_matrix(module):
    return getattr(module, "weight", None) is not None and module.weight.dim() == 2 and not isinstance(module, torch.nn.Embedding)


def matrix_left(family, config):
    config = transformers.AutoConfig.for_model(family, **config, pad_token_id=0)
    maker = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = maker.from_config(config)
    kept = [*get_keys_to_not_convert(model), *(model._keep_in_fp32_modules or [])]
    names = [name for name, module in model.named_modules()
             if is_matrix(module) and not {*name.split(".")} & {*kept} and name.split(".")[-1] not in ROUTERS]
    replace_with_bnb_linear(model, kept, transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"))
    return next((name for name in names if not isinstance(model.get_submodule(name), bnb.nn.Linear4bit)), None)


def main():
    found = {}
    for family, config in CONFIGS.values():
        if family not in found:
            found[family] = matrix_left(family, config)
    with open(OUT, "w", encoding="utf-8") as file:
        lines = ",\n".join(f"  {json.dumps(family)}: {json.dumps(left)}" for family, left in found.items())
        file.write(f'{{\n "transformers": "{transformers.__version__}",\n "families": {{\n{lines}\n }}\n}}\n')


main()
