"""README: what it promises is there."""

import base64
import json
import re
from pathlib import Path

import pytest

from attnorm.book.readme_picture import PICTURE, copy_picture
from attnorm.book.site import Book

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_commands_are_the_two_that_matter():
    first = re.search(r"```bash\n(.*?)```", README, flags=re.DOTALL).group(1)
    assert re.findall(r"^(make \w+)", first, flags=re.MULTILINE) == ["make book", "make test"]


def test_every_make_target_that_it_names_exists():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", " ".join(re.findall(r"`+[^`]+`+", README))))
    assert {"book", "test", "chapter", "notebooks"} <= named
    assert named <= set(targets)


def test_its_picture_is_there_small_and_described():
    alt, source = re.search(r"!\[([^\]]*)\]\(([^)]+)\)", README).groups()
    assert source == PICTURE
    assert 0 < (ROOT / source).stat().st_size < 200_000
    assert len(alt) > 40


def test_the_files_and_folders_that_it_names_exist():
    named = re.findall(r"`((?:chapters|lib|tests|data|LICENSE|CITATION|requirements)[\w./-]*)`", README)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.fixture
def book(tmp_path):
    (tmp_path / "_config.yml").write_text("title: t\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: chapters/index\n")
    (tmp_path / PICTURE).parent.mkdir(parents=True)
    return Book(tmp_path)


def executed(book, *outputs):
    folder = book.work / "jupyter_execute" / "chapters"
    folder.mkdir(parents=True)
    cells = [{"cell_type": "markdown"}, *({"outputs": [{"data": data}]} for data in outputs)]
    (folder / "index.ipynb").write_text(json.dumps({"cells": cells}))


def test_the_picture_is_the_first_one_that_the_landing_page_computed(book):
    picture = {"image/png": base64.b64encode(b"first").decode(), "text/plain": ""}
    executed(book, {"text/plain": "no picture"}, picture, {"image/png": "AAAA"})
    assert copy_picture(book).read_bytes() == b"first"


def test_without_a_picture_nothing_is_written(book):
    with pytest.raises(ValueError, match="make book"):
        copy_picture(book)
    executed(book, {"text/plain": "no picture"})
    with pytest.raises(ValueError, match="no picture"):
        copy_picture(book)
    assert not (book.root / PICTURE).exists()
