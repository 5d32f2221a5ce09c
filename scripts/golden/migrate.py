#!/usr/bin/env python3
"""Golden cases of settings files: what the packages hjson (which DeepSpeed uses) and PyYAML make of small texts, and what
transformers makes of "auto" in a ds_config. All texts are this project's own.

    scripts/golden/migrate.py          (needs hjson, PyYAML, transformers and accelerate; not DeepSpeed)

Writes tests/golden/migrate.json: {"hjson"|"yaml": [{"text", "value" or "refused": true}], "auto": [{"args", "config",
"resolved"}], "defaults": {class: its arguments, as transformers writes them}}. Cases in which this program is stricter on purpose (keys given twice, numbers of other bases, two documents)
are not here; the C tests have them.
"""
import datetime
import json
import math
import os
import pathlib
import tempfile

import hjson
import yaml

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/migrate.json"

HJSON = [
    "{}", "", "  \n", "# only a comment", "a: 1", "{a: 1}", '{"a": 1, "b": [1, 2,], }', "{a: 1 // c\n b: 2 # d\n c: 3 /* e */ }",
    "{\n  text: no quotes, and a comma # not a comment\n  n: 5e8\n}", "{a: 5e8, b: 1e10, c: 1.5e-3, d: -0, e: -1.0, f: 1e400x\n}",
    "{a: 01\n}", "{a: 1.\n}", "{a: .5\n}", "{a: true, b: false, c: null, d: tru\n}", "{a: true b\n}", "{a: nullx\n}",
    "{a: 'single', b: \"do'uble\", c: 'a\\'b', d: \"\\u00e4\\ud83d\\ude00\\n\\/\"}", "{'a b': 1, \"c:d\": 2}",
    "{\n  a:\n    '''\n    first\n      second\n    '''\n}", "\n{a: '''x''', b: ''''y'''}", "\n{a: ''''''}", "\n { a: '''\n  x\n y''' }",
    "[1 \n 2, 3\n [4] {a: 5}]", "{a: [\n  x\n  y, z\n]}", "{a:{b:{c:[]}}}", "a: {b: 1}\nc: [2]\n", "{a: 1 b: 2}", "{a: \"x\" b: 2}",
    "{a: 1}}", "{a: 1} x", "{a: 1", "{a", "{a:", "{a: [1", "{: 1}", "{a b: 1}", "{a}: 1", "{,}", "{a: 1,, b: 2}", "[,]", "[1,,2]", "{a: ]}",
    "{a: \"x", "{a: \"x\ny\"}", "{a: \"\\x\"}", "{a: \"\\u12g4\"}", "\n{a: '''x}", "{a: ,}", "{a: :}", "/* no end", "{a: 1} # end",
    "{\r\n  a: x y \r\n  b: 2\r\n}\r\n", "\tkey\t:\tvalue\t\n", "{a: 1/2\n}", "{a: 1 / 2\n}", "{a: http://x/y\n}", "{a: 3 // x\n}", "{a: -\n}",
    "{a: 9223372036854775807, b: -9223372036854775808, c: 18446744073709551616}", "{a: 1e5, b: 1E+5, c: 100000.0}", "{a:1,b:2}",
    "{ a : 1 }", "{a: 00\n}", "{\"a\": \"\\\\\\\"\"}", "{null: 1, true: 2, 5: 3}", "{a: x}\n}", "# c\n{\n # d\n}\n# e", "{a: 'x' /* y */}",
]

