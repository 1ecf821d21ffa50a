"""The environment a service is started with: a documented part of ours, and what the service declares.

Hosts that hand everything over leak their keys to every server; hosts that hand over too little break certificates and
proxies. So there are three profiles, and in every one of them our own marks and the markers of an outer agent session
stay behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from birthmark.config.model import EnvProfile, ServiceSpec
from birthmark.core.markers import scrub


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MINIMAL: Final = _names(
    """
    APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP
    USERNAME USERPROFILE
    """
    if sys.platform == "win32"
    else "HOME LOGNAME PATH SHELL TERM USER"
)
"""What the MCP SDKs hand over."""

_LOCALE_AND_PLACES: Final = _names("LANG LC_* TZ TMPDIR TMP TEMP XDG_*_HOME XDG_RUNTIME_DIR")
PLAIN: Final = MINIMAL + _LOCALE_AND_PLACES
"""Names whose values are no secret, wherever a reference puts them."""

_PROXIES: Final = _names(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy"
)
_CERTIFICATES: Final = _names(
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE PIP_CERT"
)
_INDEXES: Final = _names(
    """
    UV_DEFAULT_INDEX UV_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_INDEX_STRATEGY UV_NO_INDEX
    UV_INSECURE_HOST UV_PYTHON_INSTALL_MIRROR npm_config_registry NPM_CONFIG_REGISTRY
    """
)
_CACHES: Final = _names(
    """
    UV_CACHE_DIR UV_NO_CACHE UV_OFFLINE UV_NATIVE_TLS UV_SYSTEM_CERTS UV_HTTP_TIMEOUT UV_LINK_MODE UV_TOOL_DIR UV_PYTHON
    UV_PYTHON_DOWNLOADS UV_PYTHON_PREFERENCE UV_PYTHON_INSTALL_DIR npm_config_cache npm_config_offline
    npm_config_prefer_offline npm_config_prefix npm_config_cafile npm_config_strict_ssl NPM_CONFIG_CACHE
    NPM_CONFIG_OFFLINE NPM_CONFIG_PREFIX NPM_CONFIG_CAFILE NVM_BIN VOLTA_HOME
    """
)
DEFAULT: Final = PLAIN + _PROXIES + _CERTIFICATES + _INDEXES + _CACHES
"""`MINIMAL` and what servers started by `npx` and `uvx` need to come up behind proxies and private indexes."""

SESSION_MARKERS: Final = _names(
    """
    CLAUDECODE CLAUDE_CODE_* CLAUDE_AGENT_SDK_VERSION GEMINI_CLI GEMINI_CLI_* CODEX_* CURSOR_AGENT CURSOR_TRACE_ID
    CLINE_ACTIVE OPENCODE OPENCODE_CLIENT GOOSE_TERMINAL AI_AGENT
    NOTIFY_SOCKET LISTEN_FDS LISTEN_FDNAMES LISTEN_PID WATCHDOG_PID WATCHDOG_USEC
    """
)
"""What marks an agent's session or a service of systemd: true of us, false of what we start."""


def child_environ(spec: ServiceSpec, parent: Mapping[str, str]) -> dict[str, str]:
    """Return the variables `spec` is started with, without the mark, which spawning adds.

    Args:
        spec: The service. Its `env` wins over its `env_from`, and that over its profile; its `env_drop` (None:
            `SESSION_MARKERS`) takes names out of the profile only.
        parent: Our own variables. Values that begin with ``()``, which are shell functions, are not handed over.
    """
    plain = {name: value for name, value in parent.items() if not value.startswith("()")}
    dropped = SESSION_MARKERS if spec.env_drop is None else spec.env_drop
    environ = {
        name: value
        for name, value in plain.items()
        if _in_profile(spec.env_profile, name, value) and not matches(name, dropped)
    }
    environ |= {name: plain[name] for name in spec.env_from if name in plain}
    return scrub(environ | dict(spec.env))


def _in_profile(profile: EnvProfile, name: str, value: str) -> bool:
    match profile:
        case EnvProfile.INHERIT:
            return True
        case EnvProfile.MINIMAL:
            return matches(name, MINIMAL)
        case EnvProfile.DEFAULT:
            # An index's address may carry its password.
            return matches(name, DEFAULT) and not (matches(name, _INDEXES) and _has_password(value))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a variable's name fits one of the patterns; ``*`` stands for anything."""
    if sys.platform == "win32":  # names of variables have no case there
        return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in patterns)
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_password(value: str) -> bool:
    try:
        # Several addresses may stand in one value, and a name before an address: name=https://…
        return any("@" in urlsplit(word[max(word.find("http"), 0) :]).netloc for word in value.split())
    except ValueError:
        return True
