"""Every gate of the build, shown to catch a fault planted for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from bs4 import BeautifulSoup

from attnorm.book import evidence_gate, fingerprint, links
from attnorm.book.build import BuildError, _only_build, build, build_chapter, first_page
from attnorm.book.execute import execute, timings
from attnorm.book.site import Book
from attnorm.evidence import MIME_TYPE
from tiny_book import FIGURE, HEADER, PROBE, cell, make_book, page_of

# sphinx-exercise by itself gives the bodies of all exercises of a page one id.
EXERCISES = "".join(
    f"\n```{{exercise}}\n:label: ex-{n}\nDo it.\n```\n"
    f"\n```{{solution}} ex-{n}\n:label: sol-{n}\n:class: dropdown\nDone.\n```\n"
    for n in (1, 2)
)
# Their book is built once only if one worker runs them all.
shares_a_book = pytest.mark.xdist_group("gates")


def silent(*_):
    pass


@pytest.fixture(autouse=True)
def _no_models(monkeypatch):
    """What models this machine has is no matter for a tiny book."""
    monkeypatch.setattr(fingerprint, "available_models", lambda: "")


def faults_of(root) -> str:
    """Build a book that must fail, and return what the build says."""
    with pytest.raises(BuildError) as caught:
        build(root, say=silent)
    return str(caught.value)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A book without faults, built once."""
    pages = {
        "index": "# Home\n\nSee {doc}`two`, and $x^2$.\n",
        "two": HEADER
        + "# Two\n\n"
        + PROBE
        + FIGURE
        + cell("import sympy\nsympy.Symbol('alpha') ** 2")
        + EXERCISES,
    }
    root = make_book(tmp_path_factory.mktemp("sound"), pages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "available_models", lambda: "")
        build(root, say=silent)
    return root


@shares_a_book
def test_sound_book_is_published_with_pages_notebooks_and_record(sound):
    html = Book(sound).html
    assert first_page(Book(sound)) == html / "chapters" / "index.html"
    assert "probe says 1" in (html / "chapters" / "two.html").read_text()
    assert json.loads((html / "notebooks" / "chapters" / "two.ipynb").read_text())["cells"]
    record = json.loads((html / "build.json").read_text())
    assert record["chapter_seconds"] == timings(sound)
    assert set(timings(sound)) == {"chapters/two"}
    assert record["versions"]["Sphinx"].startswith("7.")


