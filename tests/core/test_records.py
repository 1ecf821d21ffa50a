"""Records behave as dataclasses with slots do. Values only."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

from birthmark.core.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("left of the origin")

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(slots=True, kw_only=True)
class Basket:
    owner: str
    apples: list[str] = field(default_factory=list)


def test_a_record_is_its_fields() -> None:
    assert Point(1) == Point(1, 0) == Point(y=0, x=1)
    assert Point(1) != Point(2)
    assert hash(Point(1)) == hash(Point(1, 0))
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    assert Point(1, 2).sum == 3
    assert Point.__doc__ == "A place."


def test_a_record_is_not_equal_to_what_only_looks_like_it() -> None:
    pair: object = (1, 0)
    assert Point(1, 0) != pair
    assert Point(1, 0) != dataclasses.make_dataclass("Point", ["x", "y"])(1, 0)


def test_a_frozen_record_stays_as_it_is() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 1  # type: ignore[attr-defined]
    assert point == Point(1)


def test_what_is_checked_after_making_is_checked_by_replace_too() -> None:
    with pytest.raises(ValueError, match="left"):
        Point(-1)
    with pytest.raises(ValueError, match="left"):
        dataclasses.replace(Point(1), x=-1)


def test_each_record_has_a_list_of_its_own() -> None:
    one, other = Basket(owner="one"), Basket(owner="other")
    one.apples.append("red")
    assert other.apples == []
    assert one == Basket(owner="one", apples=["red"])
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_only_named_arguments_where_that_was_said() -> None:
    with pytest.raises(TypeError):
        Basket("one")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="owner"):
        Basket()  # type: ignore[call-arg]


def test_whoever_asks_dataclasses_is_answered() -> None:
    assert dataclasses.is_dataclass(Point)
    assert [(each.name, each.type) for each in dataclasses.fields(Point)] == [("x", "int"), ("y", "int")]
    assert dataclasses.replace(Point(1), y=5) == Point(1, 5)
    assert dataclasses.asdict(Basket(owner="one", apples=["red"])) == {"owner": "one", "apples": ["red"]}


@pytest.mark.parametrize("value", [Point(1, 2), Basket(owner="one", apples=["red"])])
def test_a_record_is_copied_and_pickled_whole(value: object) -> None:
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_fields_match_by_position() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_making_records_loads_no_tools_for_source_text() -> None:
    program = "import sys, birthmark.core.identity\nsys.exit(bool({'dataclasses', 'inspect', 'ast'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-I", "-c", program], check=False, timeout=20).returncode == 0
