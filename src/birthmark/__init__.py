"""birthmark: process supervision for AI agents and MCP servers.

Every child is stamped at birth, and nothing without the mark is ever signalled. These are the
public names and nothing else; the rooms behind them are free to move.
"""

from __future__ import annotations

from birthmark import children as _children

# As in `typing`, which would be half of what importing this package costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from birthmark.children import *  # noqa: F403

__version__ = "0.1.0"

__all__ = ["__version__"]
__all__ += _children.__all__


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: importing this package stays cheap."""
    if name not in _children.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_children, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_children.__all__})
