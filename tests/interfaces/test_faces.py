"""Every error has a face. Decisions: values only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from birthmark import errors
from birthmark.interfaces.faces import FACES, PLAIN, Exit, error_called, face_of


def family(kind: type[errors.SupervisionError]) -> Iterator[type[errors.SupervisionError]]:
    for child in kind.__subclasses__():
        yield child
        yield from family(child)


LEAVES = [kind for kind in family(errors.SupervisionError) if not kind.__subclasses__()]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda kind: kind.__name__)
def test_every_leaf_of_the_family_has_a_face(leaf: type[errors.SupervisionError]) -> None:
    assert leaf in FACES


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda kind: kind.__name__)
def test_no_error_looks_like_success(leaf: type[errors.SupervisionError]) -> None:
    assert FACES[leaf].exit_code is not Exit.DONE
    assert 400 <= FACES[leaf].http_status < 600


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda kind: kind.__name__)
def test_an_error_that_was_sent_is_found_again_by_its_name(leaf: type[errors.SupervisionError]) -> None:
    assert error_called(leaf.__name__) is leaf


def test_an_unknown_name_is_no_error_of_ours() -> None:
    assert error_called("ZeroDivisionError") is None


def test_a_subclass_shows_the_face_of_its_ancestor() -> None:
    # Made here, and gone with the test: it must not join the family the tests above walk.
    kind = type("OtherPort", (errors.PortHeld,), {})
    assert face_of(kind(80, ["nginx"])) == FACES[errors.PortHeld]


def test_what_is_not_of_the_family_has_the_plain_face() -> None:
    assert face_of(ZeroDivisionError()) == PLAIN


def test_the_exit_codes_are_those_that_are_documented() -> None:
    assert {each.name: each.value for each in Exit} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_RUNNING": 3,
        "UNKNOWN": 4,
        "REFUSED": 5,
        "SURVIVORS": 6,
        "TIMED_OUT": 124,
    }
