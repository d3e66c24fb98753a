"""Checks on what callers hand in; each error says what was given and what is allowed."""

import math

import numpy as np


def finite_array(name, value, *, ndim=None):
    """``value`` as a float64 array without NaN or infinity, of ``ndim`` dimensions or more."""
    try:
        given = np.asarray(value)
        if given.dtype.kind in "cSU":
            raise ValueError(f"entries of type {given.dtype}")
        array = given.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor that needs its gradient
        kind = "complex ones" if np.iscomplexobj(value) else f"{type(value).__name__} ({error})"
        raise ValueError(f"{name} must be an array of real numbers; got {kind}") from error
    if ndim is not None and array.ndim < ndim:
        raise ValueError(f"{name} must have at least {ndim} dimensions; got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or infinity at index {_first(~np.isfinite(array))}")
    return array


def not_negative(name, value, *, ndim=None):
    """As `finite_array`, without negative entries."""
    array = finite_array(name, value, ndim=ndim)
    if array.min() < 0:
        raise ValueError(f"{name} must not be negative; got {array.min():g}")
    return array


def tokens(name, value):
    """An array ``(..., n, d)`` of tokens, none of them the zero vector."""
    array = finite_array(name, value, ndim=2)
    largest = np.abs(array).max(axis=-1)
    if not (largest > 0).all():
        raise ValueError(f"{name} must not contain zero vectors; token {_first(largest == 0)} is zero")
    # Beyond these the square of a norm leaves the range of floats.
    if not ((largest > 1e-150) & (largest < 1e150)).all():
        raise ValueError(
            f"tokens of {name} must have a size between 1e-150 and 1e150; "
            f"got {largest.min():g} to {largest.max():g}"
        )
    return array


def times(value):
    """Depths ``(T,)``: finite, not negative, strictly increasing."""
    array = finite_array("times", value)
    if array.ndim != 1:
        raise ValueError(f"times must be a one-dimensional array; got shape {array.shape}")
    if array[0] < 0:
        raise ValueError(f"times must not be negative (the start is at t = 0); got {array[0]}")
    if not (np.diff(array) > 0).all():
        raise ValueError(
            f"times must be strictly increasing; they are not at index {_first(np.diff(array) <= 0) + 1}"
        )
    return array


def number(name, value, *, low=-math.inf, above=-math.inf, high=math.inf, finite=True):
    """A real number with ``low <= value <= high`` and ``value > above``."""
    if isinstance(value, (bool, np.bool_, complex)) or not np.isscalar(value) or not np.isreal(value):
        raise ValueError(f"{name} must be a real number; got {value!r}")
    value = float(value)
    limits = (
        [f">= {low:g}"] * (low > -math.inf)
        + [f"> {above:g}"] * (above > -math.inf)
        + [f"<= {high:g}"] * (high < math.inf)
    )
    if math.isnan(value) or (finite and math.isinf(value)) or not low <= value <= high or not value > above:
        raise ValueError(
            f"{name} must be a {'finite ' * finite}number {' and '.join(limits)}".rstrip()
            + f"; got {value!r}"
        )
    return value


def integer(name, value, *, low):
    """An integer ``>= low``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ValueError(f"{name} must be an integer >= {low}; got {value!r}")
    return int(value)


def depth_function(name, value, *, low=-math.inf):
    """A number, or a callable of the depth t, as a callable whose values are checked."""
    if callable(value):
        return lambda t: number(f"{name}(t = {t:g})", value(t), low=low)
    constant = number(name, value, low=low)
    return lambda t: constant


def _first(mask):
    index = tuple(int(i) for i in np.argwhere(mask)[0])
    return index[0] if len(index) == 1 else index
