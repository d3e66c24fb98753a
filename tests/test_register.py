"""The claims register: what the pages executed, complete or loudly incomplete, the same in every build."""

import io
import json
import re
from pathlib import Path

import nbformat
import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from attnorm.book import ledger
from attnorm.evidence import MIME_TYPE, Evidence
from attnorm.statements import Statement


def statement(claim="X1", **changes):
    entry = {
        "id": claim,
        "paper": "this book",
        "label": "Theorem 7",
        "title": "An example",
        "printed": r"x \le y",
        "verdict": "holds",
        "theorem": True,
        "chapter": "chapters/example",
    }
    return Statement(**(entry | changes))


def evidence(kind="numeric", name=None, claim="X1", **changes):
    entry = {
        "claim": claim,
        "kind": kind,
        "name": name or f"a {kind}",
        "measured": 1.25,
        "expected": 1.0,
        "tolerance": 0.5,
        "passed": True,
    }
    return Evidence(**(entry | changes))


COMPLETE = [evidence("symbolic"), evidence("numeric"), evidence("control")]


def entries(*pieces, page="chapters/example"):
    return [ledger.Entry(page, piece) for piece in pieces]


def notebook(*pieces, tags=(), text="# Title"):
    """An executed notebook, as the builder writes it, with one cell for each piece of evidence."""
    cells = [nbformat.v4.new_markdown_cell(text)]
    for piece in pieces:
        output = nbformat.v4.new_output(
            "display_data",
            {"text/plain": piece.plain(), "text/html": piece.html()},
            metadata={MIME_TYPE: piece.record()},
        )
        cells.append(nbformat.v4.new_code_cell("1", outputs=[output], metadata={"tags": list(tags)}))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number}"
    return nbformat.writes(book)


# --- the data ---


def test_evidence_survives_the_way_through_a_notebook(tmp_path):
    path = tmp_path / "page.ipynb"
    path.write_text(notebook(*COMPLETE), encoding="utf-8")
    assert ledger.collect({"chapters/example": path}) == entries(*COMPLETE)


def test_a_complete_register_has_no_faults():
    assert ledger.faults([statement()], entries(*COMPLETE)) == []


@pytest.mark.parametrize(
    ("kind", "lack"), [("symbolic", "a derivation"), ("numeric", "a check"), ("control", "a control")]
)
def test_what_a_claim_lacks_is_reported(kind, lack):
    rest = [piece for piece in COMPLETE if piece.kind != kind]
    (fault,) = ledger.faults([statement()], entries(*rest))
    assert "X1" in fault
    assert lack in fault


def test_a_claim_without_evidence_is_reported():
    (fault,) = ledger.faults([statement()], [])
    assert "X1 lacks evidence" in fault


def test_only_theorems_that_stand_need_a_derivation():
    rest = entries(evidence("numeric"), evidence("control"))
    assert ledger.faults([statement(theorem=False)], rest) == []
    assert ledger.faults([statement(verdict="refuted", corrected="x")], rest) == []
    assert ledger.faults([statement(verdict="corrected", corrected="x")], rest) != []


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (evidence("numeric", "second", passed=False), "did not pass"),
        (evidence("numeric", "second", claim="X2"), "no such claim"),
        (evidence("model", "A numeric"), "used twice"),
    ],
)
def test_a_faulty_piece_of_evidence_is_reported(extra, message):
    found = ledger.faults([statement()], entries(*COMPLETE, extra))
    assert len(found) == 1
    assert message in found[0]


def test_one_name_on_two_pages_is_reported():
    twice = entries(*COMPLETE) + entries(evidence("numeric"), page="chapters/other")
    (fault,) = ledger.faults([statement()], twice)
    assert "chapters/other" in fault
    assert "used twice" in fault


def test_evidence_that_the_page_does_not_show_is_reported(tmp_path):
    path = tmp_path / "page.ipynb"
    path.write_text(notebook(*COMPLETE, tags=["remove-output"]), encoding="utf-8")
    found = ledger.faults([statement()], ledger.collect({"chapters/example": path}))
    assert len(found) == len(COMPLETE)
    assert "removed from the page" in found[0]


def test_missing_evidence_is_no_fault_when_one_page_was_built():
    assert ledger.faults([statement()], [], complete=False) == []


def test_json_has_the_documented_form():
    model = evidence("model", "on heads", model="smollm2-135m", expected=None, tolerance=None, text="a text")
    text = ledger.to_json([statement()], entries(*COMPLETE, model), link=lambda page: f"{page}.html")
    (claim,) = json.loads(text)
    assert set(claim) == {"id", "paper", "label", "title", "printed", "verdict", "evidence"}
    for piece in claim["evidence"]:
        assert set(piece) == {
            "kind",
            "name",
            "measured",
            "expected",
            "tolerance",
            "passed",
            "page",
            "model",
        }
    assert claim["evidence"][1]["page"] == "chapters/example.html#evidence-X1-a-numeric"
    assert [piece["model"] for piece in claim["evidence"]] == [None, None, None, "smollm2-135m"]


# --- the pages ---


