#!/usr/bin/env python3
"""Compares what trains: by prefixes, as this program finds it, and by generation blocks, as transformers does.

    scripts/golden/chat_masks.py [-v] RENDERER FOLDER

RENDERER is build/tests/data/render_rows. FOLDER is trl/chat_templates of an installed trl: its *_training.jinja have the
assistant's turns in {% generation %} blocks. They are texts of other authors and are not in this repository.

Each template renders a number of conversations twice: as it is, and with its blocks replaced by {% if true %}, so that this
program has to find the turns by prefixes. First the text and the blocks must be those of transformers. Then the turns found
by prefixes must be those blocks, except for white space at their ends, which trains in blocks and not by prefixes behind a
special token, and for their beginnings: some blocks hold a part of what asks for the answer (a line end, a mark of thoughts),
and the turn found by prefixes begins behind it. Turns that do not train by prefixes are counted. Exits with 1 if anything
else differs.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from transformers.utils import chat_template_utils as utils

import jinja_real

SPECIAL = r"<[|｜][^<>]{1,40}[|｜]>|<(?:end|start)_of_turn>|<end_of_utterance>|</?s>|<turn[|]>|<[|]turn>"


def tokenizer(texts):
    """A tokenizer file with all special tokens of the texts, so that the program knows where turns end."""
    names = sorted({name for text in texts for name in re.findall(SPECIAL, text)})
    bytes_ = {f"<0x{i:02X}>": i for i in range(256)}
    added = [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, name in enumerate(names)]
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                                       "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True,
                                       "vocab": bytes_ | {name: 256 + i for i, name in enumerate(names)}, "merges": []}}


def without_blocks(source):
    source = re.sub(r"\{%([-+]?)\s*generation\s*([-+]?)%\}", r"{%\1 if true \2%}", source)
    return re.sub(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}", r"{%\1 endif \2%}", source)


def joined(spans):
    out = []
    for begin, end in spans:
        if out and out[-1][1] == begin:
            out[-1][1] = end
        elif end > begin:
            out.append([begin, end])
    return out


def stripped(text, spans):
    """Spans without white space at their ends, joined where white space alone is between them, and without empty ones."""
    out = []
    for begin, end in spans:
        if out and not text[out[-1][1]:begin].strip():
            out[-1][1] = end
        elif text[begin:end].strip():
            out.append([begin, end])
    return [[begin, begin + len(text[begin:end].rstrip())] for begin, end in out]


def is_same(want, got):
    """Every turn that trains by prefixes lies in a block."""
    return all(any(low <= begin and end <= high for low, high in want) for begin, end in got)


def main():
    verbose = sys.argv[1] == "-v"
    renderer, folder = sys.argv[1 + verbose:]
    utils.datetime = jinja_real.Day
    jobs, wants = [], []
    files = [file for file in sorted(pathlib.Path(folder).glob("*.jinja")) if "endgeneration" in file.read_text()]
    sources = [file.read_text(encoding="utf-8") for file in files]
    for file, source in zip(files, sources):
        compiled = utils._compile_jinja_template(source)
        for name, talk in jinja_real.CONVERSATIONS.items():
            if talk.get("enable_thinking") is not None or "reasoning_effort" in talk:
                continue
            want, _ = jinja_real.expected(compiled, jinja_real.variables(talk, False))
            row = {key: value for key, value in talk.items() if key in ("messages", "tools")}
            if want and not any(message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls")
                                for message in row["messages"]):
                jobs += [{"template": source, "row": row}, {"template": without_blocks(source), "row": row}]
                wants.append((file.name, name, *want))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tokenizer(sources), file)
        file.flush()
        lines = "".join(json.dumps(job, ensure_ascii=False) + "\n" for job in jobs)
        done = subprocess.run([renderer, file.name], input=lines.encode(), capture_output=True, check=True)
    results = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    count = dict.fromkeys(["equal", "refused", "partly", "bad"], 0)
    for (file, name, text, spans), tagged, prefixed in zip(wants, results[::2], results[1::2]):
        data = text.encode()
        if "error" in tagged and "has no place for" in tagged["error"]:
            count["refused"] += 1
            continue
        if tagged.get("text") != text and name in ("parts", "system in parts", "developer"):
            count["refused"] += 1  # this program joins parts and renames roles that a template does not know
            continue
        if tagged.get("text") != text or joined(tagged["trained"]) != joined(spans):
            count["bad"] += 1
            print(f"{file}, {name}: blocks differ: {tagged} {spans}")
            continue
        want, got = stripped(data, spans), stripped(data, joined(prefixed["trained"]))
        if got == want:
            count["equal"] += 1
        elif "error" in prefixed or (prefixed["text"] == text and is_same(want, got)):
            count["partly"] += 1
            if verbose:
                print(f"{file}, {name}: want {[data[b:e].decode() for b, e in want]} got {[data[b:e].decode() for b, e in got]} "
                      f"{prefixed.get('error', '')} untrainable {prefixed['untrainable']}")
        else:
            count["bad"] += 1
            print(f"{file}, {name}: want {[data[b:e].decode() for b, e in want]} got {[data[b:e].decode() for b, e in got]} "
                  f"untrainable {prefixed['untrainable']}")
    print(f"{len(files)} templates, {len(wants)} renderings: {count['equal']} have the same turns by prefixes, {count['partly']} have "
          f"fewer or shorter ones, {count['refused']} are written in another way or refused, because the template has no place for something, {count['bad']} differ")
    sys.exit(1 if count["bad"] else 0)


if __name__ == "__main__":
    main()
