"""Records: what `dataclasses.dataclass` makes of a class with slots, without loading `dataclasses`.

That module loads the standard library's tools for source text, and compiles six functions for every class.
`birthmark run` stands before every server a client starts; a fifth of its start was that. To a type checker
the two are one and the same, and whoever asks a record for its fields (`dataclasses.replace`, `fields`,
`asdict`) gets them, at the cost of loading it then.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

__all__ = ["dataclass", "field"]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
else:

    class _Made:
        """The default of a field whose values are made anew for each record."""

        __slots__ = ("factory",)

        def __init__(self, factory):
            self.factory = factory

    def field(*, default_factory):
        """Return the default of a field: what `default_factory` makes, anew for each record."""
        return _Made(default_factory)

    def dataclass(*, frozen=False, slots=True, kw_only=False):
        """Return the decorator that makes a record of a class; options as in `dataclasses.dataclass`.

        A record always has slots, is equal to another of its class with equal fields, and has no base class.
        """
        assert slots, "a record without slots is nothing this can make"
        return lambda plain: _record(plain, frozen=frozen, kw_only=kw_only)

    def _record(plain, *, frozen, kw_only):
        names = tuple(plain.__annotations__)
        defaults = {name: plain.__dict__[name] for name in names if name in plain.__dict__}
        body = {
            name: value
            for name, value in plain.__dict__.items()
            if name not in defaults and name not in ("__dict__", "__weakref__")
        }
        body["__slots__"] = names
        body["__match_args__"] = () if kw_only else names
        body["__dataclass_fields__"] = _Fields(names, plain.__annotations__, defaults, kw_only)
        values = attrgetter(*names) if len(names) > 1 else lambda self: (getattr(self, names[0]),)
        for method in _methods(names, values, frozen):
            body.setdefault(method.__name__, method)
        if not frozen:
            body.setdefault("__hash__", None)
        made = type(plain)(plain.__name__, plain.__bases__, body)
        made.__qualname__ = plain.__qualname__
        made.__init__ = _init(made, names, defaults, frozen=frozen, kw_only=kw_only)
        return made

    def _init(made, names, defaults, *, frozen, kw_only):
        """Compile the one function that differs from class to class."""
        scope = {"_made": _Made}
        parameters = ["self", *(["*"] if kw_only else [])]
        lines = []
        for name in names:
            parameters.append(name)
            value = name
            if name in defaults:
                parameters[-1] = f"{name}=_default_{name}"
                scope[f"_default_{name}"] = default = defaults[name]
                if isinstance(default, _Made):
                    value = f"_default_{name}.factory() if {name} is _default_{name} else {name}"
            if frozen:
                # The slot itself: assignment is refused.
                scope[f"_set_{name}"] = made.__dict__[name].__set__
                lines.append(f"_set_{name}(self, {value})")
            else:
                lines.append(f"self.{name} = {value}")
        if hasattr(made, "__post_init__"):
            lines.append("self.__post_init__()")
        exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), scope)
        init = scope["__init__"]
        init.__qualname__ = f"{made.__qualname__}.__init__"
        init.__module__ = made.__module__
        return init

    def _methods(names, values, frozen):
        def __repr__(self):  # noqa: N807
            shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({shown})"

        def __eq__(self, other):  # noqa: N807
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        def __getstate__(self):  # noqa: N807
            return values(self)

        def __setstate__(self, state):  # noqa: N807
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        yield from (__repr__, __eq__, __getstate__, __setstate__)
        if not frozen:
            return

        def __hash__(self):  # noqa: N807
            return hash(values(self))

        def __setattr__(self, name, value):  # noqa: N807
            _refuse("assign to", name)

        def __delattr__(self, name):  # noqa: N807
            _refuse("delete", name)

        yield from (__hash__, __setattr__, __delattr__)

    def _refuse(what, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {what} field {name!r}")

    class _Fields:
        """Makes the fields that `dataclasses` looks for when somebody asks it about a record."""

        __slots__ = ("about",)

        def __init__(self, *about):
            self.about = about

        def __get__(self, instance, owner):
            import dataclasses

            names, annotations, defaults, kw_only = self.about
            listed = []
            for name in names:
                default = defaults.get(name, dataclasses.MISSING)
                if isinstance(default, _Made):
                    listed.append(
                        (name, annotations[name], dataclasses.field(default_factory=default.factory))
                    )
                else:
                    listed.append((name, annotations[name], dataclasses.field(default=default)))
            twin = dataclasses.make_dataclass(owner.__name__, listed, kw_only=kw_only)
            return {each.name: each for each in dataclasses.fields(twin)}
