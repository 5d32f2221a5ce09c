#!/usr/bin/env python3
"""Golden cases of the Jinja engine: small templates, each with its variables and what jinja2 makes of it in the
configuration of transformers. All templates are this project's own.

    scripts/golden/jinja.py

Writes tests/golden/jinja/cases.json: {"shared": variables of all cases, "groups": [{"name", "cases": [{"template",
"variables"?, "text"? (null: jinja2 refuses), "spans"? (generation blocks, in bytes)}]}]}.
"""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils as utils

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/jinja/cases.json"
SHARED = {
    "n": 7, "neg": -3, "f": 2.5, "big": 9007199254740993, "yes": True, "no": False, "nil": None,
    "s": "Hello, World", "e": "", "u": "Größe 東京 😀", "sp": " \t x y \n", "q": "it's \"q\" \\ \n\t\x01 \u200b é \u2028",
    "l": [3, 1, 2], "words": ["b", "A", "c", "a", "B"], "mixed": [1, 2.0, "x", None, True, [1, {"k": "v"}]], "none_list": [],
    "d": {"b": 1, "a": "two", "C": [1, 2], "items": "own"}, "deep": {"x": {"y": [{"z": 5}, {"z": 6}]}}, "empty_dict": {},
    "people": [{"name": "Ann", "age": 31, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cid", "age": 31, "tags": []}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}],
}
GROUPS = {}


def group(name, *cases):
    GROUPS.setdefault(name, []).extend(cases)


def each(name, pattern, words):
    group(name, *(pattern.replace("@", word) for word in words))


group("text", "", "plain", "plain\n", "a\n\n", "a\r\nb\rc", "{ { % } }", "{{ n }}", "{{n}}{{f}}", "a{{ s }}b", "{# c #}x", "x{#- c -#} y",
      "a {#+ c +#}\nb", "  {# c #}\nx", "{#\n multi\n#}\nx", "{{ n }}\n{{ n }}\n", "{{ '{{' }}{{ '}}' }}{{ '{%' }}", "€{{ u }}€")
group("trim_blocks", "{% if yes %}\nx\n{% endif %}\ny", "{% if yes +%}\nx\n{% endif %}\ny", "{% if yes %} \nx{% endif %}",
      "a\n{% set x = 1 %}\n\nb", "{% if yes -%}\n\n  x\n{%- endif -%}\n\n y", "{{ n }}\n{% if yes %}\n{{ n }}\n{% endif %}\nend",
      "{{- n -}}\n\n x", "  {{- n }}", "a  {{- n -}}  b", "x {{-n-}} y", "{{ n -}}\n {{- n }}", "{{ n +}}", "{%- if yes -%} x {%- endif -%}",
      "{% for i in l -%}\n  {{ i }}\n{%- endfor %}", "{% for i in l %}\n  {{ i }}\n{% endfor %}\nz", "x\n{%- set a = 1 -%}\n y",
      "\u00a0{%- if yes %}x\u3000{%- endif %}y", "a\x0b{%- if yes %}b{% endif %}", "{% if yes %}\r\nx{% endif %}")
group("lstrip_blocks", "  {% if yes %}x{% endif %}", "a  {% if yes %}x{% endif %}", "\n   {% if yes %}x\n   {% endif %}y", "  {%+ if yes %}x{% endif %}",
      "\t \t{% set a = 1 %}x", " {{ n }}", "{% if yes %}  {% if yes %}x{% endif %}{% endif %}", "{% if yes %}\n  {% if yes %}x{% endif %}{% endif %}",
      "{{ n }}  {% if yes %}x{% endif %}", "{{ n }}\n  {% if yes %}x{% endif %}", "  {# c #}  {% if yes %}x{% endif %}",
      "{# c #}\n  {% if yes %}x{% endif %}", "  {% raw %}x{% endraw %}", "\u00a0 {% if yes %}x{% endif %}", "\n\n  {%- if yes %}x{% endif %}")
group("raw", "{% raw %}{{ n }}{% endraw %}", "{% raw %}\n x{% endraw %}\ny", "{%- raw -%}\n x \n{%- endraw -%}\n y", "a {% raw %} {% if %} {# #} {% endraw %} b",
      "{% raw %}x", "{% raw %}a\n  {% endraw %}b", "{% raw %}a\n  {%+ endraw %}b", "{% raw %}{% endraw +%}\nx")
each("literals", "{{ @ }}", ["1", "0", "00", "1_000", "0x1F", "0b101", "0o17", "1.5", "1e3", "1.5E-3", "1_0.5", "1e16", "1e15", "123456789012345678.0",
     "0.1", "1e-5", "0.0001", "1e22", "1e400", "100.0", "3.0e-7", "9223372036854775807", "'a'", '"a"', "'a' 'b' \"c\"", "'\\n\\t\\\\\\'\\\"'",
     "'\\x41\\u00e9\\U0001F600\\101\\0'", "'\\q'", "'a\\\nb'", "'ünï'", "true", "True", "false", "False", "none", "None", "[]", "[1, 'a', none]", "[1,]",
     "()", "(1,)", "(1, 2)", "1, 2", "(1)", "{}", "{'a': 1, 2: 'b', none: true,}", "{'a': {'b': [(), {}]}}", "[[1, [2, [3]]]]", "'}}'", "{'a': '%}'}['a']",
     "\"it's\"", "'say \"x\"'", "['it\\'s \"x\"']", "q", "[q]", "u", "[u]", "mixed", "d", "[1.0, -0.0]", "['\\x7f\\xa0\\xad\\u3000\\ufeff\\U000e0001']", "1.", ".5",
     "1 2", "'a", "[1", "(1", "{1}", "1__0", "0x", "'\\x4'", "{'a' 1}", "[,]", "a b"])
each("arithmetic", "{{ @ }}", ["1 + 2 * 3", "(1 + 2) * 3", "7 / 2", "8 / 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "-7.5 % 2", "7.5 // 2", "-7.5 // 2",
     "1 - 2 - 3", "2 * 3 % 4", "10 - -3", "- 3", "+3", "--3", "1.5 + 1", "0.1 + 0.2", "1 / 3", "true + 1",
     "true + true", "'a' + 'b'", "'ab' * 3", "3 * 'ab'", "'ab' * -1", "[1] + [2]", "(1,) + (2,)", "1 ~ 2", "1 ~ 'a' ~ none ~ 2.0 ~ [1] ~ true", "1 + 2 ~ 3 * 2",
     "'a' ~ 'b' + 'c'", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "1 + 'a'", "'a' + 1", "'a' - 'b'", "[1] + (2,)", "none + 1", "nope + 1", "-'a'", "n * f", "big + 1", "1e308 * 10",
     "7 // 2.0", "-0.0 + 0", "5 % 3.5", "1e16 + 1", "{} + {}", "5.0 // 0.3", "(-5) % 0.3"])
each("comparisons", "{{ @ }}", ["1 < 2", "2 <= 2", "1 > 2", "3 >= 4", "1 == 1.0", "1 != 2", "'a' < 'b'", "'a' < 'B'", "'é' > 'z'", "[1, 2] < [1, 3]", "[1] < [1, 0]", "(1, 2) == (1, 2)",
     "[1] == (1,)", "1 < 2 < 3", "1 < 3 < 2", "1 < 2 == true", "3 > 2 > 1 > 0", "'a' == 'a' != 'b'", "1 == true", "0 == false", "none == none", "none == false", "nope == nada", "nope == none",
     "{'a': 1} == {'a': 1.0}", "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "1 < 'a'", "none < 1", "nope < 1", "[1] < 2", "1 in l", "5 in l", "5 not in l", "'a' in 'cat'", "'' in ''", "'b' not in s",
     "'b' in d", "'x' in d", "1 in 'a'", "1 in 5", "1 in nope", "nope in l", "'x' in none", "not 1 in l", "not yes == no", "2 in (1, 2)", "[1] in [[1]]", "'z' in deep.x.y[0]", "true in [1]",
     "'l' in s and 'o' in s", "1 <= n <= 10", "n is number and n > 3", "'k' in mixed[5][1]"])
each("logic", "{{ @ }}", ["yes and no", "yes or no", "not yes", "not not yes", "0 or 'x'", "'' or none", "1 and 2", "0 and 2", "none or 0 or []", "1 and 2 and 3", "1 or nope.x", "0 and nope.x",
     "'a' if yes else 'b'", "'a' if no else 'b'", "'a' if no", "'a' if yes", "1 if no else 2 if no else 3", "1 if yes else 2 if yes else 3", "(1 if no) is defined", "[1 if no, 2]", "'a' if no ~ 'b' else 'c'",
     "1 + 2 if yes else 4", "not yes or yes", "not (yes and no)", "yes and not no", "'x' if l else 'y'", "'x' if none_list else 'y'", "'x' if nope else 'y'", "1 if 2 if no else 0 else 3"])
each("lookup", "{{ @ }}", ["d.b", "d['b']", "d.nope", "d['nope']", "d.items", "d['items']", "d.get('a')", "d.get('x')", "d.get('x', 5)", "deep.x.y[1].z", "deep['x']['y'][0]['z']", "deep.x.y.1.z", "l[0]", "l[-1]", "l[5]", "l[-5]",
     "l.0", "s[0]", "s[-1]", "s[99]", "u[0]", "u[6]", "u[-1]", "u[7]", "n.x", "n[0]", "none.x", "nil[0]", "nope", "nope.x", "nope['x']", "nope[0]", "d.nope.x", "d[nope]", "d[1]", "{1: 'a'}[1]", "{1: 'a'}[true]", "{1: 'a'}[1.0]",
     "{'a': 1}.a", "(1, 2)[1]", "[1, 2][1]", "'abc'[1]", "s.upper", "messages[0].role", "messages[0]['content']", "messages[-1].content", "messages[3].role", "d['a']['b']", "d.C[1]", "d.keys", "l.append", "d.pop", "d._x", "s.x",
     "range(3)[1]", "range(3)[-1]", "loop", "l['0']", "true.x", "f.x", "dict(a=1).a", "namespace(a=1).a", "namespace(a=1).b", "namespace(a=1)['a']"][:-8] +
     ["range(3)[1]", "range(3)[-1]", "loop", "l['0']", "dict(a=1).a", "namespace(a=1).a", "namespace(a=1).b", "namespace(a=1)['a']"])
GROUPS["lookup"] = [case for case in GROUPS["lookup"] if case not in ("{{ d.items }}", "{{ s.upper }}", "{{ d.keys }}")]  # addresses
each("slices", "{{ @ }}", ["l[1:]", "l[:1]", "l[:]", "l[::-1]", "l[-2:]", "l[:-1]", "l[1:2]", "l[5:]", "l[-9:9]", "l[::2]", "l[2:0:-1]", "l[::-2]", "s[1:4]", "s[::-1]", "s[-5:]", "s[::3]", "u[1:3]", "u[::-1]", "u[-3:]", "u[7:1:-2]", "''[::-1]", "[][::-1]",
     "(1, 2, 3)[1:]", "messages[1:]", "messages[::-1][0].role", "l[none:none]", "l[::0]", "l['a':]", "l[nope:]", "n[1:]", "nope[1:]", "d[1:]", "l[1:][0]", "l[0:99999999999:99999999999]", "range(5)[::-1]|list", "s[:0]", "l[1:1]"])
each("printing", "{{ @ }}", ["none", "true", "1.0", "1e100", "[none, true, 1.5, 'a']", "{'a': none}", "('a',)", "[nope]", "nope", "d.keys()", "d.values()", "d.items()", "[[], {}, ()]",
     "['a\\nb']", "[\"'\"]", "['\"']", "{'é': '日'}", "[1e16, 1e-7, 123456.789]", "0.1 + 0.7", "5e-324", "1.7976931348623157e308", "1e23", "4.35", "100 / 3"])
group("if", "{% if yes %}a{% endif %}", "{% if no %}a{% else %}b{% endif %}", "{% if no %}a{% elif yes %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% endif %}",
      "{% if yes %}{% if no %}a{% else %}b{% endif %}{% endif %}", "{% if nope %}a{% else %}b{% endif %}", "{% if none_list %}a{% else %}b{% endif %}", "{% if l %}a{% endif %}", "{% if 0.0 %}a{% else %}b{% endif %}",
      "{% if d.nope %}a{% endif %}", "{% if nope.x %}a{% endif %}", "{% if %}a{% endif %}", "{% if yes %}a", "{% endif %}", "{% if yes %}a{% endfor %}", "{% else %}", "{% if yes %}{% set x = 1 %}{% endif %}{{ x }}",
      "{% if no %}{% set x = 1 %}{% endif %}{{ x }}", "{% if no %}\n{% elif yes %}\nb\n{% endif %}", "{% if 1 if yes else 0 %}x{% endif %}", "{% if () %}a{% else %}b{% endif %}", "{% if yes %}a{% else %}b{% else %}c{% endif %}")
group("for", "{% for i in l %}{{ i }}{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in l %}{{ i }}{% else %}none{% endfor %}", "{% for i in nope %}x{% else %}none{% endfor %}", "{% for i in none %}x{% endfor %}", "{% for i in 5 %}x{% endfor %}",
      "{% for k in d %}{{ k }},{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for c in 'aé😀' %}{{ c }}.{% endfor %}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}",
      "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}x{% endfor %}", "{% for a, b in [1] %}x{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}", "{% for i in l if i > 1 %}{{ i }}{% endfor %}",
      "{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}", "{% for i in range(3) %}{% for j in range(2) %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% for i in l %}{{ i }}{% endfor %}{{ i }}", "{% set i = 9 %}{% for i in l %}{{ i }}{% endfor %}{{ i }}",
      "{% for i in 1, 2 %}{{ i }}{% endfor %}", "{% for i in l|sort %}{{ i }}{% endfor %}", "{% for i in l[::-1] %}{{ i }}{% endfor %}", "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.content }}{% endfor %}", "{% for i in l %}", "{% for i l %}{% endfor %}",
      "{% for 1 in l %}{% endfor %}", "{% for i in l %}{{ loop.x }}{% endfor %}", "{% for a.b in l %}{% endfor %}", "{% for k in {'a': 1}.items() %}{{ k }}{% endfor %}", "{% for i in d.C %}{{ i }}{% endfor %}", "{% for x in [[1, 2], [3]] %}{% for y in x %}{{ y }}{% endfor %};{% endfor %}",
      "{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "{% set x = 0 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}", "{% for i in (1 if yes else 2), 3 %}{{ i }}{% endfor %}", "{% for i in l if i > 1 and loop is defined %}{{ i }}{% else %}e{% endfor %}")
each("loop", "{% for i in [5, 6, 7] %}{{ loop.@ }}|{% endfor %}", ["index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem", "nope"])
group("loop", "{% for i in l if i != 2 %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "{% for i in l if i != 2 %}{{ loop.revindex }}{{ loop.nextitem }}{% endfor %}",
      "{% for i in l %}{% set outer = loop %}{% for j in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for c in 'ab' %}{{ loop.last }}{% endfor %}", "{% for k, v in d.items() %}{{ loop.last }}{% endfor %}", "{% for i in l|map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}",
      "{% set ns = namespace(stop=false) %}{% for i in range(5) if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% set ns = namespace(stop=false) %}{% for i in range(5) if not ns.stop %}{{ i }}{{ loop.last }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
      "{{ loop is defined }}{% for i in [1] %}{{ loop is defined }}{% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for i in l %}{{ loop['index'] }}{% endfor %}", "{% for k in d %}{{ loop.revindex }}/{{ loop.length }} {% endfor %}", "{% for i in l %}{% if loop.index is even %}{{ i }}{% endif %}{% endfor %}")
group("break", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% for i in l %}{% break %}{% else %}e{% endfor %}",
      "{% for i in l %}a{% continue %}b{% endfor %}", "{% for i in l %}{% if yes %}{% if yes %}{% break %}{% endif %}{% endif %}{% endfor %}x")
group("set", "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set (x, y) = (1, 2) %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ n }}{% endset %}{{ x }}", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}",
      "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% set x, y = [1] %}", "{% set x.y = 1 %}", "{% set d.y = 1 %}", "{% set 1 = 2 %}", "{% set x %}", "{% set x = 1 if yes else 2 %}{{ x }}", "{% set x = x | default(3) %}{{ x }}", "{% set n = n + 1 %}{{ n }}", "{% set x = 1 %}{% set x = x + 1 %}{{ x }}",
      "{% set x = [1] %}{% set x = x + [2] %}{{ x }}", "{% set _ = l %}{{ _ }}", "{% set true = 1 %}", "{% set x = y = 1 %}", "{% set x %}\n a\n{% endset %}[{{ x }}]", "{% set a = l %}{% set a, b, c = a %}{{ a }}{{ b }}{{ c }}")
group("namespace", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}", "{% set ns = namespace(a=1) %}{{ ns.b is defined }}{{ ns.a is defined }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}",
      "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}", "{% set ns = namespace(a=1) %}{% set ns.a, x = 2, 3 %}{{ ns.a }}{{ x }}", "{% set ns = namespace(a=1) %}{% set ns.a %}txt{% endset %}{{ ns.a }}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace(a=1) %}{% set ns._a = 1 %}",
      "{% set ns = namespace(1) %}", "{% set n2 = namespace(a=1) %}{% set n3 = n2 %}{% set n3.a = 2 %}{{ n2.a }}", "{% set ns.a = 1 %}", "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = i %}{% endfor %}{{ ns.a }}", "{{ namespace(a=1) is mapping }}")
