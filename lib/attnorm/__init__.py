"""Normalisation in attention: schemes, dynamics, capacity and claims behind the book."""
