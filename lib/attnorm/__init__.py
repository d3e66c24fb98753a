"""Normalisation in attention: schemes, dynamics, capacity and claims behind the book."""

from attnorm import capacity, measures
from attnorm.attention import attention, attention_weights
from attnorm.claims import claims
from attnorm.dynamics import Trajectory, run_layers, simulate, velocity
from attnorm.schemes import SCHEMES, Scheme
from attnorm.symmetric import equiangular

__all__ = [
    "SCHEMES",
    "Scheme",
    "Trajectory",
    "attention",
    "attention_weights",
    "capacity",
    "claims",
    "equiangular",
    "load_corpus",
    "load_model",
    "measures",
    "run_layers",
    "simulate",
    "velocity",
]


def __getattr__(name):
    # Bound late, so that `python -m attnorm.models` does not find itself imported already.
    if name == "load_model":
        from attnorm.models import load_model

        return load_model
    if name == "load_corpus":
        from attnorm.corpora import load_corpus

        return load_corpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