group("macro", "{% macro m() %}x{% endmacro %}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=4, b=5) }}{{ m(1, b=6) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(1) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
      "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", "{% macro m(a) %}{% if a > 0 %}{{ a }}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}{% set y = 1 %}{% endmacro %}{{ m() }}{{ y is defined }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(z=2) }}",
      "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ m() }}", "{% macro m() %}a{% endmacro %}{{ m() | upper }}{{ m() ~ 'b' }}{{ m() + 'c' }}",
      "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m(x) %}\n  {{ x }}\n{% endmacro %}\n[{{ m(1) }}]", "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro %}\n[{{ m(1) }}]", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(l) %}{% for i in l %}{% if i is iterable and i is not string %}({{ m(i) }}){% else %}{{ i }}{% endif %}{% endfor %}{% endmacro %}{{ m([1, [2, [3]]]) }}",
      "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% if yes %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}", "{% macro m(a, b=[]) %}{{ b + [a] }}{% endmacro %}{{ m(1) }}{{ m(2) }}", "{% macro m(a=none) %}{{ a }}{% endmacro %}{{ m() }}{{ m(nope) }}")
group("stars", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1]) }}{{ m(*[1, 3]) }}{{ m(1, *[3]) }}{{ m(*'xy') }}",
      "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(**{'a': 1}) }}{{ m(1, **{'b': 3}) }}{{ m(*[1], b=5) }}", "{{ dict(**{'a': 1}) }}",
      "{{ '{} {x}'.format(*[1], **{'x': 2}) }}", "{{ [3, 1] | join(*['-']) }}", "{{ range(*[1, 4]) | list }}", "{{ dict(*[1, 2]) }}", "{{ dict(**[1]) }}", "{{ m(*5) }}", "{{ s.replace(*['l', 'L']) }}",
      "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**{1: 2}) }}", "{{ range(*) }}", "{{ range(*[1], 3) }}")
