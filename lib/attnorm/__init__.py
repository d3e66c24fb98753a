"""Normalisation in attention: schemes, dynamics, capacity and claims behind the book."""

from attnorm import capacity, measures
from attnorm.attention import attention, attention_weights
from attnorm.claims import claims
from attnorm.corpora import load_corpus
from attnorm.dynamics import Trajectory, run_layers, simulate, velocity
from attnorm.models import load_model
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