def outputs_of(root) -> str:
    notebook = Book(root).html / "notebooks" / "chapters" / "two.ipynb"
    return str([cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"]])


@shares_a_book
def test_changed_text_executes_nothing_and_notebooks_keep_their_outputs(sound):
    page = page_of(sound, "two")
    page.write_text(page.read_text() + "\nOne more sentence.\n")
    said, before = [], outputs_of(sound)
    build(sound, say=said.append)
    assert said == []
    assert "One more sentence" in (Book(sound).html / "chapters" / "two.html").read_text()
    assert "probe says 1" in before
    assert outputs_of(sound) == before


@shares_a_book
def test_unchanged_book_is_left_alone(sound):
    page = Book(sound).html / "chapters" / "two.html"
    before, said = page.stat().st_mtime_ns, []
    build(sound, say=said.append)
    assert said == ["nothing changed since the last build, which passed every gate"]
    assert page.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "name", ["_config.yml", "_toc.yml", "chapters/index.md", "chapters/_static/book.css"]
)
def test_pages_are_made_again_when_a_source_changes(tmp_path, name):
    root = make_book(tmp_path, {"index": "# Home\n"})
    before = fingerprint.sources_key(root, "key")
    (root / name).write_text("changed")
    assert fingerprint.sources_key(root, "key") != before
    assert fingerprint.sources_key(root, "other") != fingerprint.sources_key(root, "key")


def test_changed_line_in_lib_executes_chapters_again(tmp_path):
    root = make_book(tmp_path, {"index": "# Home\n", "two": HEADER + "# Two\n\n" + PROBE})
    book = Book(root)
    build(root, say=silent)
    assert "probe says 1" in (book.html / "chapters" / "two.html").read_text()
    (root / "lib" / "probe.py").write_text("VALUE = 2\n")
    build(root, say=silent)
    assert "probe says 2" in (book.html / "chapters" / "two.html").read_text()


@pytest.mark.parametrize("name", ["lib/probe.py", "lib/claims.toml", "data/curve.csv", "requirements.lock"])
def test_key_changes_with_each_watched_file(tmp_path, name):
    root = make_book(tmp_path, {"index": "# Home\n"})
    (root / "data").mkdir()
    before = fingerprint.execution_key(root)
    (root / name).write_text("VALUE = 3\n")
    assert fingerprint.execution_key(root) != before


def test_key_changes_with_models_and_not_with_bytecode(tmp_path):
    root = make_book(tmp_path, {"index": "# Home\n"})
    before = fingerprint.execution_key(root, models="gpt2")
    (root / "lib" / "__pycache__").mkdir()
    (root / "lib" / "__pycache__" / "probe.py").write_text("")
    assert fingerprint.execution_key(root, models="gpt2") == before
    assert fingerprint.execution_key(root, models="none") != before


def test_cell_that_raises_fails_every_build(tmp_path):
    root = make_book(tmp_path, {"index": HEADER + "# Home\n\n" + cell("fine = 1") + cell("1 / 0")})
    first, second = faults_of(root), faults_of(root)
    for message in (first, second):
        assert "index.md:12" in message
        assert "ZeroDivisionError" in message
    assert not Book(root).html.exists()


def test_failed_claim_fails_the_build(tmp_path):
    code = (
        "from attnorm.claims import claims\nclaim = next(iter(claims.values()))\n"
        "claim.checks(1.0, 2.0, name='a planted fault')"
    )
    message = faults_of(make_book(tmp_path, {"index": HEADER + "# Home\n\n" + cell(code)}))
    assert "index.md" in message
    assert "ClaimFailed" in message


def test_evidence_that_did_not_pass_fails_the_build_without_an_error_in_the_cell(tmp_path, capfd):
    record = {"claim": "X", "kind": "numeric", "name": "planted", "measured": 1.0, "expected": 2.0}
    record |= {"tolerance": 0.0, "passed": False, "detail": "", "model": None, "text": None, "unit": ""}
    code = (
        "from IPython.display import publish_display_data\n"
        f"publish_display_data({{'text/plain': 'no'}}, metadata={{{MIME_TYPE!r}: {record}}})"
    )
    root = make_book(tmp_path, {"index": HEADER + "# Home\n\n" + cell(code)})
    for _ in range(2):  # executed, then from the cache
        faults_of(root)
        assert "evidence 'planted' for X did not pass" in capfd.readouterr().err
    notebooks = Book(root).work / "jupyter_execute"
    assert evidence_gate.faults(notebooks) == [
        "chapters/index.html: evidence 'planted' for X did not pass",
    ]


def test_hung_chapter_fails_the_build_by_name(tmp_path):
    sleeper = HEADER + "# Sleeper\n\n" + cell("import time\ntime.sleep(100)")
    root = make_book(tmp_path, {"index": "# Home\n", "sleeper": sleeper}, timeout=1)
    assert "sleeper.md:9: a cell ran longer than 1 s" in faults_of(root)


def test_dead_kernel_fails_the_build_by_name(tmp_path):
    root = make_book(tmp_path, {"index": HEADER + "# Home\n\n" + cell("import os\nos._exit(1)")})
    assert "index.md:9: the kernel died" in faults_of(root)


def test_broken_references_of_every_kind_fail_every_build(tmp_path, capfd):
    kinds = ("ref", "doc", "numref", "eq", "cite", "prf:ref")
    text = "\n\n".join(f"{{{kind}}}`no-{kind}`" for kind in kinds)
    root = make_book(tmp_path, {"index": "# Home\n", "two": f"# Two\n\n{text}\n\n[this](#no-anchor)\n"})
    for _ in range(2):
        assert "Sphinx found faults" in faults_of(root)
        said = capfd.readouterr().err
        assert [kind for kind in kinds if f"no-{kind}" not in said] == []
        assert "no-anchor" in said


def test_reference_to_a_label_that_left_another_page_is_found(tmp_path, capfd):
    root = make_book(tmp_path, {"index": "# Home\n\nSee {ref}`there`.\n", "two": "(there)=\n# Two\n"})
    build(root, say=silent)
    page_of(root, "two").write_text("# Two\n")
    assert "Sphinx found faults" in faults_of(root)
    assert "there" in capfd.readouterr().err


PLANTED = {
    "macro": ("Then $\\nosuchmacro x$.", "macro.html: MathJax cannot read '\\\\nosuchmacro x'"),
    "brace": ("Then $\\frac{1}{2$.", "brace.html: MathJax cannot read"),
    "eqref": ("$$x = 1$$ (one)\n\nThen $\\eqref{one}$.", "eqref.html: MathJax cannot read '\\\\eqref{one}'"),
    "latex-output": (
        cell("from IPython.display import Latex\nLatex(r'$\\nosuchmacro$')"),
        "latex-output.html: MathJax cannot read '\\\\nosuchmacro'",
    ),
    "raw-tex": ("<p>the factor \\beta of attention</p>", "raw-tex.html: TeX is shown as text"),
    "empty": (
        cell("from IPython.display import HTML\nHTML('<div id=\"plot\"></div><script>1</script>')"),
        "empty.html: the output of the cell",
    ),
    "no-alt": (cell("import matplotlib.pyplot as plt\nplt.plot([0, 1]);"), "no-alt.html: <img src="),
    "static-no-alt": ("![](_static/dot.png)", "static-no-alt.html: <img src="),
    "drawing": (
        "<svg id='sketch'><path d='M0 0'/></svg>",
        'drawing.html: <svg id="sketch"> has no aria-label',
    ),
    "ids": (
        "<p id='twin'>one</p>\n\n<p id='twin'>two</p>",
        'ids.html: 2 elements have the id "twin"',
    ),
    "script": ("<script src='https://cdn.example.org/a.js'></script>", "script.html: <script src="),
    "sheet": ("<link rel='stylesheet' href='//fonts.example.org/a.css'>", "sheet.html: <link href="),
    "connect": ("<link rel='preconnect' href='https://example.org'>", "connect.html: <link href="),
    "picture": ("<img alt='a dot' src='https://example.org/a.png'>", "picture.html: <img src="),
    "frame": ("<iframe src='https://example.org/'></iframe>", "frame.html: <iframe src="),
    "style": (
        "<style>@import 'https://example.org/a.css'; p { color: red }</style>",
        "style.html: <style> asks https://example.org/a.css",
    ),
    "inline-style": (
        "<p style='background: url(https://example.org/a.png)'>text</p>",
        "inline-style.html: <p style> asks https://example.org/a.png",
    ),
    "fetch": (
        "<script>fetch('https://unpkg.com/thebe')</script>",
        "fetch.html: a script in the page names https://unpkg.com/thebe",
    ),
    "dead-link": (
        "<a href='nowhere.html'>there</a>",
        'dead-link.html: <a href="nowhere.html"> leads nowhere',
    ),
    "dead-anchor": ("<a href='ids.html#none'>there</a>", "dead-anchor.html: <a href="),
    "hidden-claim": (
        cell(
            "from attnorm.claims import ClaimFailed\nraise ClaimFailed('planted')", "tags: [raises-exception]"
        ),
        "hidden-claim.html: a cell raised ClaimFailed",
    ),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """What the gates say about one book with every fault that Sphinx lets pass."""
    pages = {
        name: f"{HEADER if 'code-cell' in text else ''}# {name}\n\n{text}\n"
        for name, (text, _) in PLANTED.items()
    }
    root = make_book(tmp_path_factory.mktemp("planted"), {"index": "# Home\n", **pages})
    dot = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
        "0000000049454e44ae426082"
    )
    (root / "chapters" / "_static" / "dot.png").write_bytes(dot)
    (root / "chapters" / "_static" / "book.css").write_text("p { src: url(https://example.org/font.woff) }")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "available_models", lambda: "")
        return root, faults_of(root)


