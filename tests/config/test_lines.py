"""The two readers that keep lines: JSON with comments, and TOML. Values only."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.config.jsonc import JsonError, parse_jsonc
from birthmark.config.tomlfile import TomlError, key_lines, parse_toml

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_plain_json_reads_as_the_standard_library_reads_it(
    value: object, indent: str | int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse_jsonc(text)[0] == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_line_of_it(text: str) -> None:
    try:
        parse_jsonc(text)
    except JsonError as err:
        assert 1 <= err.line <= text.count("\n") + 1


@given(st.text(alphabet='{}[]":,/*\\\n\r u0dtrue-1.', max_size=40))
def test_what_the_standard_library_takes_is_taken(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        return
    try:
        found, _ = parse_jsonc(text)
    except JsonError as err:
        assert "twice" in err.problem
    else:
        assert found == expected


def test_comment_signs_inside_strings_are_text() -> None:
    value, _ = parse_jsonc('{"a": "http://x /* y */", /* "b": 1, */ "c": ["//",], // end\n}')
    assert value == {"a": "http://x /* y */", "c": ["//"]}


def test_every_value_knows_its_line() -> None:
    _, lines = parse_jsonc('{\n"a": 1, // x\n/* y\n*/ "b": [\n2,\n3]}')
    assert lines == {(): 1, ("a",): 2, ("b",): 4, ("b", 0): 5, ("b", 1): 6}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "not valid JSON: it ends in the middle"),
        ("{", 1, 'not valid JSON: a name in "double quotes" is expected here'),
        ('{"a" 1}', 1, "not valid JSON: a colon is expected here"),
        ('{"a": 1\n"b": 2}', 2, "not valid JSON: a comma or } is expected here"),
        ("[1 2]", 1, "not valid JSON: a comma or ] is expected here"),
        ("[1,,2]", 1, "not valid JSON: a value is expected here"),
        ("{}\n{}", 2, "not valid JSON: something follows the end"),
        ("\n/* never ends", 2, "not valid JSON: a comment that begins here has no end"),
        ('"a\nb"', 1, "not valid JSON: a string that does not end on its line"),
        (r'"\x"', 1, "not valid JSON: an unknown escape in a string"),
        ("['a']", 1, "not valid JSON: a string in single quotes"),
        ("NaN", 1, "not valid JSON: a value is expected here"),
        ("9" * 5000, 1, "a number with too many digits"),
        ("[" * 200, 1, "nested more than 100 deep; this is no configuration"),
        ('{"a": 1,\n"b": {"c": 1,\n"c": 2}}', 3, "'c' stands twice in one object: on lines 2 and 3"),
    ],
)
def test_what_is_not_json_is_named_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(JsonError) as caught:
        parse_jsonc(text)
    assert (caught.value.line, caught.value.problem) == (line, problem)


def test_keys_and_headers_of_toml_have_their_lines() -> None:
    text = """\
import = [
  "a",  # not = a key
]
# [mcp.commented]
[mcp.'with space']
command = "x"
note = \"\"\"
[mcp.inside]
command = "not a key" \\\"\"\"
\"\"\"
env.A = "1"
[ mcp . "q\\u00e9" ]  # comment
args = [["x = y"], [
]]
port = 1
"""
    tomllib.loads(text)
    assert key_lines(text) == {
        ("import",): 1,
        ("mcp", "with space"): 5,
        ("mcp", "with space", "command"): 6,
        ("mcp", "with space", "note"): 7,
        ("mcp", "with space", "env", "A"): 11,
        ("mcp", "qé"): 12,
        ("mcp", "qé", "args"): 13,
        ("mcp", "qé", "port"): 15,
    }


def test_a_table_of_which_there_are_several_has_no_line() -> None:
    text = "[[a]]\nx = 1\n[[a]]\nx = 2\n[b]\ny = 1\n"
    tomllib.loads(text)
    assert key_lines(text) == {("b",): 5, ("b", "y"): 6}


NAMES = st.sampled_from(["a", "b-c", "'d e'", '"f"', '"g\\th"'])
VALUES = st.sampled_from(
    ['"x"', "1", "'''\n[z]\ny = 1\n'''", '"""\n"x" = """', "[\n  1, # ]\n]", '{ k = "[" }', '["]"]']
)
TABLES = st.lists(
    st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=4, unique_by=lambda each: each[0]
)


@given(TABLES)
def test_a_line_that_is_given_holds_that_key(tables: list[tuple[str, dict[str, str]]]) -> None:
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()) for name, keys in tables
    )
    data, found = parse_toml(text)
    ways = {
        (table, key)
        for table, keys in data.items()
        for key in dict.fromkeys(keys if isinstance(keys, dict) else ())
    }
    assert {way for way in found if len(way) == 2} == ways
    lines = text.split("\n")
    for way, number in found.items():
        written = json.dumps(way[-1])[1:-1]
        assert written in lines[number - 1]


@given(st.text(max_size=60))
def test_any_text_is_toml_or_refused(text: str) -> None:
    try:
        parse_toml(text)
    except TomlError:
        pass


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 5000, "nested too deeply; this is no configuration"),
        (".".join(["a"] * 102) + " = 1", "nested more than 100 deep; this is no configuration"),
        ("a = " + "[" * 150 + "1" + "]" * 150, "nested more than 100 deep; this is no configuration"),
    ],
)
def test_deep_nesting_is_refused_and_no_stack_overflows(text: str, problem: str) -> None:
    with pytest.raises(TomlError) as caught:
        parse_toml(text)
    assert caught.value.problem == problem