group("filter blocks", "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter trim | upper %}  a  {% endfilter %}", "{% filter replace('a', 'b') %}aaa{% endfilter %}", "{% filter upper %}{% set x = 1 %}{% endfilter %}{{ x is defined }}", "{% filter nope %}{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}")
group("generation", "a{% generation %}bé{% endgeneration %}c", "{% for m in messages %}<{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}>{% endfor %}", "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
      "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}|{% endfor %}", "x\n  {%- generation %}\n  {{- 'a' }}\n  {%- endgeneration %}\ny", "{% generation %}{% endgeneration %}", "ü{% generation %}ü{% endgeneration %}{% generation %}v{% endgeneration %}", "{% generation %}x", "{% endgeneration %}")
group("undefined", "{{ nope }}", "[{{ nope }}]", "{{ nope is defined }}", "{{ nope | default('x') }}", "{{ nope ~ 'a' }}", "{{ nope | length }}", "{{ nope | upper }}", "{{ nope | list }}", "{{ nope | join(',') }}", "{{ nope | int }}", "{{ nope | float }}", "{{ nope() }}", "{{ nope.x is defined }}", "{{ d.x.y is defined }}", "{{ d.x is defined }}", "{{ nope | tojson }}",
      "{{ [nope] | length }}", "{{ nope | first }}", "{{ nope | trim }}", "{{ nope == '' }}", "{{ not nope }}", "{{ nope or 'x' }}", "{{ nope | string | length }}", "{{ nope is none }}", "{{ nope is string }}", "{{ nope is iterable }}", "{{ nope is sequence }}", "{{ nope is mapping }}", "{{ nope * 2 }}", "{{ 2 > nope }}", "{{ nope | sort }}", "{{ nope | max }}", "{{ {'a': nope} }}", "{{ s.nope() }}", "{{ l.append(1) }}", "{{ d.update({}) }}",
      "{{ l.append is defined }}", "{{ d.pop is defined }}", "{% set x = l.pop() %}", "{{ nope | items | list }}", "{{ nope | replace('a', 'b') }}", "{{ nope | indent }}")