@shares_a_book
@pytest.mark.parametrize("name", PLANTED)
def test_gate_catches_planted_fault(planted, name):
    _, message = planted
    assert PLANTED[name][1] in message


@shares_a_book
def test_gate_reads_style_sheets(planted):
    assert "_static/book.css: asks https://example.org/font.woff" in planted[1]


def test_gate_follows_the_addresses_in_the_register(tmp_path):
    page = tmp_path / "chapters" / "one.html"
    page.parent.mkdir()
    page.write_text("<p id='evidence-a'>so</p>")
    evidence = [{"name": part, "page": f"chapters/one.html#evidence-{part}"} for part in ("a", "b")]
    (tmp_path / "claims.json").write_text(json.dumps([{"id": "T1", "evidence": evidence}]))
    soups = {"chapters/one.html": BeautifulSoup(page.read_text(), "lxml")}
    fault = "claims.json: T1, 'b': chapters/one.html#evidence-b leads nowhere"
    assert links.broken(tmp_path, soups) == [fault]


@shares_a_book
def test_gates_blame_nothing_else(planted):
    """Every fault named is a planted one: no gate cries wolf at the pages' own frame."""
    lines = planted[1].splitlines()[1:]
    pages = {f"chapters/{name}.html" for name in PLANTED} | {"_static/book.css"}
    assert [line for line in lines if line.split(": ")[0] not in pages] == []
    assert not any("index.html" in line for line in lines)


