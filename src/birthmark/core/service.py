"""Names of services and ids of births and installations: checked once, trusted afterwards."""

from __future__ import annotations

from typing import Final, NewType

API_SERVER_SERVICE: Final = "api"
"""The reserved name of the API server."""

InstallationId = NewType("InstallationId", str)
"""32 lower-case hex digits: whose processes we mean by *ours*."""

BirthId = NewType("BirthId", str)
"""32 lower-case hex digits: one spawn of one service."""

_HEX: Final = frozenset("0123456789abcdef")


class ServiceName(str):
    """A service's name, unique in an installation across kinds.

    Any script, spaces and slashes are welcome, since host files contain them; what cannot
    stand in an environment entry or on one line of a table is refused.

    Raises:
        TypeError: It is not text.
        ValueError: It is empty, or holds a NUL, an ``=``, a control character or half of a
            surrogate pair; or it is ``api``, which is reserved (`api_server_service` makes
            that one).
    """

    __slots__ = ()

    def __new__(cls, text: str) -> ServiceName:
        if isinstance(text, ServiceName):
            return text
        _check_name(text)
        if text == API_SERVER_SERVICE:
            raise ValueError(f"{text!r} is reserved for the API server; choose another service name")
        return super().__new__(cls, text)

    def __repr__(self) -> str:
        return f"ServiceName({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # Not through the constructor, which refuses the reserved name.
        return service_name, (str(self),)


def api_server_service() -> ServiceName:
    """Return the reserved service name of the API server."""
    return str.__new__(ServiceName, API_SERVER_SERVICE)


def service_name(text: str) -> ServiceName:
    """Return `text` as a service name, the reserved one included."""
    return api_server_service() if text == API_SERVER_SERVICE else ServiceName(text)


def birth_id(text: str) -> BirthId:
    """Return `text` as a birth id.

    Raises:
        ValueError: It is not 32 lower-case hex digits.
    """
    return BirthId(_checked_id(text, "birth"))


def installation_id(text: str) -> InstallationId:
    """Return `text` as an installation id.

    Raises:
        ValueError: It is not 32 lower-case hex digits.
    """
    return InstallationId(_checked_id(text, "installation"))


def _checked_id(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the {what} id is {type(text).__name__}, not text")
    if len(text) != 32 or not _HEX.issuperset(text):
        raise ValueError(f"{text!r} is no {what} id: 32 lower-case hex digits are expected")
    return text


def _check_name(text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"a service name is text, not {type(text).__name__}")
    if not text:
        raise ValueError("the service name is empty")
    for character in text:
        point = ord(character)
        if character == "=" or point < 0x20 or 0x7F <= point < 0xA0:
            raise ValueError(f"the service name {text!r} holds {character!r}, which no name may hold")
        # Half of a surrogate pair cannot be encoded, neither in a row nor in the API's JSON.
        if 0xD800 <= point < 0xE000:
            raise ValueError(f"the service name {text!r} is not valid Unicode")
