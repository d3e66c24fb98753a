"""Texts: cleaned, recognised, cached as a whole or not at all, and never waited for."""

import hashlib
import time

import pytest

from attnorm import corpora, sources
from attnorm.corpora import clean_war_and_peace, load_corpus, resolve_corpus
from attnorm.sources import SourceUnavailable

FIRST = "“Well, Prince, so Genoa and Lucca are now just family estates of the\r\nBuonapartes."
LAST = "and to recognize a dependence\r\nof which we are not conscious."
HEADER = "The Project Gutenberg eBook of War and Peace\r\n*** START OF THE PROJECT GUTENBERG EBOOK ***\r\n"
FOOTER = "\r\n*** END OF THE PROJECT GUTENBERG EBOOK ***\r\nSection 1. General Terms"
FILLER = "He said _nothing_ of the\r\nkind, and rode on.\r\n\r\n" * 78_000


def gutenberg(header=HEADER, first=FIRST, filler=FILLER, last=LAST, footer=FOOTER):
    return f"\ufeff{header}CONTENTS\r\n\r\nCHAPTER I\r\n\r\n{first}\r\n\r\n{filler}{last}{footer}"


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    """An empty cache, no answers remembered, and a network that does not answer."""
    monkeypatch.setenv("ATTNORM_CACHE", str(tmp_path))
    for name in ("ATTNORM_CORPUS", "ATTNORM_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sources, "_answers", {})
    monkeypatch.setattr("requests.head", lambda *_a, **_k: (_ for _ in ()).throw(OSError("closed")))


@pytest.fixture
def gutenberg_answers(monkeypatch):
    """A network on which Project Gutenberg answers, with a download that writes what the test says."""
    monkeypatch.setattr(sources, "_answers", {corpora.GUTENBERG: True})

    def served(raw):
        def run(command, seconds, **_options):
            target = sources.Path(command[4]) / "raw.txt"
            target.write_text(raw, encoding="utf-8", newline="")

        monkeypatch.setattr(corpora, "run_bounded", run)

    return served


def files(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock"))


def test_war_and_peace_is_the_novel_alone_one_paragraph_a_line():
    lines = clean_war_and_peace(gutenberg()).split("\n")
    assert lines[0] == "“Well, Prince, so Genoa and Lucca are now just family estates of the Buonapartes."
    assert lines[1] == "He said nothing of the kind, and rode on."
    assert lines[-1] == "and to recognize a dependence of which we are not conscious."


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (gutenberg(header=HEADER.replace("War and Peace", "Anna Karenina")), "title or markers"),
        (gutenberg(footer=""), "title or markers"),
        (gutenberg(first="Well, Prince!"), "first words"),
        (gutenberg(last="conscious."), "last words"),
        (gutenberg(filler="short"), "about 3.2 million characters; this file has 1"),
        ("<html>not found</html>", "title or markers"),
    ],
)
def test_another_text_is_not_taken_for_war_and_peace(raw, message):
    with pytest.raises(ValueError, match=message):
        clean_war_and_peace(raw)


def test_a_download_is_kept_and_read_again_from_the_cache(gutenberg_answers, tmp_path, monkeypatch, capsys):
    gutenberg_answers(gutenberg())
    text, provenance = load_corpus()
    assert provenance.name == "war-and-peace"
    assert provenance.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert "War and Peace" in str(provenance)
    assert files(tmp_path) == ["war-and-peace.txt"]
    assert capsys.readouterr().out == "text: war-and-peace (Project Gutenberg answers)\n"
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    assert load_corpus("auto") == (text, provenance)
    assert capsys.readouterr().out == "text: war-and-peace (it is in the cache)\n"


def test_a_download_of_something_else_leaves_nothing_and_auto_goes_on(gutenberg_answers, tmp_path, capsys):
    gutenberg_answers("<html>sign in to this network</html>")
    with pytest.raises(SourceUnavailable, match="title or markers"):
        load_corpus("war-and-peace")
    assert files(tmp_path) == []
    assert load_corpus()[1].name == "king-james"
    line = capsys.readouterr().out
    assert line.startswith("text: king-james (war-and-peace: ")
    assert line.count("\n") == 1


def test_an_interrupted_download_leaves_nothing(gutenberg_answers, tmp_path, monkeypatch):
    def interrupted(command, seconds, **_options):
        (sources.Path(command[4]) / "raw.txt").write_text("half of the te")
        raise KeyboardInterrupt

    monkeypatch.setattr(corpora, "run_bounded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_corpus("war-and-peace")
    assert files(tmp_path) == []


def test_a_damaged_file_in_the_cache_is_named(gutenberg_answers, tmp_path):
    gutenberg_answers(gutenberg())
    load_corpus("war-and-peace")
    path = tmp_path / "corpora" / "war-and-peace.txt"
    path.write_text(path.read_text()[:-5_000])
    with pytest.raises(ValueError, match=r"war-and-peace\.txt: .*Delete it"):
        load_corpus("war-and-peace")


def test_king_james_has_no_markup_and_all_of_its_text():
    text, provenance = load_corpus("king-james")
    assert text.startswith(
        "In the beginning God created the heaven and the earth. And the earth was without form"
    )
    assert "darkness was upon the face" in text
    assert text.endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert not set("[]_<>{}*\r") & set(text)
    assert 4_100_000 < len(text) < 4_200_000
    assert "public domain" in str(provenance)


def test_auto_takes_king_james_where_nothing_else_can_be_had(capsys):
    assert load_corpus()[1].name == "king-james"
    out = capsys.readouterr().out
    assert (
        out == "text: king-james (war-and-peace is not in the cache, and Project Gutenberg does not answer)\n"
    )


def test_a_silent_network_costs_seconds(monkeypatch):
    monkeypatch.setattr("requests.head", lambda *_a, **_k: time.sleep(30))
    start = time.monotonic()
    assert load_corpus()[1].name == "king-james"
    assert time.monotonic() - start < 5
    start = time.monotonic()
    assert resolve_corpus()[0] == "king-james"
    assert time.monotonic() - start < 0.1  # asked once


def test_offline_asks_no_one(monkeypatch):
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    monkeypatch.setattr("requests.head", lambda *_a, **_k: pytest.fail("the network was asked"))
    assert resolve_corpus()[0] == "king-james"
    with pytest.raises(SourceUnavailable, match="ATTNORM_OFFLINE is set"):
        load_corpus("war-and-peace")


def test_the_environment_chooses(monkeypatch, capsys):
    monkeypatch.setenv("ATTNORM_CORPUS", "king-james")
    monkeypatch.setattr(sources, "_answers", {corpora.GUTENBERG: True})
    assert load_corpus()[1].name == "king-james"
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("ATTNORM_CORPUS", "iliad")
    with pytest.raises(
        ValueError, match="no text is called 'iliad'; there are auto, war-and-peace, king-james"
    ):
        load_corpus()