class Site:
    """A small book in a folder, built in this process with Sphinx and myst-nb."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.page("index", "# Start\n\n```{claims-summary}\n```\n\n```{toctree}\nregister\nexample\n```\n")
        self.page("register", "# Register\n\n```{claims-register} this book\n```\n")
        self.page("example.ipynb", notebook(*COMPLETE))

    def page(self, name, text):
        (self.folder / (name if "." in name else f"{name}.md")).write_text(text, encoding="utf-8")

    def build(self):
        """Build what changed; return the warnings."""
        warnings = io.StringIO()
        with docutils_namespace():
            app = Sphinx(
                srcdir=self.folder,
                confdir=None,
                outdir=self.folder / "_build" / "html",
                doctreedir=self.folder / "_build" / "doctrees",
                buildername="html",
                confoverrides={
                    "extensions": ["myst_nb", "attnorm.book.register"],
                    "nb_execution_mode": "off",
                    "exclude_patterns": ["_build"],
                },
                status=None,
                warning=warnings,
            )
            app.build()
        return warnings.getvalue()

    def read(self, name):
        return (self.folder / "_build" / "html" / name).read_text(encoding="utf-8")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr("attnorm.book.register._statements", lambda: [statement()])
    monkeypatch.setattr("attnorm.book.register._papers", lambda: {"this book": {"title": "Own", "key": ""}})
    return Site(tmp_path)


def test_the_pages_show_every_piece_of_evidence_with_a_link_that_leads_to_it(site):
    assert site.build() == ""
    page = site.read("register.html")
    for piece in COMPLETE:
        assert f'href="example.html#{piece.anchor}"' in page
        assert f'id="{piece.anchor}"' in site.read("example.html")
    assert r"\[x \le y\]" in page
    assert 'href="#claim-X1"' in page
    assert 'id="claim-X1"' in page
    assert re.search(r"attnorm-verdict-holds[^>]*>(<span[^>]*>)?holds", page)
    assert "1 identity, 1 check, 1 control" in page


def test_each_line_of_evidence_leads_to_its_claim(site):
    site.build()
    page = site.read("example.html")
    assert page.count('<a href="register.html#claim-X1"><code>X1</code></a></div>') == len(COMPLETE)


def test_the_summary_counts_and_leads_to_the_register(site):
    site.build()
    page = site.read("index.html")
    row = re.sub(r"<[^>]+>", " ", page[page.index("<tbody>") : page.index("</tbody>")]).split()
    assert row == ["Own", "1", "0", "0", "0", "3", "1"]
    assert 'href="register.html">Own' in page


def test_the_errata_list_what_does_not_hold_as_printed_and_nothing_else(site, monkeypatch):
    wrong = statement("X2", title="A slip", verdict="corrected", corrected=r"x < y", theorem=False)
    monkeypatch.setattr("attnorm.book.register._statements", lambda: [statement(), wrong])
    pieces = [evidence(kind, claim="X2") for kind in ("numeric", "control")]
    site.page("example.ipynb", notebook(*COMPLETE, *pieces))
    site.page("register", "# Register\n\n```{claims-register} this book\n```\n\n[](errata.md)\n")
    site.page("errata", "---\norphan: true\n---\n# Errata\n\n```{claims-errata} this book\n```\n")
    assert site.build() == ""
    page = site.read("errata.html")
    assert page.count('class="attnorm-claim docutils container"') == 1
    assert "A slip" in page
    assert r"\[x < y\]" in page.replace("&lt;", "<")
    assert 'href="register.html#claim-X2"' in page
    assert 'href="chapters/example.html"' in page


def test_errata_of_a_paper_without_any_are_a_warning(site):
    site.page(
        "index", "# Start\n\n```{claims-errata} this book\n```\n\n```{toctree}\nregister\nexample\n```\n"
    )
    assert "every claim of this book holds as printed" in site.build()


def test_claims_json_is_the_same_after_an_unchanged_rebuild(site):
    site.build()
    first = site.read("claims.json")
    assert site.build() == ""
    assert site.read("claims.json") == first
    assert len(json.loads(first)[0]["evidence"]) == len(COMPLETE)


def test_register_and_summary_follow_a_change_on_another_page(site):
    site.build()
    site.page("example.ipynb", notebook(*COMPLETE, evidence("model", "newly measured", model="m")))
    site.build()
    assert "newly measured" in site.read("register.html")
    assert "newly measured" in site.read("claims.json")
    summary = site.read("index.html")
    assert "<p>4</p>" in summary[summary.index("<tbody>") :]


def test_evidence_of_a_page_that_is_gone_does_not_stay(site):
    site.build()
    (site.folder / "example.ipynb").unlink()
    site.page("example", "# Not a notebook any more\n")
    assert "X1 lacks evidence" in site.build()
    assert json.loads(site.read("claims.json"))[0]["evidence"] == []


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (COMPLETE[:2], "lacks a control"),
        ([*COMPLETE, evidence("numeric", "failing", passed=False)], "did not pass"),
    ],
)
def test_a_fault_is_a_warning_also_when_nothing_changed(site, pieces, message):
    site.page("example.ipynb", notebook(*pieces))
    assert message in site.build()
    assert message in site.build()


def test_a_paper_whose_claims_no_page_shows_is_a_warning(site, monkeypatch):
    both = [statement(), statement("X2", paper="another", theorem=False)]
    monkeypatch.setattr("attnorm.book.register._statements", lambda: both)
    assert "no page shows the claims of another" in site.build()


@pytest.mark.slow
def test_a_kernel_records_evidence_and_takes_a_cell_that_is_run_again(tmp_path):
    """The whole way: a real kernel, one cell run twice, and another cell with the same name."""
    from nbclient import NotebookClient

    load = "from attnorm import claims\nclaim = claims['B-constants']"
    check = "claim.checks(1, 1, name='one')"
    twice = f"{check}  # another cell"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in (load, check, check, twice)])
    NotebookClient(book, timeout=120, allow_errors=True).execute(cwd=str(tmp_path))
    _, first, again, other = book.cells
    assert first.outputs[0].metadata[MIME_TYPE]["anchor"] == "evidence-B-constants-one"
    assert [out.output_type for out in again.outputs] == ["display_data"]
    assert other.outputs[0].ename == "ValueError"
