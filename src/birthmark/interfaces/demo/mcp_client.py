"""A client's side of MCP over streamable HTTP, as much of it as one call of a tool needs."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from birthmark import __version__
from birthmark.interfaces.demo.asking import Answer, pick, request, result_of

PROTOCOL: Final = "2025-06-18"
"""A version every server of the last years speaks; the server answers with the one that will be used."""


class McpSession:
    """One session with a server; ended at the end of the `with`."""

    def __init__(self, port: int, path: str = "/mcp") -> None:
        """Begin a session.

        Raises:
            DemoFailed: The server does not answer as MCP says.
        """
        self._port, self._path, self._next_id = port, path, 1
        self._headers = {"Accept": "application/json, text/event-stream"}
        about = {"name": "birthmark-demo", "version": __version__}
        answer = self._post(
            "initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        )
        hello = result_of(answer, "initialize")
        self.server = f"{pick(hello, 'serverInfo', 'name')} {pick(hello, 'serverInfo', 'version')}"
        self.protocol = str(pick(hello, "protocolVersion"))
        self._headers["MCP-Protocol-Version"] = self.protocol
        if session := answer.headers.get("mcp-session-id"):
            self._headers["Mcp-Session-Id"] = session
        said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        request(self._port, "POST", self._path, said, self._headers)

    def tools(self) -> list[str]:
        """Return the names of the server's tools.

        Raises:
            DemoFailed: It does not answer.
        """
        found = pick(result_of(self._post("tools/list", {}), "tools/list"), "tools")
        return [str(pick(tool, "name")) for tool in found] if isinstance(found, list) else []

    def call(self, tool: str, **arguments: object) -> str:
        """Call a tool; return the text of its answer.

        Raises:
            DemoFailed: It does not answer, or with an error.
        """
        answer = self._post("tools/call", {"name": tool, "arguments": arguments})
        return str(pick(result_of(answer, f"tools/call {tool}"), "content", 0, "text"))

    def _post(self, method: str, params: dict[str, object]) -> Answer:
        message = {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params}
        self._next_id += 1
        return request(self._port, "POST", self._path, message, self._headers)

    def __enter__(self) -> McpSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and "Mcp-Session-Id" in self._headers:
            request(self._port, "DELETE", self._path, None, self._headers)
