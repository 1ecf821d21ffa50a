"""What a service inherits: three profiles, and what is in none of them. Values only."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from birthmark.config.environ import child_environ
from birthmark.config.model import EnvProfile, ServiceSpec
from birthmark.core.service import ServiceName

BASE: Mapping[str, str] = {"HOME": "/home/ada", "PATH": "/bin", "USER": "ada"}
OURS: Mapping[str, str] = {
    "BIRTHMARK_HOME": "/x",
    "BIRTHMARK_BIRTH": "0" * 32,
    "BIRTHMARK_ANYTHING": "1",
}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the base list of POSIX")


def inherited(
    parent: Mapping[str, str], profile: EnvProfile = EnvProfile.DEFAULT, **says: object
) -> dict[str, str]:
    spec = ServiceSpec(name=ServiceName("x"), env_profile=profile, **says)  # type: ignore[arg-type]
    return child_environ(spec, parent)


@pytest.mark.parametrize("profile", EnvProfile)
def test_no_variable_of_ours_is_inherited_or_declared(profile: EnvProfile) -> None:
    assert (
        inherited({**BASE, **OURS}, profile, env={"BIRTHMARK_MCP": "x"}, env_from=("BIRTHMARK_HOME",)) == BASE
    )


@pytest.mark.parametrize("profile", EnvProfile)
def test_a_value_that_is_a_shell_function_is_not_handed_over(profile: EnvProfile) -> None:
    assert inherited({**BASE, "TERM": "() { :; }; x", "BASH_FUNC_f%%": "() { :; }"}, profile) == BASE


def test_minimal_is_the_list_of_the_sdks() -> None:
    parent = dict.fromkeys(
        ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR", "SSL_CERT_FILE"], "x"
    )
    assert sorted(inherited(parent, EnvProfile.MINIMAL)) == [
        "HOME",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TERM",
        "USER",
    ]


NEEDED = """
LANG LC_ALL TZ TMPDIR XDG_CONFIG_HOME XDG_RUNTIME_DIR https_proxy NO_PROXY SSL_CERT_FILE NODE_EXTRA_CA_CERTS
UV_CACHE_DIR UV_INDEX_URL npm_config_registry NVM_BIN VOLTA_HOME
"""
NOT_NEEDED = """
FAKE_API_KEY AWS_SECRET_ACCESS_KEY UV_PUBLISH_TOKEN UV_INDEX_PRIVATE_PASSWORD LD_PRELOAD PYTHONPATH NODE_OPTIONS
npm_config__authToken VIRTUAL_ENV SSH_AUTH_SOCK DISPLAY
"""


@pytest.mark.parametrize("name", NEEDED.split())
def test_default_brings_what_servers_need_behind_proxies_and_private_indexes(name: str) -> None:
    assert inherited({**BASE, name: "value"}) == {**BASE, name: "value"}


@pytest.mark.parametrize("name", NOT_NEEDED.split())
def test_default_brings_nothing_else(name: str) -> None:
    assert inherited({**BASE, name: "value"}) == BASE
    assert inherited({**BASE, name: "value"}, EnvProfile.INHERIT) == {**BASE, name: "value"}


def test_the_address_of_an_index_is_not_handed_over_with_its_password() -> None:
    for value in (
        "https://ada:secret@index.example/simple",
        "own=https://t0ken@index.example/simple https://b.example/",
    ):
        assert inherited({**BASE, "UV_INDEX": value}) == BASE
        assert inherited({**BASE, "UV_INDEX": value}, env_from=("UV_INDEX",)) == {**BASE, "UV_INDEX": value}


@pytest.mark.parametrize("profile", EnvProfile)
@pytest.mark.parametrize(
    "name", ["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "GEMINI_CLI", "CODEX_SANDBOX", "NOTIFY_SOCKET"]
)
def test_the_markers_of_an_outer_session_stay_behind_in_every_profile(profile: EnvProfile, name: str) -> None:
    assert inherited({**BASE, name: "1"}, profile) == BASE


def test_a_marker_that_a_service_names_itself_is_handed_over() -> None:
    parent = {**BASE, "CODEX_HOME": "/c"}
    assert inherited(parent, env_from=("CODEX_HOME",)) == parent
    assert inherited(BASE, env={"CODEX_HOME": "/c"}) == parent


def test_a_list_of_its_own_takes_the_place_of_the_session_markers() -> None:
    parent = {**BASE, "CLAUDECODE": "1", "MY_OUTER": "1"}
    assert inherited(parent, EnvProfile.INHERIT, env_drop=("MY_*",)) == {**BASE, "CLAUDECODE": "1"}
    assert inherited(parent, EnvProfile.INHERIT, env_drop=()) == parent


def test_what_a_service_declares_wins_over_what_it_inherits() -> None:
    parent = {**BASE, "A": "ours"}
    assert inherited(parent, env={"A": "declared", "PATH": "/opt"}, env_from=("A", "GONE")) == {
        **BASE,
        "A": "declared",
        "PATH": "/opt",
    }
