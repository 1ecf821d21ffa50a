"""Names and ids are checked once, with a word on what is wrong."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.core.service import (
    API_SERVER_SERVICE,
    ServiceName,
    api_server_service,
    birth_id,
    installation_id,
    service_name,
)


@pytest.mark.parametrize(
    "text",
    [
        "time",
        "a b",
        "a/b",
        "@scope/server",
        "..",
        "-x",
        "API",
        "apis",
        "grüße",
        "時間",
        "😀",
        "a'b\"c",
        "\u00a0",
    ],
)
def test_what_host_files_contain_is_accepted_unchanged(text: str) -> None:
    assert ServiceName(text) == text
    assert service_name(text) == text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("a\0b", r"'\\x00'"),
        ("a=b", "'='"),
        ("=", "'='"),
        ("a\nb", r"'\\n'"),
        ("a\rb", r"'\\r'"),
        ("\t", r"'\\t'"),
        ("a\x1b[31m", r"'\\x1b'"),
        ("a\x7f", r"'\\x7f'"),
        ("a\x85", r"'\\x85'"),
        ("a\x9f", r"'\\x9f'"),
        ("a\ud800", "Unicode"),
        ("\udcff", "Unicode"),
        ("api", "reserved"),
    ],
)
def test_a_bad_name_is_refused_with_what_is_wrong_with_it(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ServiceName(text)


@pytest.mark.parametrize("value", [None, 3, b"time", ["time"], True])
def test_what_is_no_text_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        ServiceName(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=type(value).__name__):
        birth_id(value)  # type: ignore[arg-type]


def test_the_reserved_name_is_made_by_its_own_function() -> None:
    assert api_server_service() == API_SERVER_SERVICE == "api"
    assert isinstance(service_name("api"), ServiceName)


def test_a_name_is_made_of_a_name() -> None:
    name = ServiceName("time")
    assert ServiceName(name) is name
    assert ServiceName(api_server_service()) == "api"


@given(st.text())
def test_a_name_that_is_accepted_stands_in_an_entry_and_on_a_line(text: str) -> None:
    try:
        name = ServiceName(text)
    except ValueError:
        return
    assert name.encode()
    assert len(name.splitlines() or [name]) == 1 or "\u2028" in name or "\u2029" in name
    assert "\0" not in name
    assert "=" not in name


@pytest.mark.parametrize("name", [ServiceName("time"), api_server_service()])
def test_a_name_can_be_pickled(name: ServiceName) -> None:
    again = pickle.loads(pickle.dumps(name))
    assert again == name
    assert isinstance(again, ServiceName)


@pytest.mark.parametrize("make", [birth_id, installation_id])
def test_an_id_is_32_lower_case_hex_digits(make: type) -> None:
    assert make("0123456789abcdef" * 2) == "0123456789abcdef" * 2
    for text in ("", "a" * 31, "a" * 33, "A" * 32, "g" * 32, " " + "a" * 31, "a" * 31 + "\n", "٣" * 32):
        with pytest.raises(ValueError, match="32 lower-case hex"):
            make(text)