each("filters of text", "{{ @ }}", ["s | upper", "s | lower", "'hELLO wORLD' | capitalize", "'hello-world foo_bar (x) [y] <z {w' | title", "u | upper", "'ß ŉ ﬁ' | upper", "'İI' | lower", "'ΑΣ ΑΣΑ Σ' | lower", "'éa ǆ' | capitalize", "'they\\'re bill\\'s' | title", "sp | trim", "'xxaxx' | trim('x')", "'\\u00a0a\\u3000' | trim", "n | trim", "none | trim",
     "'aaa' | replace('a', 'b')", "'aaa' | replace('a', 'b', 2)", "'abc' | replace('', '-')", "'abc' | replace('', '-', 2)", "'a1a' | replace(1, 2)", "n | string", "none | string", "[1] | string", "'<a href=\"x\">\\'&' | e", "'<' | escape | e", "('<' | e) + '<'", "'<' + ('<' | e)", "('<' | safe) + '<'", "('<' | e) ~ '<'", "'<' | e | upper",
     "'a\\nb\\n\\nc' | indent", "'a\\nb' | indent(2, true)", "'a\\n\\nb' | indent(2, blank=true)", "'a\\nb' | indent('> ')", "'a\\nb\\n' | indent(2)", "'' | indent", "5 | indent",
     "s | nope", "s | upper(1)", "s | trim(1)", "s | lower | upper"])