def test_failed_build_leaves_published_pages_alone(tmp_path):
    root = make_book(tmp_path, {"index": "# Home\n\nfirst\n"})
    build(root, say=silent)
    page_of(root, "index").write_text("# Home\n\nsecond <p id='a'>x</p><p id='a'>y</p>\n")
    for _ in range(2):
        assert 'elements have the id "a"' in faults_of(root)
        assert "first" in (Book(root).html / "chapters" / "index.html").read_text()
    page_of(root, "index").write_text("# Home\n\nthird\n")
    build(root, say=silent)
    assert "third" in (Book(root).html / "chapters" / "index.html").read_text()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
def test_stopped_build_ends_its_kernels_and_publishes_nothing(tmp_path, monkeypatch):
    code = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(100)"
    # More chapters than run at a time: some are running, and one waits for its turn.
    others = {
        name: HEADER + "# Other\n\n" + cell("import time\ntime.sleep(100)") for name in ("two", "three")
    }
    root = make_book(tmp_path, {"index": HEADER + "# Home\n\n" + cell(code), **others})
    monkeypatch.setenv("ATTNORM_JOBS", "2")
    command = [sys.executable, "-m", "attnorm.book", "--root", str(root), "build"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        pid = root / "chapters" / "pid"
        wait_until(lambda: pid.is_file() and pid.read_text())
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert said.strip() == "stopped; nothing was published"
    assert process.returncode == 130
    wait_until(lambda: not is_running(int(pid.read_text())))
    assert not Book(root).html.exists()


def wait_until(condition, seconds: float = 60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@shares_a_book
def test_second_build_at_the_same_time_is_refused(sound):
    with _only_build(Book(sound)), pytest.raises(BuildError, match=r"another build of .* is running"):
        build(sound, say=silent)


def test_one_chapter_is_built_beside_the_book(tmp_path):
    pages = {
        "index": "# Home\n\n(home)=\n## Section\n",
        "03-three": HEADER + "# 3. Three\n\nSee {ref}`home`.\n\n" + PROBE,
    }
    root = make_book(tmp_path, pages)
    page = build_chapter(root, "3", say=silent)
    assert "probe says 1" in page.read_text()
    assert not Book(root).html.exists()
    with pytest.raises(
        ValueError, match="C=4 fits 0 pages; give a chapter number or one of: index, 03-three, end"
    ):
        build_chapter(root, "4", say=silent)


def test_chapters_run_with_one_thread_and_a_fixed_hash_seed(tmp_path):
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"]
    code = f"import os\nassert [os.environ[name] for name in {names}] == ['1', '1', '1', '0']"
    root = make_book(tmp_path, {"index": HEADER + "# Home\n\n" + cell(code)})
    assert execute(Book(root), "key", say=silent) == []


def test_old_executions_are_pruned(tmp_path):
    book = Book(make_book(tmp_path, {"index": "# Home\n"}))
    for key in ("first", "second", "third"):
        execute(book, key, say=silent)
    assert sorted(path.name for path in book.caches.iterdir()) == ["second", "third"]


@pytest.mark.parametrize("missing", ["_config.yml", "_toc.yml"])
def test_folder_without_a_book_is_refused(tmp_path, missing):
    (make_book(tmp_path, {"index": "# Home\n"}) / missing).unlink()
    with pytest.raises(ValueError, match=f"no book in .*: {missing} is missing there"):
        Book(tmp_path)
