"""Process supervision for AI agents and MCP servers."""

__version__ = "0.1.0"
