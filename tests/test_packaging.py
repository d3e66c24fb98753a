"""The files around the package agree with each other, and name nothing that only one machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from cffconvert.cli.create_citation import create_citation
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
CONDA_ONLY = {"python", "pip", "make"}


def project_requirements() -> dict[str, str]:
    """Canonical name to range, of the package, the book and the developers' tools."""
    lines = [
        *PROJECT["dependencies"],
        *(x for extra in PROJECT["optional-dependencies"].values() for x in extra),
    ]
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): str(r.specifier) for r in found}


def locked_versions() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def tracked_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of tracked files")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_conda_environment_has_the_ranges_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))
    from_pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    from_conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    ranges = {}
    for line in [*from_conda, *from_pip]:
        name, range_ = re.match(r"([\w.-]+)(.*)", line).groups()
        ranges[name] = str(Requirement(f"x{range_}").specifier)
    assert ranges.pop("python") == PROJECT["requires-python"]
    expected = {CONDA_NAMES.get(name, name): range_ for name, range_ in project_requirements().items()}
    assert {name: r for name, r in ranges.items() if name not in CONDA_ONLY} == expected
    assert environment["name"] == PROJECT["name"]
    assert environment["channels"] == ["conda-forge"]


def test_lock_pins_every_requirement_within_its_range():
    locked = locked_versions()
    for name, range_ in project_requirements().items():
        assert Requirement(f"x{range_}").specifier.contains(locked[name], prereleases=True), name


def test_lock_has_only_plain_pins():
    """No index address, no hash, no build label: it installs from any index, on any platform."""
    for line in (ROOT / "requirements.lock").read_text(encoding="utf8").splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


def test_every_dependency_has_a_reason():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf8")
    lines = re.findall(r'^    "[\w.-]+[><=].*$', text, flags=re.MULTILINE)
    assert len(lines) == len(project_requirements())
    assert [line for line in lines if not re.search(r'",\s+# \w+', line)] == []


def test_tracked_files_name_no_package_index():
    index = re.compile(r"(?:--(?:extra-)?index-url|--find-links|(?:pypi|registry)\.[a-z.]+/|/simple\b)")
    allowed = {Path(__file__).resolve()}
    texts = {p: p.read_text(encoding="utf8", errors="replace") for p in tracked_files() if p not in allowed}
    assert [p.name for p, text in texts.items() if index.search(text)] == []


def test_citation_file_is_valid_and_names_no_person():
    citation = create_citation(str(ROOT / "CITATION.cff"), None)
    citation.validate()
    content = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert content["version"] == PROJECT["version"]
    assert content["license"] == PROJECT["license"]
    assert content["authors"] == PROJECT["authors"] == [{"name": "The attnorm contributors"}]


def test_planted_fault_in_the_citation_file_is_caught(tmp_path):
    broken = (ROOT / "CITATION.cff").read_text(encoding="utf8").replace("authors:", "writers:")
    (tmp_path / "CITATION.cff").write_text(broken, encoding="utf8")
    with pytest.raises(Exception, match="writers"):
        create_citation(str(tmp_path / "CITATION.cff"), None).validate()


def test_licence_covers_code_and_text():
    text = (ROOT / "LICENSE").read_text(encoding="utf8")
    assert "MIT License" in text
    assert "Creative Commons Attribution 4.0" in text


def test_changelog_names_the_version_or_what_is_unreleased():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
    assert re.search(rf"^## (?:Unreleased|{re.escape(PROJECT['version'])})", text, flags=re.MULTILINE)


def test_every_page_of_the_contents_has_a_source_and_every_source_a_place():
    from attnorm.book.site import Book

    book = Book(ROOT)
    listed = {book.source(document) for document in book.documents()}
    assert listed == set((ROOT / "chapters").rglob("*.md"))


def test_chapter_numbers_in_titles_are_those_of_the_file_names():
    for path in sorted((ROOT / "chapters").rglob("[0-9][0-9]-*.md")):
        title = re.search(r"^# (.*)$", path.read_text(encoding="utf8"), flags=re.MULTILINE).group(1)
        assert re.match(rf"{int(path.stem[:2])}\.? ", title), f"{path.name} is titled {title!r}"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_old_python_gets_a_clear_message(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("")
    old = tmp_path / "oldpython"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.1\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(["make", "book", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stdout
    assert "Python 3.8.1" in done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_missing_venv_module_gets_a_clear_message(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("")
    bare = tmp_path / "barepython"
    bare.write_text(f'#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(["make", "test", f"PYTHON={bare}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "lacks the venv module" in done.stdout
