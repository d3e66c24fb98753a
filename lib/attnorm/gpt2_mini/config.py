"""The one file that decides how gpt2-mini comes out."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Stage:
    """Training steps on windows of one length."""

    context: int
    steps: int


@dataclass(frozen=True)
class Config:
    """What ``training.toml`` says; see the comments there.

    Attributes
    ----------
    digest : str
        Checksum of what decides the weights: a checkpoint belongs to one digest.
    """

    seed: int
    threads: int
    training: str
    held_out: str
    vocabulary: int
    layers: int
    heads: int
    width: int
    context: int
    learning_rate: float
    warm_up: float
    decay: float
    betas: tuple[float, float]
    weight_decay: float
    clip: float
    batch_tokens: int
    every: int
    checkpoint_every: int
    stages: tuple[Stage, ...]

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def digest(self) -> str:
        # How often something is written does not change the weights.
        decides = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "checkpoint_every"]
        return hashlib.sha256(repr(decides).encode()).hexdigest()

    def context_at(self, step: int) -> int:
        """Length of the windows of step 0, 1, ..."""
        for stage in self.stages:
            if step < stage.steps:
                return stage.context
            step -= stage.steps
        raise ValueError(f"there are {self.steps} steps")

    def tokens_after(self, step: int) -> int:
        """Tokens read in the first `step` steps."""
        contexts = (self.context_at(s) for s in range(step))
        return sum(self.batch_tokens // context * context for context in contexts)

    def learning_rate_at(self, step: int) -> float:
        """Linear rise, plateau, linear fall."""
        done = (step + 1) / self.steps
        rise = done / self.warm_up if self.warm_up else 1.0
        fall = (1 - step / self.steps) / self.decay if self.decay else 1.0
        return self.learning_rate * min(rise, 1.0, fall)


def read_config(path: Path) -> Config:
    """Read ``training.toml``.

    Raises
    ------
    ValueError
        Naming the file, and the key that is missing, unknown or out of range.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        stages = tuple(Stage(**stage) for stage in tables.pop("stage", []))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    except TypeError as error:
        raise ValueError(f"{path}: each [[stage]] needs context and steps, and nothing else") from error
    flat = {}
    for key, value in tables.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    if "betas" in flat:
        flat["betas"] = tuple(flat["betas"])
    known = {f.name for f in fields(Config)} - {"stages"}
    if wrong := sorted(known ^ set(flat)):
        raise ValueError(f"{path}: missing or unknown: {', '.join(wrong)}")
    config = Config(**flat, stages=stages)
    whole = [
        "threads",
        "vocabulary",
        "layers",
        "heads",
        "width",
        "context",
        "batch_tokens",
        "every",
        "checkpoint_every",
    ]
    wrong = [name for name in whole if type(flat[name]) is not int or flat[name] < 1]
    wrong += [f"{key} of a stage" for s in stages for key, n in vars(s).items() if type(n) is not int]
    if wrong:
        raise ValueError(f"{path}: must be a whole number of at least 1: {', '.join(wrong)}")
    if not config.learning_rate > 0:
        raise ValueError(f"{path}: learning_rate must be above zero; got {config.learning_rate}")
    if not stages or min(stage.steps for stage in stages) < 1:
        raise ValueError(f"{path}: there must be stages of at least one step")
    for stage in stages:
        if not 2 <= stage.context <= config.context:
            raise ValueError(
                f"{path}: a stage's context must lie in 2..{config.context}; got {stage.context}"
            )
    if config.width % config.heads:
        raise ValueError(f"{path}: width {config.width} is no multiple of {config.heads} heads")
    if config.batch_tokens < max(stage.context for stage in stages):
        raise ValueError(f"{path}: batch_tokens must hold at least one window of every stage")
    if config.checkpoint_every % config.every:
        raise ValueError(f"{path}: checkpoint_every must be a multiple of every")
    return config
