"""How the claims register looks: docutils nodes for tables and claims."""

from __future__ import annotations

from docutils import nodes

from attnorm.book.ledger import KIND_NAMES, count, tally
from attnorm.statements import VERDICTS


def overview_table(statements, by_claim) -> nodes.table:
    """One row a claim: title, place in the paper, verdict, evidence in numbers."""
    rows = [
        [
            _link(statement.title, f"#claim-{statement.id}"),
            nodes.Text(statement.label),
            verdict_badge(statement.verdict),
            nodes.Text(_counts(by_claim[statement.id])),
        ]
        for statement in statements
    ]
    return table(("Claim", "In the paper", "Verdict", "Evidence"), (40, 22, 14, 24), rows)


def summary_table(papers, statements, entries, link) -> nodes.table:
    """One row a paper: how many of its claims got each verdict, and on how much evidence.

    `link` turns a paper into the address of its register, or None where no page shows it.
    """
    rows = []
    for paper, facts in papers.items():
        own = [statement for statement in statements if statement.paper == paper]
        evidence = [e for e in entries if e.evidence.claim in {statement.id for statement in own}]
        address = link(paper)
        name = _link(facts["title"], address) if address else nodes.Text(facts["title"])
        verdicts = [sum(statement.verdict == verdict for statement in own) for verdict in VERDICTS]
        controls = sum(e.evidence.kind == "control" for e in evidence)
        rows.append([name, *(nodes.Text(str(k)) for k in (*verdicts, len(evidence), controls))])
    head = ("Source", *(verdict.capitalize() for verdict in VERDICTS), "Evidence", "Of which controls")
    return table(head, (40, 10, 10, 10, 10, 10, 10), rows)


def claim_block(statement, entries, link) -> nodes.container:
    """Title, statement as printed and as it holds, and all evidence with links to where it was computed."""
    block = nodes.container(classes=["attnorm-claim"], ids=[f"claim-{statement.id}"])
    head = nodes.paragraph(classes=["attnorm-claim-title"])
    head += [nodes.strong(text=statement.title), nodes.Text(" "), verdict_badge(statement.verdict)]
    block += head
    place = nodes.paragraph(classes=["attnorm-claim-place"])
    place += [nodes.Text(f"{statement.label}. Name in the register: "), nodes.literal(text=statement.id)]
    block += place
    block += _formula(statement.printed)
    if statement.corrected:
        block += nodes.paragraph(text="The version that holds:")
        block += _formula(statement.corrected)
    if entries:
        evidence = nodes.bullet_list(classes=["attnorm-claim-evidence"])
        for entry in entries:
            evidence += nodes.list_item("", _evidence_line(entry, link))
        block += evidence
    else:
        block += nodes.paragraph(text="No evidence yet.")
    return block


def erratum_block(statement, register, link) -> nodes.container:
    """A statement as printed and as it holds; `register` is the page that shows its evidence, if any does."""
    block = nodes.container(classes=["attnorm-claim"], ids=[f"erratum-{statement.id}"])
    head = nodes.paragraph(classes=["attnorm-claim-title"])
    head += [nodes.strong(text=statement.title), nodes.Text(" "), verdict_badge(statement.verdict)]
    block += head
    block += nodes.paragraph(text=f"{statement.label}, as printed or as it is often read:")
    block += _formula(statement.printed)
    block += nodes.paragraph(text="The version that holds:")
    block += _formula(statement.corrected)
    places = nodes.paragraph(classes=["attnorm-claim-place"])
    places += _link("Derivation and counterexample", link(statement.chapter))
    if register is not None:
        places += [nodes.Text(", "), _link("all evidence", f"{register}#claim-{statement.id}")]
    block += places
    return block


def verdict_badge(verdict: str) -> nodes.inline:
    """The word itself in a frame; its colour is a second cue."""
    return nodes.inline(text=verdict, classes=["attnorm-verdict", f"attnorm-verdict-{verdict}"])


def _evidence_line(entry, link) -> nodes.paragraph:
    evidence = entry.evidence
    line = nodes.paragraph()
    mark = "✓ passed, " if evidence.passed is True else "✗ FAILED, "
    line += nodes.Text(mark + KIND_NAMES[evidence.kind][0] + " ")
    line += _link(evidence.name, f"{link(entry.page)}#{evidence.anchor}")
    line += nodes.Text(f": {evidence.finding()}")
    return line


def _counts(entries) -> str:
    return ", ".join(count(number, kind) for kind, number in tally(entries).items()) or "none yet"


def _formula(latex: str) -> nodes.math_block:
    return nodes.math_block(latex, latex, nowrap=False, number=None, label=None)


def _link(text: str, address: str) -> nodes.reference:
    return nodes.reference("", text, refuri=address, internal=True)


def table(head, widths, rows) -> nodes.table:
    """A table of one head row and `rows` of inline nodes; `widths` are shares of its width."""
    whole = nodes.table(classes=["attnorm-claims"])
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=width) for width in widths]
    group += nodes.thead("", _row(nodes.Text(text) for text in head))
    group += nodes.tbody("", *(_row(cells) for cells in rows))
    whole += group
    return whole


def _row(cells) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        paragraph = nodes.paragraph()
        paragraph += cell
        row += nodes.entry("", paragraph)
    return row
