#!/usr/bin/env python3
"""Hugging Face `tokenizers` on the work of bench_tokenizer.c: one thread, CPU seconds, MB/s. If the tokenizer is a
SentencePiece model, `sentencepiece`.

    peer_tokenizer.py [TOKENIZER [TEXT]]            run from the repository's root
"""
import json
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402  (reads the environment)

PASSES = 5
tokenizer = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tokenizers/llama3.json"
text = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "../shared/data/sql/sql.jsonl")


def load(path):
    try:
        return Tokenizer.from_file(path)
    except Exception:  # a copy of Llama-2's file that lost its no-break spaces: see src/tokenizer/load.c
        sys.path.insert(0, "scripts/golden")
        from tokenizer import repair
        return Tokenizer.from_str(json.dumps(repair(json.loads(pathlib.Path(path).read_text()))))


def rows():
    if text.exists():
        return text.read_text().splitlines()
    return [f"What is the price of city {i}? SELECT price_{i % 7} FROM table_{i % 13} WHERE year_{i % 5} > {i * 7919 % 10007}"
            for i in range(20000)]


def count_by_tokenizers(t, texts):
    return sum(len(e.ids) for x in texts for e in t.encode_batch_fast([x], add_special_tokens=False))


def count_by_sentencepiece(t, texts):
    return sum(len(t.encode(x)) for x in texts)


def measure(name, t, texts):
    size = sum(len(x.encode()) + 1 for x in texts)
    seconds = []
    for _ in range(PASSES):
        start = time.process_time()
        tokens = count(t, texts)
        seconds.append(time.process_time() - start)
    print(f"{name:9} {size / min(seconds) * 1e-6:8.1f} MB/s   first pass {size / seconds[0] * 1e-6:8.1f} MB/s   {tokens} tokens")


start = time.process_time()
if ".model" in tokenizer:
    from sentencepiece import SentencePieceProcessor
    t, count = SentencePieceProcessor(model_file=tokenizer), count_by_sentencepiece
else:
    t, count = load(tokenizer), count_by_tokenizers
print(f"load      {(time.process_time() - start) * 1e3:8.1f} ms")
all_rows = rows()
measure("rows", t, all_rows)
measure("one text", t, ["\n".join(all_rows) + "\n"])
