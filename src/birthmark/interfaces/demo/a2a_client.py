"""A client's side of A2A 1.0 over JSON-RPC: an agent's card, and one message to it."""

from __future__ import annotations

from typing import Final

from birthmark.interfaces.demo.asking import pick, request, result_of
from birthmark.interfaces.demo.telling import DemoFailed

_CARD: Final = "/.well-known/agent-card.json"


def card_of(port: int) -> tuple[str, str]:
    """Return an agent's name, and the address at which it says it answers.

    Raises:
        DemoFailed: It shows no card, or one that names another port than its own.
    """
    card = request(port, "GET", _CARD).value
    name, url = pick(card, "name"), pick(card, "supportedInterfaces", 0, "url")
    if not isinstance(name, str) or not isinstance(url, str):
        raise DemoFailed(f"what port {port} shows at {_CARD} is no agent's card")
    if f":{port}/" not in url:
        raise DemoFailed(f"the agent {name} on port {port} says in its card that it answers at {url}")
    return name, url


def send_message(port: int, text: str) -> str:
    """Send an agent one message; return the text of its answer.

    Raises:
        DemoFailed: It does not answer, or with an error.
    """
    message = {"messageId": "demo", "role": "ROLE_USER", "parts": [{"text": text}]}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    answer = request(port, "POST", "/", asked, {"A2A-Version": "1.0"})
    said = pick(result_of(answer, "SendMessage"), "message", "parts", 0, "text")
    if not isinstance(said, str):
        raise DemoFailed(f"the agent on port {port} answered without a text: {answer.value!r}")
    return said