YAML = [
    "a: 1", "a: 1e-4", "a: 1.0e-4", "a: 1.0e4", "a: 1.e+3", "a: 1E5", "a: 2e-5", "a: .5", "a: -.5", "a: +.5", "a: 5.", "a: 1_000",
    "a: 1_000.5", "a: +7", "a: -0", "a: 0", "a: 0.0", "a: 1.2.3", "a: 1-2", "a: ~", "a: null", "a: Null", "a: NULL", "a: nUll", "a:", "a: ''",
    "[yes, Yes, YES, no, No, NO, on, On, ON, off, Off, OFF, true, True, TRUE, false, False, FALSE, y, n, yEs, tRue]",
    "a: \"yes\"", "a: 'no'", "a: \"1\"", "a: '1e5'", "a: text with spaces", "a: \"\\u00e4\\n\\t\\\"\"", "a: it's", "a: 'it''s'",
    "- 1\n- b: 2\n  c: [3, {d: 4}]\n- - 5\n  - 6\n", "{a: [1, 2], b: {c: d}}", "a: |\n  two\n  lines\nb: >\n  one\n  line\n", "a: |-\n  x\n",
    "a: &x {b: 1, c: 2}\nd: *x\n", "a: &x [1, 2]\nb: [*x, *x]\n", "base: &b {x: 1, y: 2}\nd:\n  <<: *b\n  y: 3\n",
    "a: &a {x: 1}\nb: &b {x: 2, y: 3}\nc:\n  <<: [*a, *b]\n  z: 4\n", "a: &a {x: 1}\nb: &b\n  <<: *a\n  y: 2\nc:\n  <<: *b\n", "a: {<<: {x: 1}, x: 2}",
    "a: {\"<<\": 1}", "1: a\ntrue: b\nnull: c\n1.5: d\n", "a: !!str yes it is\nb: !!int '7'\nc: !!float '1.5'\nd: !!bool 'yes'\ne: !!null ''\n",
    "a: http://x:80/y", "a: C:/x", "a: x#y", "a: x # y", "# only\n", "", "---\na: 1\n", "---\na: 1\n...\n", "%YAML 1.1\n---\na: 1\n",
    "a: 1\n b: 2\n", "a: [1, 2", "a: {b: 1", "a: \"x", "\ta: 1", "a:\n\t- 1\n", "a: *x", "a: @x", "a: `x", "a: %x", "- a\nb: 1\n", "a: b: c", "a: [*x]",
    "? a\n: 1\n", "a: ? b", "a: - b", "a: 2002-12-14x", "a: 9223372036854775807\nb: -9223372036854775808\nc: 18446744073709551616\n",
    "a: 0.1\nb: 1.7976931348623157e+308\nc: 5.0e-324\n", "a: _1", "a: 1_", "a: 1__0", "a: ._5", "a: 1._5", "a: .", "a: +", "a: -", "a: e5", "a: 1.5e", "a: 1.5e+",
    "a: .5e-3", "a: 0o7", "a: 0x", "a: 0b", "a: 08", "a: 1:", "a: x:1", "a: :30", "a: _1:30", "a: 1:x", "a: 1:30x", "a: 0x_", "a: 1:300", "a: !!map {b: 1}\nc: !!seq [1]\n", "lr: 1e-5\nbf16: true\nitems: []\nd: {}\n", "\ufeffa: 1",
]

# Arguments and ds_config, and the values of "auto" that this program takes too.
BASE_ARGS = dict(per_device_train_batch_size=2, gradient_accumulation_steps=4, learning_rate=3e-4, weight_decay=0.05, max_grad_norm=0.7,
                 adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-7, warmup_steps=7, max_steps=90, bf16=True)
ALL_AUTO = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                                                      "total_num_steps": "auto", "warmup_type": "linear"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                          "stage3_param_persistence_threshold": "auto"},
}
AUTO = [(BASE_ARGS, ALL_AUTO),
        ({}, ALL_AUTO),  # transformers' own defaults
        (dict(learning_rate=1e-3, per_device_train_batch_size=1, max_steps=10, lr_scheduler_type="constant_with_warmup", warmup_steps=3),
         {"train_batch_size": "auto", "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}})]


def plain(value):
    """The value as JSON has it: dates become text. Raises ValueError for what JSON has not."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, (datetime.date, bytes, set)):
        raise ValueError(value)
    return value


def case(text, load):
    try:
        return {"text": text, "value": plain(load(text))}
    except Exception as error:
        print(f"refused: {text!r}: {str(error).splitlines()[0][:80]}")
        return {"text": text, "refused": True}


class TextKeys(yaml.SafeLoader):
    """Keys keep their text, as in this program."""


def construct_mapping(loader, node, deep=False):
    loader.flatten_mapping(node)
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


TextKeys.add_constructor("tag:yaml.org,2002:map", lambda loader, node: construct_mapping(loader, node))


def resolve(args, config):
    """transformers' own code, on the classes that do not need DeepSpeed itself."""
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers import TrainingArguments
    from transformers.integrations import deepspeed as theirs

    class Config(HfDeepSpeedConfig):
        mismatches = []
        _dtype = None
        is_auto = theirs.HfTrainerDeepSpeedConfig.is_auto
        fill_match = theirs.HfTrainerDeepSpeedConfig.fill_match
        fill_only = theirs.HfTrainerDeepSpeedConfig.fill_only
        trainer_config_process = theirs.HfTrainerDeepSpeedConfig.trainer_config_process
        trainer_config_finalize = theirs.HfTrainerDeepSpeedConfig.trainer_config_finalize

    class Model:
        class config:
            hidden_size = 64

    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainingArguments(output_dir=folder, use_cpu=True, **args)
    made = Config(json.loads(json.dumps(config)))
    made.trainer_config_process(trainer)
    made.trainer_config_finalize(trainer, Model, args.get("max_steps", 300))
    return made.config


def defaults():
    import transformers
    import trl
    made = {}
    for module, name in ((transformers, "TrainingArguments"), (trl, "SFTConfig"), (trl, "DPOConfig"), (trl, "KTOConfig")):
        made[name] = json.loads(getattr(module, name)(output_dir="out", use_cpu=True).to_json_string())
    return made


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    golden = {"hjson": [case(text, hjson.loads) for text in HJSON],
              "yaml": [case(text, lambda t: yaml.load(t, TextKeys)) for text in YAML],
              "defaults": [defaults()],
              "auto": [{"args": args, "config": config, "resolved": resolve(args, config)} for args, config in AUTO]}
    lines = [f'"{name}": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]" for name, cases in golden.items()]
    OUT.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