each("tojson", "{{ @ }}", ["d | tojson", "mixed | tojson", "s | tojson", "q | tojson", "u | tojson", "none | tojson", "true | tojson", "1.0 | tojson", "1e20 | tojson", "[] | tojson", "{} | tojson", "[[], {}] | tojson(indent=2)", "d | tojson(indent=2)", "d | tojson(indent=4)", "deep | tojson(indent=2)", "mixed | tojson(indent=1)", "d | tojson(separators=(',', ':'))", "d | tojson(separators=(', ', '=')) ", "d | tojson(sort_keys=true)",
     "d | tojson(indent=2, sort_keys=true)", "u | tojson(ensure_ascii=true)", "'\\x7f\\x80\\ud7ff' | tojson(ensure_ascii=true)", "d | tojson(indent='\\t')", "d | tojson(indent=0)", "(1, 2) | tojson", "{1: 2, none: 3, true: 4, 1.5: 5} | tojson", "'<>&\\'/' | tojson", "range(3) | tojson", "d.keys() | tojson", "d.items() | list | tojson", "namespace(a=1) | tojson", "(l | map('string')) | tojson", "l | tojson | length", "d | tojson(separators=(',', ':'), indent=2)", "{(1,): 2} | tojson", "d | tojson(2)", "d | tojson(nope=1)",
     "'\\b\\f\\x1f\\x00' | tojson", "{'b': 1, 'a': 2, 'B': 3, 'é': 4} | tojson(sort_keys=true)"])
each("filters of values", "{{ @ }}", ["s | length", "u | length", "l | count", "d | length", "n | length", "none | length", "range(5) | length", "d.keys() | length", "nope | default", "nope | d('x')", "none | default('x')", "none | default('x', true)", "'' | default('x', boolean=true)", "0 | d(5, true)", "n | default('x')", "'5' | int", "'5.7' | int", "'x' | int", "'x' | int(9)", "5.9 | int", "-5.9 | int", "true | int", "none | int", "' 7 ' | int", "'1_000' | int", "'1__0' | int",
     "'1e3' | int", "'+5' | int", "'-7' | int", "'+ 5' | int", "'_5' | int", "' 1_2 ' | int", "'' | int", "'inf' | int", "'12abc' | int", "[] | int", "'5.5' | float", "'x' | float", "'x' | float(1.5)", "5 | float", "'1e3' | float", "'nan' | float", "' 2.5 ' | float", "none | float", "true | float", "'-inf' | float",
     "n | default(1, 2, 3)"])
