"""A host's file wrapped and unwrapped: the words change, and not a byte beside them. Values only."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.config.jsonc import parse_jsonc
from birthmark.config.unwrap import unwrap
from birthmark.config.wrapping import Rewriting, has_servers, unwrapped, wrapped, wrappers_in
from birthmark.errors import ConfigError
from tests.config.loading import FIXTURES, load
from tests.config.test_fuzz import FILES

FRONT = ("/opt/venv/bin/python", "-I", "-m", "birthmark", "run")
HOSTS = sorted(
    path.relative_to(FIXTURES) for path in FIXTURES.rglob("*") if path.suffix in {".json", ".jsonc", ".toml"}
)
TOKEN = {"TOKEN": "hunter2"}
PYTHON = '"/opt/venv/bin/python"'
OPTIONS = '"-I", "-m", "birthmark", "run", "--name", "x", "--"'


def wrap(text: str, name: str = "mcp.json") -> str:
    return wrapped(Path("/home/ada") / name, text.encode(), FRONT).after.decode()


def back(text: str, name: str = "mcp.json") -> str:
    return unwrapped(Path("/home/ada") / name, text.encode()).after.decode()


def refused(text: str, name: str = "mcp.json") -> str:
    with pytest.raises(ConfigError) as caught:
        wrap(text, name)
    return str(caught.value).replace("/home/ada/", "")


@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_every_hosts_file_is_the_same_to_the_byte_after_wrap_and_unwrap(host: Path) -> None:
    raw = (FIXTURES / host).read_bytes()
    there = wrapped(FIXTURES / host, raw, FRONT)
    assert there.after != raw
    assert unwrapped(FIXTURES / host, there.after).after == raw


@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_only_lines_with_a_command_change(host: Path) -> None:
    raw = (FIXTURES / host).read_bytes()
    before, after = raw.decode().split("\n"), wrapped(FIXTURES / host, raw, FRONT).after.decode().split("\n")
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        if old != new:
            assert re.search(r'"?(command|args)"?\s*[:=]', old)
            assert "birthmark" in new or PYTHON in new


@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_a_wrapped_file_wrapped_again_is_left(host: Path) -> None:
    once = wrapped(FIXTURES / host, (FIXTURES / host).read_bytes(), FRONT)
    twice = wrapped(FIXTURES / host, once.after, FRONT)
    assert twice.after == once.after
    assert not any(each.changed for each in twice.servers)
    assert [each.why for each in twice.servers] == [
        "it runs under `birthmark run` already" if each.changed else each.why for each in once.servers
    ]


@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_up_reads_a_wrapped_file_as_it_read_the_file_before(host: Path, tmp_path: Path) -> None:
    for path in FIXTURES.rglob("*"):  # what the files refer to lies beside them
        if path.is_file():
            copy = tmp_path / path.relative_to(FIXTURES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    file = tmp_path / host
    plain = load(file, TOKEN)
    file.write_bytes(wrapped(file, file.read_bytes(), FRONT).after)
    under = load(file, TOKEN)
    for was, now in zip(plain.services, under.services, strict=True):
        assert (now.command, now.written, now.env, now.env_from, now.cwd, now.kind, now.enabled) == (
            (was.command, was.written, was.env, was.env_from, was.cwd, was.kind, was.enabled)
        )


JSON_CASES = {
    "no arguments": (
        '{"mcpServers": {"x": {"command": "npx"}}}',
        f'{{"mcpServers": {{"x": {{"command": {PYTHON}, "args": [{OPTIONS}, "npx"]}}}}}}',
    ),
    "an empty array": (
        '{"mcpServers": {"x": {"command": "npx", "args": []}}}',
        f'{{"mcpServers": {{"x": {{"command": {PYTHON}, "args": [ {OPTIONS}, "npx" ]}}}}}}',
    ),
    "a blank array": (
        '{"mcpServers": {"x": {"args": [ ], "command": "npx"}}}',
        f'{{"mcpServers": {{"x": {{"args": [ {OPTIONS}, "npx"  ], "command": {PYTHON}}}}}}}',
    ),
    "a comment in the array": (
        '{"mcpServers": {"x": {"command": "npx", "args": [// none\n]}}}',
        f'{{"mcpServers": {{"x": {{"command": {PYTHON}, "args": [ {OPTIONS}, "npx" // none\n]}}}}}}',
    ),
    "a null": (
        '{"mcpServers": {"x": {"command": "npx", "args": null}}}',
        f'{{"mcpServers": {{"x": {{"command": {PYTHON}, "args": [  {OPTIONS}, "npx"  ]}}}}}}',
    ),
    "arguments": (
        '{"mcpServers": {"x": {"args": ["-y" , "a"], "command":"npx"}}}',
        f'{{"mcpServers": {{"x": {{"args": [{OPTIONS}, "npx", "-y" , "a"], "command":{PYTHON}}}}}}}',
    ),
    "arguments on lines of their own": (
        '{"mcpServers": {"x": {\r\n\t"command": "npx",\r\n\t"args": [\r\n\t\t"-y",\r\n\t],\r\n}}}',
        f'{{"mcpServers": {{"x": {{\r\n\t"command": {PYTHON},\r\n\t"args": [\r\n\t\t{OPTIONS}, "npx",'
        f'\r\n\t\t"-y",\r\n\t],\r\n}}}}}}',
    ),
    "a new line for what is new": (
        '{"mcpServers": {"x": {\r\n  "command": "npx", // why\r\n  "env": {}}}}',
        f'{{"mcpServers": {{"x": {{\r\n  "command": {PYTHON},\r\n  "args": [{OPTIONS}, "npx"], // why\r\n  "env": {{}}}}}}}}',
    ),
    "escapes": (
        r'{"mcpServers": {"\u0078": {"command": "\u006epx", "args": ["\/a"]}}}',
        rf'{{"mcpServers": {{"\u0078": {{"command": {PYTHON}, "args": [{OPTIONS}, "\u006epx", "\/a"]}}}}}}',
    ),
    "everything in the command": (
        '{"mcp": {"x": {"command": [ // all\n "npx" ], "type": "local"}}}',
        f'{{"mcp": {{"x": {{"command": [ // all\n {PYTHON}, {OPTIONS}, "npx" ], "type": "local"}}}}}}',
    ),
    "a mark of the byte order": (
        '\ufeff{"servers": {"x": {"command": "npx"}}}',
        f'\ufeff{{"servers": {{"x": {{"command": {PYTHON}, "args": [{OPTIONS}, "npx"]}}}}}}',
    ),
}


@pytest.mark.parametrize("case", JSON_CASES)
def test_json_is_edited_where_the_words_stand_and_back(case: str) -> None:
    before, after = JSON_CASES[case]
    assert wrap(before) == after
    assert back(after) == before


TOML_CASES = {
    "no arguments": (
        '[mcp_servers.x]\ncommand = "npx" # why\nenv = {}\n',
        f'[mcp_servers.x]\ncommand = {PYTHON} # why\nargs = [{OPTIONS}, "npx"]\nenv = {{}}\n',
    ),
    "no arguments, no end of the line": (
        "[mcp_servers.x]\r\n  command = 'npx'",
        f"[mcp_servers.x]\r\n  command = {PYTHON}\r\n  args = [{OPTIONS}, 'npx']",
    ),
    "an empty array": (
        '[mcp_servers.x]\nargs = [] # none\ncommand = "npx"\n',
        f'[mcp_servers.x]\nargs = [ {OPTIONS}, "npx" ] # none\ncommand = {PYTHON}\n',
    ),
    "lines of their own": (
        '[mcp_servers.x]\r\nargs = [\r\n  "-y", # yes\r\n  \'b\',\r\n]\r\ncommand = "npx"\r\n',
        f'[mcp_servers.x]\r\nargs = [\r\n  {OPTIONS}, "npx",\r\n  "-y", # yes\r\n  \'b\',\r\n]\r\ncommand = {PYTHON}\r\n',
    ),
    "dotted keys": (
        '[mcp_servers]\nx.command = "npx"\n',
        f'[mcp_servers]\nx.command = {PYTHON}\nx.args = [{OPTIONS}, "npx"]\n',
    ),
    "a quoted name": (
        '[mcp_servers."x"]\n"command" = "npx"\n"args" = ["a"]\n',
        f'[mcp_servers."x"]\n"command" = {PYTHON}\n"args" = [{OPTIONS}, "npx", "a"]\n',
    ),
}


@pytest.mark.parametrize("case", TOML_CASES)
def test_toml_is_edited_where_the_words_stand_and_back(case: str) -> None:
    before, after = TOML_CASES[case]
    assert wrap(before, "config.toml") == after
    assert back(after, "config.toml") == before


def test_the_servers_of_single_projects_are_wrapped_too() -> None:
    text = '{"projects": {"/srv/a": {"mcpServers": {"x": {"command": "x"}}}, "/srv/b": {}}}'
    result = wrapped(Path("/home/ada/.claude.json"), text.encode(), FRONT)
    assert [(each.name, each.place, each.changed) for each in result.servers] == [
        ("x (in /srv/a)", "/home/ada/.claude.json:1", True)
    ]
    assert unwrapped(result.path, result.after).after == text.encode()
    assert result.host == "Claude Code"


@pytest.mark.parametrize("name", ["api", "a=b", "--", "${HOME}", "a%b", "a\\nb", "", "\\ud800"])
def test_a_name_that_run_or_a_host_would_not_take_as_it_is_is_not_given(name: str) -> None:
    text = f'{{"mcpServers": {{"{name}": {{"command": "x"}}}}}}'
    assert '"run", "--", "x"' in wrap(text)
    assert back(wrap(text)) == text


def test_what_runs_in_the_hosts_sandbox_and_what_has_no_command_is_left() -> None:
    text = '{"servers": {"a": {"command": "a", "sandboxEnabled": true}, "b": {"source": "extension", "settings": {}}}}'
    result = wrapped(Path("mcp.json"), text.encode(), FRONT)
    assert [each.why for each in result.servers] == [
        "it runs in the host's sandbox, where birthmark may be out of reach",
        "it names no command",
    ]
    assert result.after == result.before == text.encode()


BY_HAND = {
    "as in the manual": (
        '{"mcpServers": {"c": {"command": "birthmark", "args": ["run", "--", "uvx", "mcp-server-time"]}}}',
        '{"mcpServers": {"c": {"command": "uvx", "args": ["mcp-server-time"]}}}',
    ),
    "with options": (
        '{"mcpServers": {"c": {"command": "birthmark", "args": ["run", "--grace", "5s", "--eof-grace=1s", "-v", "uvx", "t"]}}}',
        '{"mcpServers": {"c": {"command": "uvx", "args": ["t"]}}}',
    ),
    "twice": (
        '{"mcpServers": {"c": {"command": "birthmark", "args": ["run", "--", "/p/python3", "-Im", "birthmark", "run",'
        ' "--", "/p/python3", "-X", "dev", "-m", "birthmark", "run", "x"]}}}',
        '{"mcpServers": {"c": {"command": "x"}}}',
    ),
    "laid out by an editor": (
        '{"mcpServers": {"c": {"command": "birthmark", "env": {}, "args": [\n  "run",\n  "x",\n]}}}',
        '{"mcpServers": {"c": {"command": "x", "env": {}, "args": [\n  \n]}}}',
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_a_wrapper_written_by_hand_is_left_by_wrap_and_taken_out_by_unwrap(case: str) -> None:
    text, plain = BY_HAND[case]
    assert wrap(text) == text
    assert back(text) == plain


def test_time_limits_of_run_are_no_commands() -> None:
    assert unwrap(["birthmark", "run", "--grace", "5s", "--eof-grace", "1s", "--", "x"]) == (("x",), None)


def test_what_stands_before_a_command_is_told() -> None:
    raw = wrap('{"mcpServers": {"x": {"command": "npx", "args": ["-y"]}, "y": {"command": "y"}}}').encode()
    assert [(each.server, each.words) for each in wrappers_in(Path("a.json"), raw)] == [
        ("x", (*FRONT, "--name", "x", "--")),
        ("y", (*FRONT, "--name", "y", "--")),
    ]


def test_a_file_without_a_server_has_none() -> None:
    for text in ("", "  \n", "{}", '{"theme": "dark"}', '{"mcpServers": {}}', '{"projects": {"/": {}}}'):
        assert not has_servers(Path("settings.json"), text.encode())
    assert has_servers(Path("settings.json"), b'{"mcpServers": {"x": {"command": "x"}}}')


REFUSED = {
    "no servers": ('{"theme": "dark"}', "mcp.json: there are no servers of an MCP host in it"),
    "no file of ours to read": (
        "{",
        'mcp.json:1: not valid JSON: a name in "double quotes" is expected here',
    ),
    "a server that is no table": (
        '{"mcpServers": {"x": "npx"}}',
        "mcp.json:1: mcpServers.x: a table is expected",
    ),
    "a command that is a table": (
        '{"context_servers": {"x": {"command": {"path": "npx"}}}}',
        "mcp.json:1: context_servers.x.command: text is expected, or an array of it",
    ),
    "an argument that is a number": (
        '{"mcpServers": {"x": {"command": "x",\n"args": [1]}}}',
        "mcp.json:2: mcpServers.x.args: an array of text is expected",
    ),
    "arguments in one string": (
        '{"mcpServers": {"x": {"command": "x", "args": "-y"}}}',
        "mcp.json:1: mcpServers.x.args: an array of text is expected",
    ),
    "an empty array": (
        '{"mcpServers": {"x": {"command": []}}}',
        "mcp.json:1: mcpServers.x.command: this is empty",
    ),
    "an empty command": (
        '{"mcpServers": {"x": {"command": " "}}}',
        "mcp.json:1: mcpServers.x.command: this is empty. Name a program",
    ),
    "a command line in one string": (
        '{"mcpServers": {"x": {"command": "npx -y a"}}}',
        "mcp.json:1: mcpServers.x.command: it holds blanks, and some hosts take it apart there. "
        "Put what follows the program into args",
    ),
    "a tilde": (
        '{"mcpServers": {"x": {"command": "~/a"}}}',
        "mcp.json:1: mcpServers.x.command: some hosts replace the ~ of a command only. Write the whole path",
    ),
    "a command and an address": (
        '{"mcpServers": {"x": {"command": "x", "url": "http://h/"}}}',
        "mcp.json:1: mcpServers.x: it has a command and says that it is remote: hosts differ in what they do",
    ),
    "a sort nobody knows": (
        '{"mcpServers": {"x": {"command": "x", "type": "docker"}}}',
        "mcp.json:1: mcpServers.x: its type 'docker' is not known here",
    ),
    "two commands": (
        '{"mcpServers": {"x": {"command": "x", "cmd": "y"}}}',
        "mcp.json:1: mcpServers.x: it has two commands: command and cmd",
    ),
    "a name twice": (
        '{"mcpServers": {"x": {"command": "x", "command": "y"}}}',
        "mcp.json:1: 'command' stands twice in one object: on lines 1 and 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_with_the_reason(case: str) -> None:
    text, sentence = REFUSED[case]
    assert refused(text) == sentence


IN_ONE_LINE = "its command is written in a way that is not changed here"


@pytest.mark.parametrize(
    "text",
    [
        '[mcp_servers]\nx = {command = "npx"}\n',
        'mcp_servers = {x = {command = "npx"}}\n',
        '[mcp_servers.x]\ncommand = """npx"""\n',
        "[mcp_servers.x]\ncommand = '''npx'''\n",
        '[mcp_servers.x]\ncommand = "npx"\nargs = ["""-y"""]\n',
    ],
)
def test_toml_that_stands_otherwise_than_on_lines_of_its_own_is_refused(text: str) -> None:
    assert IN_ONE_LINE in refused(text, "config.toml")


def test_toml_in_a_string_is_no_toml() -> None:
    text = '[mcp_servers.y]\nurl = "http://h/"\nnote = """\n[mcp_servers.x]\ncommand = "a"\n"""\n[mcp_servers.x]\ncommand = "b"\n'
    result = wrap(text, "config.toml")
    assert tomllib.loads(result)["mcp_servers"]["x"]["args"][-1] == "b"
    assert back(result, "config.toml") == text


def test_our_own_file_and_other_programs_tables_are_no_hosts_files() -> None:
    assert refused('[mcp.x]\ncommand = "x"\n', "birthmark.toml") == (
        "birthmark.toml: there are no servers of an MCP host in it. "
        "`birthmark up` supervises what it names, without a wrapper"
    )
    assert "no servers of an MCP host" in refused('[servers.x]\ncommand = "x"\n', "other.toml")
    assert "YAML is not read" in refused("extensions: {}\n", "config.yaml")


def test_a_comment_inside_a_wrapper_is_not_thrown_away() -> None:
    text = wrap('{"mcpServers": {"x": {"command": "npx", "args": ["-y"]}}}').replace(
        '"run",', '"run", /* mine */'
    )
    with pytest.raises(ConfigError, match="there is a comment inside its wrapper"):
        back(text)


# -- files as nobody would write them ------------------------------------------

BLANKS = st.text(alphabet=" \t\r\n", max_size=3)
COMMENTS = st.sampled_from(["/*c*/", "//c\n", '/* [{"command": 1}] */', '// "args": [\r\n'])
SPACE = st.builds("".join, st.lists(BLANKS | COMMENTS, max_size=3))
WORDS = st.text(max_size=6) | st.sampled_from(
    ["-y", "run", "--", "birthmark", "${A}", "\\", '"', "//", "]", "ü"]
)
PROGRAMS = st.sampled_from(
    ["npx", "/a b/c", "${workspaceFolder}/x", "birthmarks", "ü", "C:\\x", 'a"b', "python"]
)


@st.composite
def literals(draw: st.DrawFn, words: st.SearchStrategy[str]) -> str:
    """Write a string with some of its characters escaped."""
    text = ""
    for character in draw(words):
        plain = character.isprintable() and character not in '"\\'
        code = f"{ord(character):04x}"
        text += character if (plain and draw(st.booleans())) or len(code) > 4 else f"\\u{code}"
    return f'"{text}"'


@st.composite
def rows(draw: st.DrawFn, items: list[str], ends: str) -> str:
    """Write items between brackets, with blanks and comments anywhere, and a trailing comma perhaps."""
    text = ends[0]
    for at, item in enumerate(items):
        text += draw(SPACE) + item + draw(SPACE)
        if at < len(items) - 1 or draw(st.booleans()):
            text += ","
    return text + draw(SPACE) + ends[1]


@st.composite
def entries(draw: st.DrawFn) -> str:
    members = [("env", '{"A": "b"}'), ("unknown", draw(st.sampled_from(["1e3", "null", '[{"args": []}]'])))]
    given_args = draw(st.sampled_from(["none", "empty", "some", "null"]))
    if draw(st.booleans()):
        words = [draw(literals(PROGRAMS)), *draw(st.lists(literals(WORDS), max_size=2))]
        members.append(("command", draw(rows(words, "[]"))))
        given_args = draw(st.sampled_from(["none", "null"]))
    else:
        members.append(("command", draw(literals(PROGRAMS))))
    if given_args != "none":
        words = draw(st.lists(literals(WORDS), min_size=1, max_size=3)) if given_args == "some" else []
        members.append(("args", "null" if given_args == "null" else draw(rows(words, "[]"))))
    shuffled = draw(st.permutations(members))
    return draw(rows([f'"{key}"{draw(SPACE)}:{draw(SPACE)}{value}' for key, value in shuffled], "{}"))


@st.composite
def files(draw: st.DrawFn) -> str:
    servers = [
        f'"{name}"{draw(SPACE)}:{draw(SPACE)}{draw(entries())}'
        for name in draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=3))
    ]
    body = draw(rows([f'"mcpServers":{draw(SPACE)}{draw(rows(servers, "{}"))}', '"theme": "dark"'], "{}"))
    return draw(st.sampled_from(["", "\ufeff"])) + draw(SPACE) + body + draw(SPACE)


def comments(text: str) -> list[str]:
    """Return the comments, strings left out of the search."""
    found = re.findall(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', text, re.DOTALL)
    return [each for each in found if each[0] == "/"]


def ways(result: Rewriting) -> object:
    """Return the data with the wrapper taken out of every server, empty and missing arguments made one."""
    data, _ = parse_jsonc(result.after.decode("utf-8-sig"))
    assert isinstance(data, dict)
    for server in data["mcpServers"].values():
        command = server.pop("command")
        words = [*(command if isinstance(command, list) else [command]), *(server.pop("args", None) or [])]
        found = unwrap(words)
        server["words"] = list(found[0]) if found else words
        server["wrapped"] = found is not None
    return data


@given(files())
def test_however_json_is_laid_out_only_the_words_change_and_change_back(text: str) -> None:
    path, raw = Path("mcp.json"), text.encode()
    result = wrapped(path, raw, FRONT)
    assert all(each.changed for each in result.servers)
    again, plain = wrapped(path, result.after, FRONT), unwrapped(path, result.after)
    assert again.after == result.after
    assert plain.after == raw
    assert comments(result.after.decode()) == comments(text)
    assert str(ways(result)).replace("'wrapped': True", "'wrapped': False") == str(ways(plain))


TOML_SPACE = st.sampled_from(["", " ", "\t", "\n", "\r\n  ", " # c\n", " # ] \" '\n"])


@st.composite
def toml_files(draw: st.DrawFn) -> str:
    end = draw(st.sampled_from(["\n", "\r\n"]))
    literal = st.sampled_from(["'npx'", '"npx"', '"\\u006epx"', "'/a b/c'", '"a\\"b"'])
    text = f'# head{end}model = "o5"{end}'
    for name in draw(st.lists(st.sampled_from(["a", '"b c"', "'d'"]), unique=True, min_size=1, max_size=3)):
        text += f"{draw(st.sampled_from(['', '  ']))}[ mcp_servers . {name} ] # h{end}"
        lines = [
            f"command{draw(st.sampled_from(['=', ' = ']))}{draw(literal)}{draw(st.sampled_from(['', ' # c']))}",
            'note = """\ncommand = "x"\n"""',
        ]
        if draw(st.booleans()):
            items = draw(st.lists(st.sampled_from(["'-y'", '"]"', '"#"', '""', "''"]), max_size=3))
            lines.append(
                "args = [" + "".join(f"{draw(TOML_SPACE)}{item}," for item in items) + draw(TOML_SPACE) + "]"
            )
        text += end.join(draw(st.permutations(lines))) + end
    return text + draw(st.sampled_from(["", "[other]", f"[[list]]{end}command = 1{end}"]))


@given(toml_files())
def test_however_toml_is_laid_out_only_the_words_change_and_change_back(text: str) -> None:
    path, raw = Path("config.toml"), text.encode()
    result = wrapped(path, raw, FRONT)
    assert all(each.changed for each in result.servers)
    assert wrapped(path, result.after, FRONT).after == result.after
    assert unwrapped(path, result.after).after == raw
    before, after = tomllib.loads(text), tomllib.loads(result.after.decode())
    for name, server in after["mcp_servers"].items():
        was = before["mcp_servers"][name]
        words = [was["command"], *was.get("args", [])]
        assert [server["command"], *server["args"]] == [*FRONT, "--name", name, "--", *words]
        was.pop("args", None), server.pop("args")
        was.pop("command"), server.pop("command")
    assert after == before


@given(FILES, st.sampled_from(["mcp.json", ".claude.json", "opencode.jsonc", "a"]))
def test_whatever_data_a_file_holds_it_is_wrapped_and_unwrapped_or_refused(data: object, name: str) -> None:
    path, raw = Path(name), json.dumps(data).encode()
    try:
        there = wrapped(path, raw, FRONT)
    except ConfigError:
        return
    # What ran under `run` before, by somebody else's hand, unwrap takes out too.
    if not any(each.why == "it runs under `birthmark run` already" for each in there.servers):
        assert unwrapped(path, there.after).after == raw


@given(st.text(max_size=80) | st.text(alphabet="[]{}\"'=.#\n\r mcp_servers.x,command", max_size=60))
def test_any_text_is_wrapped_or_refused(text: str) -> None:
    for name in ("config.toml", "mcp.json"):
        for head in ("", '[mcp_servers.x]\ncommand = "a"\n'):
            try:
                there = wrapped(Path(name), (head + text).encode(), FRONT)
            except ConfigError:
                continue
            assert unwrapped(Path(name), there.after).after == (head + text).encode()
