"""Normalisation in attention: schemes, dynamics, capacity and claims behind the book."""

from attnorm import measures
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
    "claims",
    "equiangular",
    "measures",
    "run_layers",
    "simulate",
    "velocity",
]
