#!/usr/bin/env python3
"""Golden vectors of the chat templates, made with Jinja as transformers sets it up.

    scripts/golden/chat.py PUBLISHED

PUBLISHED holds the templates of models as their tokenizers publish them, NAME/ANYTHING.jinja, where NAME is this program's
name for the format. They are texts of other authors, so they are not copied; only their lengths and hashes are kept.
tests/golden/chat/NAME.jinja are this program's own texts (`test_chat_golden PATH` writes them).

Writes tests/golden/chat/templates.json: conversations, and for each template the result of its published texts (null:
they refuse the conversation, or silently drop a turn). All published texts of one name must agree, and so must this program's own.
Prints the lines of the table in src/data/chat_template.c.

`text` is the conversation as a model sees it when it is used: what is sent to it before its last answer
(add_generation_prompt), then that answer. For most templates this is the whole conversation rendered at once. Those of
Mistral put the system turn into a user's turn only where that is the last turn of all, so that rendering a whole row with
its answer loses it. `head` is the part before the last answer; null
where that answer changes what is before it.
"""
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/chat"
BOS, EOS = "<s>", "</s>"
DATE = "26 Jul 2024"  # what the templates of Llama 3.2 write where they cannot know the day
S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "Hi"), (A, "Hello.")],
    [(S, "Be brief."), (U, "Hi"), (A, "Hello.")],
    [(U, "one"), (A, "two"), (U, "three"), (A, "four")],
    [(S, "Be brief."), (U, "one"), (A, "two"), (U, "three"), (A, "four")],
    [(S, "  Be brief.\n"), (U, "\tone \n"), (A, " two\n\n"), (U, "\n\nthree"), (A, "\nfour ")],
    [(S, "\u00a0S\u3000"), (U, "\u2003one\x1c\u200b"), (A, "\x85two\x1f \u2028"), (U, "\u2085three\u00e0"), (A, "\u3000\u0420")],
    [(S, ""), (U, "one"), (A, "two")],
    [(S, " "), (U, " \n"), (A, "two")],
    [(S, "Be brief."), (U, " \n"), (A, "two"), (U, ""), (A, "four")],
    [(U, "one"), (A, ""), (U, "three"), (A, "four")],
    [(U, "one"), (A, "  \n"), (U, "three"), (A, " x")],
    [(U, "one"), (A, "two"), (U, "three")],
    [(S, "Be brief."), (U, "one"), (A, "two"), (U, "three")],
    [(S, "Be brief."), (U, "one")],
    [(U, "one"), (U, "two"), (A, "three")],
    [(U, "one"), (A, "two"), (A, "three")],
    [(A, "one"), (U, "two"), (A, "three")],
    [(U, "one"), (S, "Be brief."), (U, "two"), (A, "three")],
    [(U, "one"), (A, "two"), (S, "Be brief."), (U, "three"), (A, "four")],
    [(U, "one"), (A, "<think>\nhm\n</think>\n\ntwo")],
    [(U, "one"), (A, "<think>hm</think>two"), (U, "three"), (A, "<think>\n\n\nhm\n\nhm\n\n</think>\n\n\nfour\n")],
    [(U, "one"), (A, "hm</think>two</think>\nthree")],
    [(U, "one"), (A, "x<think>a<think>b\n</think>two"), (A, "c</think>\nd"), (A, "\n\nfour")],
    [(U, "one"), (A, "<think>a"), (U, "<tool_response>\n3\n</tool_response>"), (A, "two")],
    [(U, "one"), (A, "\n\nplain"), (A, "a</think>b"), (U, "<tool_response>3</tool_response>"), (A, "two")],
    [(U, "<tool_response>3</tool_response>"), (A, "<think>a</think>b")],
    [(U, "It's {bos} \"{{x}}\" {% y %} \\n <s> </s>"), (A, "a' + b\\")],
    [(U, "Schlüssel 東京 😀"), (A, "naïve\r\ncafé")],
]


class Refused(Exception):
    pass


def normal(text):
    """As Jinja reads it: every line end is \\n, and one at the end is left out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text[:-1] if text.endswith("\n") else text


def fnv1a(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def render(jinja, turns, prompt):
    messages = [{"role": role, "content": text} for role, text in turns]
    try:
        return _compile_jinja_template(jinja).render(messages=messages, add_generation_prompt=prompt, bos_token=BOS,
                                                     eos_token=EOS, strftime_now=lambda _: DATE)
    except Exception as error:  # jinja2's own, raised by the template
        raise Refused(str(error)) from error


def drops_a_turn(jinja, turns):
    """Whether a turn's text does not matter, so that it is lost in silence. An empty one shows nothing."""
    for i, (role, _) in enumerate(turns):
        other = [*turns[:i], (role, "changed"), *turns[i + 1:]]
        if render(jinja, turns, False) == render(jinja, other, False):
            return True
    return False


def expect(jinja, turns):
    """(text, head), or None where the template refuses the conversation or drops a turn that is not the system's."""
    try:
        bare = [turn for turn in turns if turn[0] != S] if turns[0][0] == S else turns
        if drops_a_turn(jinja, bare):
            return None
        if turns[-1][0] != A:
            text = render(jinja, turns, False)
            tail = render(jinja, turns, True)
            return (text, text) if len(tail) >= len(text) else None
        head = render(jinja, turns[:-1], True)
        text = render(jinja, turns, False)
        if text.startswith(head):
            return text, head
        before = render(jinja, bare[:-1], True)
        if bare is turns or not render(jinja, bare, False).startswith(before):
            return text, None  # an earlier answer is written in another way once another answer follows it
        return head + render(jinja, bare, False)[len(before):], head  # the system turn is lost
    except Refused:
        return None


def results(jinja):
    """The first template of Llama 3 ends everything with the beginning of an answer."""
    extra = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    out = []
    for turns in CONVERSATIONS:
        result = expect(jinja, turns)
        if result and "add_generation_prompt" not in jinja and result[0].endswith(extra):
            result = (result[0][:-len(extra)], result[1] if turns[-1][0] == A else result[1][:-len(extra)])
        out.append(result)
    return out


def main(published):
    templates, table = {}, []
    for own in sorted(OUT.glob("*.jinja")):
        name = own.stem
        rows = results(own.read_text(encoding="utf-8"))
        hashes = []
        for number, path in enumerate(sorted(pathlib.Path(published).glob(f"{name}/*.jinja"))):
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read()
            data = normal(text).encode()
            theirs = results(text)
            if number == 0:  # what a template refuses, its own text may render
                rows = [mine if their else None for mine, their in zip(rows, theirs)]
            for turns, mine, their in zip(CONVERSATIONS, rows, theirs):
                if mine != their:
                    sys.exit(f"{path} and {own} differ in {turns}:\n{their}\n{mine}")
            hashes.append({"bytes": len(data), "hash": f"{fnv1a(data):016x}"})
            table.append(f'    {{{len(data)}, UINT64_C(0x{fnv1a(data):016x}), "{name}"}}, /* {path.stem} */')
        templates[name] = {"published": hashes,
                           "rows": [row and {"text": row[0], "head": row[1]} for row in rows]}
    with open(OUT / "templates.json", "w", encoding="utf-8") as file:
        json.dump({"bos": BOS, "eos": EOS,
                   "conversations": [[{"role": r, "content": c} for r, c in turns] for turns in CONVERSATIONS],
                   "templates": templates}, file, indent=1, ensure_ascii=True)
        file.write("\n")
    print("\n".join(table))


if __name__ == "__main__":
    main(sys.argv[1])
