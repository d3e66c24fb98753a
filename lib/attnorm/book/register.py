"""The claims register in the pages: three directives, ``claims.json``, warnings that stop a strict build.

``{claims-register} PAPER`` shows every claim of one paper with its evidence, ``{claims-errata} PAPER`` those
that do not hold as printed; ``{claims-summary}`` is the table for the landing page. All are filled after all
notebooks have been read, and written anew in every build, since a change on any page may change them.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from attnorm.book import ledger
from attnorm.book.register_pages import claim_block, erratum_block, overview_table, summary_table

# The end of the line that attnorm.evidence shows.
_CLAIM_OF_LINE = re.compile(r"<code>(?P<id>[\w.-]+)</code>(?=</div>$)")

_logger = logging.getLogger(__name__)


class ClaimsPlaceholder(nodes.General, nodes.Element):
    """Stands in the page until all evidence is known."""


class _ClaimsRegister(SphinxDirective):
    """Every claim of one paper: a table, then statement and evidence of each."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        paper = self.arguments[0]
        # Metadata of a page is kept, merged and purged by Sphinx itself.
        self.env.metadata[self.env.docname].setdefault("claims_register", []).append(paper)
        return [ClaimsPlaceholder(paper=paper)]


class _ClaimsErrata(SphinxDirective):
    """The claims of one paper that do not hold as printed: both versions, and where each is examined."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        self.env.metadata[self.env.docname]["claims_errata"] = True
        return [ClaimsPlaceholder(errata=self.arguments[0])]


class _ClaimsSummary(SphinxDirective):
    """Verdicts and evidence of each paper in one small table."""

    def run(self):
        self.env.metadata[self.env.docname]["claims_summary"] = True
        return [ClaimsPlaceholder()]


class _Register:
    """Evidence of the build that is running, and where in the pages the register of each paper stands."""

    def __init__(self):
        self.entries: list[ledger.Entry] = []
        self.homes: dict[str, str] = {}

    def gather(self, app, env):
        """After all pages are read: collect, report faults, and ask for the register pages to be written."""
        folder = Path(env.mystnb_config.output_folder)
        # Notebooks of pages that are gone, or are no notebooks any more, stay in the folder.
        pages = [page for page in sorted(env.found_docs) if "kernelspec" in env.metadata[page]]
        paths = {page: folder / f"{page}.ipynb" for page in pages}
        self.entries = ledger.collect({page: path for page, path in paths.items() if path.is_file()})
        shown = {page: env.metadata[page].get("claims_register", []) for page in sorted(env.found_docs)}
        self.homes = {paper: page for page, papers in shown.items() for paper in papers}
        for fault in ledger.faults(_statements(), self.entries, complete=bool(self.homes)):
            _logger.warning(fault, type="claims")
        if self.homes:
            missing = {statement.paper for statement in _statements()} - set(self.homes)
            for paper in sorted(missing):
                _logger.warning("no page shows the claims of %s", paper, type="claims")
        also = ("claims_summary", "claims_errata")
        return [page for page in shown if shown[page] or any(env.metadata[page].get(key) for key in also)]

    def fill(self, app, doctree, docname):
        """Put tables and claims in the place of the placeholders of one page."""

        def link(page):
            return app.builder.get_relative_uri(docname, page)

        for placeholder in list(doctree.findall(ClaimsPlaceholder)):
            if "paper" in placeholder:
                placeholder.replace_self(self._claims_of(placeholder["paper"], link, docname))
            elif "errata" in placeholder:
                placeholder.replace_self(self._errata_of(placeholder["errata"], link, docname))
            else:
                homes = {paper: link(page) for paper, page in self.homes.items()}
                placeholder.replace_self(summary_table(_papers(), _statements(), self.entries, homes.get))
        self._link_evidence(doctree, link)

    def _link_evidence(self, doctree, link):
        """Lead from each line of evidence to its claim in the register; a notebook alone has no such page."""
        homes = {s.id: self.homes[s.paper] for s in _statements() if s.paper in self.homes}
        for raw in list(doctree.findall(nodes.raw)):
            claim = _CLAIM_OF_LINE.search(raw.astext())
            if claim and claim["id"] in homes:
                address = f"{link(homes[claim['id']])}#claim-{claim['id']}"
                text = f'{raw.astext()[: claim.start()]}<a href="{address}">{claim.group()}</a></div>'
                raw.replace_self(nodes.raw("", text, format="html", classes=raw["classes"]))

    def _claims_of(self, paper, link, docname):
        statements = [statement for statement in _statements() if statement.paper == paper]
        if not statements:
            _logger.warning("claims.toml has no claims of %s", paper, location=docname, type="claims")
            return []
        by_claim = {s.id: [e for e in self.entries if e.evidence.claim == s.id] for s in statements}
        blocks = (claim_block(statement, by_claim[statement.id], link) for statement in statements)
        return [overview_table(statements, by_claim), *blocks]

    def _errata_of(self, paper, link, docname):
        wrong = [s for s in _statements() if s.paper == paper and s.corrected]
        if not wrong:
            _logger.warning("every claim of %s holds as printed", paper, location=docname, type="claims")
            return []
        home = link(self.homes[paper]) if paper in self.homes else None
        return [erratum_block(statement, home, link) for statement in wrong]

    def publish(self, app, exception):
        """Write claims.json beside the pages."""
        if exception is None and app.builder.format == "html":
            text = ledger.to_json(_statements(), self.entries, app.builder.get_target_uri)
            Path(app.outdir, "claims.json").write_text(text, encoding="utf-8")


def _statements():
    from attnorm.claims import claims

    return [claim.statement for claim in claims.values()]


def _papers():
    from attnorm.claims import claims

    return claims.papers


def _no_visit(translator, node):
    raise nodes.SkipNode


def setup(app):
    """Register directives and events with Sphinx."""
    app.setup_extension("attnorm.book.times")
    register = _Register()
    app.add_node(ClaimsPlaceholder, html=(_no_visit, None), latex=(_no_visit, None), text=(_no_visit, None))
    app.add_directive("claims-register", _ClaimsRegister)
    app.add_directive("claims-errata", _ClaimsErrata)
    app.add_directive("claims-summary", _ClaimsSummary)
    app.connect("env-updated", register.gather)
    app.connect("doctree-resolved", register.fill)
    app.connect("build-finished", register.publish)
    app.connect("builder-inited", _add_style)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _add_style(app):
    app.config.html_static_path.append(str(Path(__file__).with_name("static")))
    app.add_css_file("claims.css")
