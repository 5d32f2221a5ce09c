#!/usr/bin/env python3
"""Compares this program's engine with transformers over real chat templates, byte for byte.

    scripts/golden/jinja_real.py [-v] RENDERER FILE_OR_FOLDER...

RENDERER is build/tests/jinja/render_jinja. Folders are searched for *.jinja. Templates are texts of other authors and are
not in this repository: give the folders of installed packages that have some, such as trl/chat_templates.

Each template renders a number of conversations: with and without system turns, tools, calls of tools, thoughts, empty
contents, other scripts; with and without the prompt of an answer. Both sides must give the same text and the same
generation spans, or both must refuse. Exits with 1 if they differ. -v prints the differences in full.
"""
import datetime
import json
import pathlib
import subprocess
import sys

from transformers.utils import chat_template_utils as utils

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"city\" <now>.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Its name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1.5},
        "places": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]}}}
OTHER = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(arguments, name="get_weather", number=1):
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


S, U, A = (lambda text, r=role: say(r, text) for role in ("system", "user", "assistant"))
ASK = U("What is the weather in Köln?")
CALL = say("assistant", "", tool_calls=[call({"city": "Köln", "days": 3})])
RESULT = say("tool", '{"degrees": 12.5}', name="get_weather", tool_call_id="call00001")
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
CONVERSATIONS = {
    "plain": {"messages": [U("Hi"), A("Hello.")]},
    "system": {"messages": [S("Be brief."), U("Hi"), A("Hello.")]},
    "prompt": {"messages": [S("Be brief."), U("Hi")]},
    "turns": {"messages": [S("Be brief."), U("one"), A("two"), U("three"), A("four"), U("five")]},
    "spaces": {"messages": [S("  S\n"), U("\tone \n"), A(" two\n\n"), U("\n\nthree"), A("\nfour ")]},
    "unicode": {"messages": [U("東京 😀 \u00a0x\u3000"), A("naïve ЖЗ \u2028y")]},
    "empty": {"messages": [S(""), U(""), A(""), U("x")]},
    "thoughts": {"messages": [U("a"), A("<think>\nhm\n</think>\n\nb"), U("c"), A("<think>hm</think>d")]},
    "reasoning": {"messages": [U("a"), say("assistant", "b", reasoning_content="hm"), U("c"),
                               say("assistant", "d", reasoning_content="so\n")]},
    "tools": {"messages": [S("Be brief."), ASK, CALL, RESULT, A("12.5 degrees.")], "tools": [TOOL, OTHER]},
    "tools, no system": {"messages": [ASK, CALL, RESULT, A("12.5 degrees.")], "tools": [TOOL]},
    "tool prompt": {"messages": [ASK], "tools": [TOOL]},
    "calls": {"messages": [ASK, say("assistant", "Let me see.", tool_calls=[
        call({"city": "Köln"}), call({"city": "東京", "places": ["a", "b"], "x": None, "y": True}, number=2)]),
        RESULT, say("tool", "cold", name="get_weather", tool_call_id="call00002"), A("Mild."), U("And now?")], "tools": [TOOL]},
    "call alone": {"messages": [ASK, CALL], "tools": [TOOL]},
    "call, no content": {"messages": [ASK, say("assistant", None, tool_calls=[call({"city": "Köln"})]), RESULT, A("x")]},
    "call as text": {"messages": [ASK, say("assistant", "", tool_calls=[call('{"city": "Köln"}')]), RESULT, A("x")], "tools": [TOOL]},
    "bare call": {"messages": [ASK, say("assistant", "", tool_calls=[call({"city": "Köln"})["function"]]), RESULT, A("x")]},
    "call, thought": {"messages": [ASK, say("assistant", "x", reasoning_content="hm", tool_calls=[call({"city": "Köln"})]),
                                   RESULT, say("assistant", "y", reasoning_content="ok")], "tools": [TOOL]},
    "parts": {"messages": [say("user", PARTS), say("assistant", PARTS)]},
    "system in parts": {"messages": [say("system", PARTS), say("user", PARTS), A("x"), U("y")]},
    "developer": {"messages": [say("developer", "D"), U("x"), A("y")]},
    "two systems": {"messages": [S("one"), S("two"), U("x"), A("y")]},
    "late system": {"messages": [U("x"), A("y"), S("late"), U("z"), A("w")]},
    "answer first": {"messages": [A("x"), U("y"), A("z")]},
    "two answers": {"messages": [U("x"), A("y"), A("z")]},
    "ipython": {"messages": [U("x"), A("y"), say("ipython", {"output": 3}), A("z")]},
    "function": {"messages": [U("x"), A("y"), say("function", "3", name="f"), A("z")]},
    "no thinking": {"messages": [U("x"), A("y"), U("z")], "enable_thinking": False},
    "thinking": {"messages": [U("x"), A("y"), U("z")], "enable_thinking": True, "reasoning_effort": "high"},
    "marks": {"messages": [U("It's {{x}} {% y %} \\n <s> </s>"), A("a' + b\\")]},
}


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def variables(talk, prompt):
    messages = [{key: value for key, value in message.items() if value is not None} for message in talk["messages"]]
    messages = utils._alias_reasoning_fields(messages)
    return {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **talk,
            "messages": messages, "add_generation_prompt": prompt}


def expected(compiled, values):
    """(text, spans in bytes), or None where the template refuses the conversation."""
    try:
        text, spans = utils._render_with_assistant_indices(compiled_template=compiled, **values)
    except Exception as error:
        return None, str(error)
    return (text, [[len(text[:at].encode()) for at in span] for span in spans]), ""


def main():
    verbose = sys.argv[1] == "-v"
    renderer, *paths = sys.argv[1 + verbose:]
    files = [file for path in map(pathlib.Path, paths) for file in ([path] if path.is_file() else sorted(path.rglob("*.jinja")))]
    utils.datetime = Day
    jobs, wants = [], []
    compiled_files = set()
    for file in files:
        source = file.read_text(encoding="utf-8")
        try:
            compiled = utils._compile_jinja_template(source)
        except Exception as error:
            print(f"{file}: jinja2 does not compile it: {error}")
            continue
        compiled_files.add(file)
        for name, talk in CONVERSATIONS.items():
            for prompt in (False, True):
                values = variables(talk, prompt)
                jobs.append({"template": source, "variables": values})
                wants.append((file, name, prompt, *expected(compiled, values)))
    lines = "".join(json.dumps(job, ensure_ascii=False) + "\n" for job in jobs)
    done = subprocess.run([renderer], input=lines.encode(), capture_output=True, check=True)
    same = refused = 0
    bad = {}
    for (file, name, prompt, want, why), line in zip(wants, done.stdout.decode().split("\n")):
        got = json.loads(line)
        mine = None if "error" in got else (got["text"], got["spans"])
        if mine == want:
            same += 1
            refused += want is None
            continue
        bad.setdefault(file, []).append(name)
        if verbose or len(bad[file]) == 1:
            print(f"{file}, {name}, prompt {prompt}:\n  jinja2 {want or why!r}\n  here   {mine or got['error']!r}")
    print(f"{len(compiled_files)} templates, {len(compiled_files) - len(bad)} of them always equal; {len(wants)} renderings, {same} equal "
          f"({refused} of them refused by both), {len(wants) - same} differ")
    for file, names in bad.items():
        print(f"  {file}: {len(names)} differ: {', '.join(sorted(set(names)))}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
