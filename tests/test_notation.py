"""The notation page: every name that it gives for a symbol exists in the code."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "chapters" / "front" / "notation.md"
HEAD = "| Symbol | Meaning | Name in code | Shape |"


def rows():
    """The cells of every row of every table of symbols."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|") and line != HEAD and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def resolve(dotted):
    """The object that a dotted name means."""
    module, rest = importlib.import_module("attnorm"), dotted.split(".")[1:]
    for name in rest:
        try:
            module = getattr(module, name)
        except AttributeError:
            module = importlib.import_module(f"{module.__name__}.{name}")
    return module


def names_of(thing):
    """Parameters of a function; fields and properties of a class."""
    if inspect.isclass(thing):
        fields = {f.name for f in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
        return fields | set(dir(thing))
    return set(inspect.signature(thing).parameters)


def entries():
    found = []
    for row in rows():
        for code in re.findall(r"(?:`(\w+)` of )?`(attnorm[\w.]*)`", row[2]):
            found.append(pytest.param(*code, id=".".join(filter(None, code))))
    return found


def test_the_tables_are_found():
    assert len(rows()) > 30
    assert all(len(row) == 4 for row in rows())


def test_every_row_names_something_in_the_code():
    assert [row for row in rows() if "`attnorm" not in row[2]] == []


@pytest.mark.parametrize(("member", "dotted"), entries())
def test_each_code_name_exists(member, dotted):
    thing = resolve(dotted)
    assert not member or member in names_of(thing)


@pytest.mark.parametrize(("member", "dotted"), [("x1", "attnorm.simulate"), ("thetas", "attnorm.Trajectory")])
def test_a_wrong_member_is_noticed(member, dotted):
    assert member not in names_of(resolve(dotted))


def test_a_wrong_name_is_noticed():
    with pytest.raises(ImportError):
        resolve("attnorm.simulator")