each("filters of lists", "{{ @ }}", ["l | list", "s | list", "d | list", "d.items() | list", "l | first", "l | last", "[] | first", "[] | last", "s | first", "s | last", "d | first", "d | last", "n | first", "l | reverse | list", "s | reverse", "u | reverse", "d | reverse | list", "l | join", "l | join(',')", "mixed | join('|')", "people | join(', ', attribute='name')", "people | join(', ', 'age')", "'abc' | join('-')", "d | join(',')", "l | join(1)",
     "l | map('string') | list", "words | map('upper') | join", "people | map(attribute='name') | list", "people | map(attribute='nope') | list", "people | map(attribute='tags', default=['d']) | list", "people | map(attribute='tags.0') | list", "l | map('multiply') | list", "l | map | list", "words | map('replace', 'a', 'x') | list", "l | select | list", "[0, 1, '', 'a', none] | select | list", "l | select('odd') | list", "l | select('gt', 1) | list", "l | select('>', 1) | list", "l | select('in', [1, 2]) | list", "l | reject('odd') | list", "[0, 1] | reject | list", "people | selectattr('age', 'equalto', 31) | map(attribute='name') | list",
     "people | selectattr('tags') | list | length", "people | selectattr('tags', 'defined') | list | length", "people | rejectattr('age', '==', 31) | map(attribute='name') | list", "people | rejectattr('tags') | list | length", "messages | selectattr('role', 'in', ['user', 'system']) | map(attribute='content') | join", "l | selectattr | list", "l | select('nope') | list", "l | map('nope') | list", "d | items | list", "(l | select) is iterable", "'x' if (l | select('gt', 9)) else 'y'",
     "(l | map('string'))[0] is defined", "l | reverse is iterable", "(l | map('string')) | length", "messages | map(attribute='role') | unique | list", "l | map('string') | map('length') | list", "none | list", "5 | list", "none | join", "none | map('upper') | list", "words|map('lower')|select('equalto','a')|list|length", "l | last | string", "people | selectattr('name', 'string') | list | count", "[[1, 2], [3, 4]] | map('first') | list", "[[1, 2], [3, 4]] | map(attribute=1) | list", "[('a', 1)] | map('join', '-') | list"])
group("filters of lists", "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}", "{% set g = l | map('string') %}{{ g | first }}{{ g | list }}", "{% set g = l | select %}{% for i in g %}{{ i }}{% endfor %}{% for i in g %}{{ i }}{% else %}none{% endfor %}", "{% set g = l | reverse %}{{ g | list }}{{ g | list }}", "{% set k = d.keys() %}{{ k | list }}{{ k | list }}")
group("slices from the end", "{{ l[-3::-1] }}", "{{ l[-4::-1] }}", "{{ l[:-3:-1] }}", "{{ l[:-4:-1] }}", "{{ s[-12::-1] }}")
each("order", "{{ @ }}", ["l | sort", "l | sort(reverse=true)", "words | sort", "words | sort(case_sensitive=true)", "words | sort(true)", "people | sort(attribute='age') | map(attribute='name') | list", "people | sort(attribute='name') | map(attribute='name') | list", "people | sort(reverse=true, attribute='age') | map(attribute='name') | list", "mixed | sort", "d | sort", "s | sort | join", "[[2, 1], [1, 5], [1, 2]] | sort", "[(1, 'b'), (1, 'a')] | sort", "d | dictsort", "d | dictsort(true)", "{'a': 2, 'b': 1} | dictsort(by='value')",
     "{'a': 2, 'b': 1} | dictsort(reverse=true)", "{'b': 2, 'A': 1, 'c': 0} | dictsort", "{'b': 2, 'A': 1} | dictsort(case_sensitive=true)", "d | dictsort(by='x')", "l | dictsort", "words | unique | list", "words | unique(case_sensitive=true) | list", "[1, 1.0, true, '1'] | unique | list", "people | unique(attribute='age') | map(attribute='name') | list", "[[1], [1]] | unique | list", "l | min", "l | max", "words | min", "words | max", "words | max(case_sensitive=true)", "people | max(attribute='age')", "people | min(attribute='age')", "[] | min", "[] | max is defined", "mixed | max", "[1.5, 1] | min", "'bca' | max",
     "[1, true] | max", "[3, 1, 2] | sort | first"])
