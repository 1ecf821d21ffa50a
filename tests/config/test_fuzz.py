"""Whatever stands in a file, it is used or refused with a sentence; nothing else comes out. Values only."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from birthmark.config.clients import SAME_KEY
from birthmark.config.load import load_files
from birthmark.config.own import SERVICE_KEYS
from birthmark.errors import ConfigError

NAMES = ("a.json", "a.toml", "a", ".mcp.json", "opencode.json", "config.toml")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "npx",
            "${A}",
            "${A:-b}",
            "${file:/}",
            "{port}",
            "${port}",
            "http://h:1/",
            "http://[",
            "auto",
            "10s",
            "1-2",
        ]
    )
    | st.sampled_from(
        ["stdio", "http", "always", "tcp", "log", "minimal", "9" * 30 + "s", "birthmark", "~", "/"]
    )
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=3)
ENTRIES = st.dictionaries(st.sampled_from(sorted(SAME_KEY)) | st.text(max_size=5), VALUES, max_size=6)
TOPS = st.sampled_from(["mcpServers", "servers", "context_servers", "mcp", "mcp_servers", "projects", "x"])
FILES = st.dictionaries(
    TOPS, st.dictionaries(st.text(max_size=4), ENTRIES | VALUES, max_size=3) | VALUES, max_size=3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def read(folder: Path, name: str, raw: bytes) -> None:
    """Read a file of these bytes; anything but a `ConfigError` fails the test."""
    path = folder / name
    path.write_bytes(raw)
    try:
        config = load_files([path], environ={"A": "a"}, home=folder)
    except ConfigError as err:
        assert err.source
        assert str(err).splitlines()[0]
        assert err.line is None or 1 <= err.line <= raw.count(b"\n") + 1
        return
    for spec in config.services:
        assert spec.command or spec.url
        assert repr(spec)


@given(st.sampled_from(NAMES), st.binary(max_size=200))
@example("a.json", b"[" * 100_000)
@example("a.toml", b"a = " + b"[" * 100_000)
@example("a.toml", b"a" + b".a" * 2_000 + b" = 1")
@example("a.json", b'{"a":' * 50_000)
@example("a.json", b'"' + b"\\" * 100_001)
@example("a.json", b"/*" * 50_000)
def test_random_bytes_are_used_or_refused(folder: Path, name: str, raw: bytes) -> None:
    read(folder, name, raw)


@given(st.sampled_from(NAMES), FILES)
def test_random_json_is_used_or_refused(folder: Path, name: str, data: object) -> None:
    read(folder, name, json.dumps(data).encode())


TOML_VALUES = st.recursive(
    st.sampled_from(
        [
            '"x"',
            '""',
            "1",
            "0",
            "true",
            "1.5",
            "inf",
            "nan",
            "07:32:00",
            "1979-05-27",
            '"auto"',
            '"10s"',
            '"${A}"',
        ]
    )
    | st.sampled_from(
        ['"${GONE}"', '"tcp"', '"log"', '"http://h:1"', '"http://[::1"', '"minimal"', '"a\\u0000b"']
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]")
        | st.dictionaries(st.sampled_from(["A", "b", "file"]), inner, max_size=2).map(
            lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + "}"
        )
    ),
    max_leaves=4,
)
TABLES = st.lists(
    st.tuples(
        st.sampled_from(
            ["mcp.a", "mcp.b", "agent.a", 'agent."c d"', "defaults", "supervisor", "mcp_servers.x", "mcp"]
        ),
        st.dictionaries(st.sampled_from(sorted(SERVICE_KEYS)), TOML_VALUES, max_size=5),
    ),
    max_size=3,
    unique_by=lambda each: each[0],
)


@given(
    TABLES,
    st.sampled_from(["", "import = []\n", 'import = ["gone"]\n', "import = 3\n", 'import = "a.json"\n']),
)
def test_random_tables_of_ours_are_used_or_refused(
    folder: Path, tables: list[tuple[str, dict[str, str]]], top: str
) -> None:
    body = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()) for name, keys in tables
    )
    read(folder, "birthmark.toml", (top + body).encode())


@given(st.text(alphabet=string.ascii_letters + "=[]{}\"'.#\n ,:${}", max_size=120))
def test_random_text_in_the_shape_of_toml_is_used_or_refused(folder: Path, text: str) -> None:
    read(folder, "birthmark.toml", text.encode())