group("order", "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}")
each("tests", "{{ @ }}", [f"{value} is {test}" for value in ("n", "f", "s", "yes", "nil", "l", "d", "nope", "range(2)", "(1, 2)", "d.items()", "l | map('string')") for test in ("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "true", "false")])
each("tests", "{{ @ }}", ["n is odd", "n is even", "neg is odd", "f is odd", "'a' is odd", "none is odd", "n is divisibleby 7", "n is divisibleby(2)", "n is divisibleby 0", "n is eq 7", "n is equalto(7)", "n is ne 7", "n is lt 8", "n is lessthan 8", "n is gt 8", "n is greaterthan 3", "n is le 7", "n is ge 8", "n is in [7]", "n is in l", "'a' is in 'abc'", "n is not in l", "n is not odd", "not n is odd",
     "n is nope", "n is defined and f is defined", "n is defined is defined", "n is odd == true", "n is eq 7 and yes", "n is divisibleby 7 or no", "n is eq n if yes else no", "n is not defined", "n is not none", "n + 1 is even", "n is number and s is string", "raise_exception is defined", "strftime_now is defined", "n is in(l)", "n is eq", "n is defined(1)", "d.x is defined", "d.b is defined", "d['x'] is not defined", "messages[0].tool_calls is defined", "s is string is true"])
each("methods of str", "{{ @ }}", ["s.split(sep=',')", "s.upper()", "s.lower()", "s.title()", "'heLLO wORLD'.capitalize()", "'they\\'re x-y 3d'.title()", "sp.strip()", "sp.lstrip()", "sp.rstrip()", "'xxaxyx'.strip('xy')", "'xxaxx'.lstrip('x')", "'xxaxx'.rstrip('x')", "'ééaé'.strip('é')", "'abc'.strip('')", "'abc'.strip(none)", "'a,b,,c'.split(',')", "'a,b,c'.split(',', 1)", "'a b  c '.split()", "' a b c '.split(none, 1)", "'a b c'.split(maxsplit=1)", "''.split()", "''.split(',')", "'a'.split('')", "'abc'.split('abc')", "'a--b--c'.split('--')[-1]", "'a,b,c'.rsplit(',', 1)", "'aaa'.rsplit('aa')", "'a,b'.split(',')[1]",
     "'a\\nb\\r\\nc\\rd\\x0be\\u2028f'.splitlines()", "'a\\nb\\n'.splitlines(true)", "''.splitlines()", "'\\n'.splitlines()", "s.startswith('He')", "s.startswith('he')", "s.startswith(s)", "s.endswith(s)", "e.endswith(s)", "s.startswith(('x', 'H'))", "s.endswith('d')", "s.endswith(('x', 'ld'))", "s.endswith('')", "s.startswith(1)", "s.startswith(['H'])", "s.replace('l', 'L')", "s.replace('l', 'L', 1)", "s.replace('', '.')", "''.replace('', 'x')", "s.replace('l')", "s.replace('l', 1)", "s.find('o')", "s.find('z')", "u.find('京')", "','.join(words)", "''.join(['a', 'b'])", "'-'.join('abc')", "','.join(l)", "','.join(d)", "','.join(words | map('upper'))",
     "'abc'.removeprefix('a')", "'abc'.removeprefix('x')", "'abc'.removesuffix('c')",
     "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format(1, 2)", "'{a}{b!r}'.format(a=1, b='x')", "'{{}}'.format()", "'{}'.format()", "'{x}'.format(y=1)", "'{'.format()", "'}'.format()", "s.upper().lower().title()", "'a'.nope()", "s.upper(1)", "s.strip(1)", "s.strip('a', 'b')", "u.upper()", "'ǆ'.title()", "'ß'.capitalize()", "'ΣΑΣ'.lower()", "'a.b'.split('.')[0].upper()", "s.__class__", "s.__class__.__mro__", "s['upper']()", "'x'.join([])", "'</think>' in 'a</think>b' and 'a</think>b'.split('</think>')[-1].lstrip('\\n')"])
each("methods of dict and list", "{{ @ }}", ["d.get('b')", "d.get('zz')", "d.get('zz', 'x')", "d.get('b', default=3)", "d.keys() | list", "d.values() | list", "d.items() | list", "d.keys()", "d.values()[0]", "d.keys()[0] is defined", "d.get()", "d.get([1])", "'a' in d.keys()", "['a', 1] | list in [1]", "('b', 1) in d.items()", "d.pop('a')", "d.setdefault('q', 1)", "l.sort()", "l.insert(0, 1)", "l.extend([1])", "l.clear()", "d.clear()", "d.popitem()", "empty_dict.items() | list", "d.items() | length", "dict(a=1, b=2)", "dict({'a': 1}, b=2)", "dict([('a', 1)])", "dict(1)",
     "dict([1])", "dict(d, z=1)", "dict(a=1).items() | list"])
each("functions", "{{ @ }}", ["strftime_now(format='%Y')", "range(3) | list", "range(1, 4) | list", "range(5, 0, -2) | list", "range(0) | list", "range(3, 1) | list", "range(1, 9, 3) | list", "range(100001) | length", "range(100000) | length", "range(1, 2, 0)", "range('a')", "range()", "range(1.5)", "strftime_now('%Y-%m-%d')", "strftime_now('%d %b %Y')", "strftime_now('%B %d, %Y %A %j %H:%M')", "strftime_now('')", "strftime_now('x%%y')", "raise_exception('no')", "raise_exception()", "raise_exception(1)", "dict()", "range(true) | list"])
group("functions", "{% if no %}{{ raise_exception('x') }}{% endif %}ok", "{% set range = 5 %}{{ range }}", "{{ raise_exception('x') if no }}")
group("precedence", "{{ 1 + 2 | string }}", "{{ (1 + 2) | string | length }}", "{{ 'a' ~ 'b' | upper }}", "{{ not n is odd }}", "{{ 'a' in 'abc' | upper }}", "{{ l | length + 1 }}", "{{ l | length > 2 }}", "{{ yes and n | string == '7' }}", "{{ 1 if yes else 2 | string }}", "{{ n is odd and n is not even }}", "{{ s | length // 2 * 2 }}", "{{ -l[0] }}", "{{ -s | length }}", "{{ 10 - 2 * 3 }}", "{{ (10 - 2) * 3 }}", "{{ 'x' * 2 ~ 'y' }}", "{{ 1 ~ 2 + 3 }}", "{{ 1 in [1] and 2 not in [1] }}", "{{ 1 == 1 in [true] }}", "{{ d.b + l[1] * 2 }}", "{{ n if n > 5 else 0 + 1 }}", "{{ s.split(', ')[0] | lower ~ '!' }}")
group("tags", "{% nope %}", "{% %}", "{% if yes %}x{% endif x %}", "{{ }}", "{{ n", "{% if yes", "{# x", "{{ n }", "{{ n } }}", "{{ (n }}", "{{ n) }}", "{{ [n) }}", "{{ n ? 1 }}", "{{ n & 1 }}", "{{ !n }}", "{{ n || 1 }}", "{{ n && 1 }}", "{{ $n }}", "{{ n; }}", "{{ 'a' 1 }}", "{{ n..x }}", "{{ .x }}", "{{ n. }}", "{{ n | }}", "{{ | upper }}", "{{ n is }}", "{{ n is not }}", "{{ f(a=1, 2) }}", "{{ range(1 2) }}", "{{ range(1,) | list }}", "{% for %}{% endfor %}", "{% set %}", "{% set x == 1 %}", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}", "{% do x %}", "{% endmacro %}", "{% else %}", "{% elif yes %}", "{% if yes %}a{% elif %}b{% endif %}", "{% filter %}x{% endfilter %}", "{%+ if yes +%}x{%+ endif +%}", "{{ n }}{% if yes %}}}{% endif %}", "{{ '#}' }}{# '}}' #}", "{% set x = '{% if %}' %}{{ x }}", "{{ {'a': {'b': {}}} }}", "{{ {} }}", "{{ [{}] }}", "{{ yes and }}", "{{ and yes }}", "{{ not }}", "{{ 1 + }}", "{{ * 1 }}", "{{ lambda }}", "{{ if }}", "{{ n if }}", "{{ in l }}", "{{ True and TRUE }}", "{{ NONE is defined }}")
CHAT = """{%- if tools %}
    {{- '<|s|>tools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ ',' if not loop.last }}
    {%- endfor %}
    {{- '<|e|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- set i = (messages|length - 1) - loop.index0 %}
    {%- if m.role == 'user' and ns.last == messages|length - 1 %}{%- set ns.last = i %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m['content'] is string %}{%- set text = m['content'] %}{%- else %}{%- set text = m['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join %}{%- endif %}
    {{- '<|s|>' + m['role'] + '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}
        {{- text | trim }}
        {%- if m.tool_calls is defined and m.tool_calls %}
            {%- for call in m.tool_calls %}
                {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
                {{- '[' ~ call.name ~ '(' }}
                {%- for key, value in call.arguments.items() %}
                    {{- key ~ '=' ~ (value | tojson) }}{{ ', ' if not loop.last }}
                {%- endfor %}
                {{- ')]' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|e|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- text + '<|e|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|s|>assistant\\n' }}
{%- endif %}
"""
TALK = [{"role": "user", "content": [{"type": "text", "text": "Wie heißt"}, {"type": "image"}, {"type": "text", "text": " du?"}]},
        {"role": "assistant", "content": " x ", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": ["ü", None]}}}]},
        {"role": "tool", "content": "3"}, {"role": "assistant", "content": "drei"}]
group("whole templates", {"template": CHAT}, {"template": CHAT, "variables": {"messages": TALK, "tools": [{"name": "f", "x": {}}], "add_generation_prompt": True}},
      {"template": CHAT, "variables": {"messages": []}}, {"template": CHAT, "variables": {"messages": [{"role": "user"}]}}, {"template": CHAT, "variables": {"messages": None}},
      {"template": "{{ bos_token }}{{ eos_token | default('', true) }}{% if tools is not none %}t{% endif %}", "variables": {"bos_token": "<s>", "tools": None}})


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def run(case):
    case = {"template": case} if isinstance(case, str) else dict(case)
    try:
        compiled = utils._compile_jinja_template(case["template"])
        with compiled.environment.activate_tracker(blocks := [], spans := []):
            for block in compiled.generate(**{**SHARED, **case.get("variables", {})}):
                blocks.append(block)
        text = "".join(blocks)
        text.encode()
        case["text"] = text
        if spans:
            case["spans"] = [[len(text[:at].encode()) for at in span] for span in spans]
    except Exception as error:
        case["text"] = None
        del error
    return case


def main():
    utils.datetime = Day
    groups = [{"name": name, "cases": [run(case) for case in cases]} for name, cases in GROUPS.items()]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with open(OUT, "w", encoding="utf-8") as file:
        file.write('{"shared": ' + json.dumps(SHARED) + ',\n"groups": [\n')
        for number, one in enumerate(groups):
            file.write('{"name": ' + json.dumps(one["name"]) + ', "cases": [\n')
            file.write(",\n".join(json.dumps(case) for case in one["cases"]) + "\n]}" + (",\n" if number + 1 < len(groups) else "\n"))
        file.write("]}\n")
    cases = [case for one in groups for case in one["cases"]]
    print(f"{len(cases)} cases, {sum(case['text'] is None for case in cases)} of them refused")


if __name__ == "__main__":
    main()
