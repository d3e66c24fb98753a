"""What a head looks at: the token before, the first, the one after an earlier copy; and how widely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnorm.heads import each_layer


@dataclass(frozen=True)
class Patterns:
    """One number per head, each an array (layers, heads).

    Attributes
    ----------
    previous_token : array
        Mean weight on token i - 1, over the rows i that have one.
    first_token : array
        Mean weight on the first token, over the rows i beyond the second.
    entropy : array
        Mean entropy of a row over the largest that it could have, ln of the number of tokens it sees; 0..1.
    induction : array
        Mean weight on the token that followed the earlier copy of token i, in a window of random tokens that
        is written twice (Olsson et al. 2022).
    """

    previous_token: np.ndarray
    first_token: np.ndarray
    entropy: np.ndarray
    induction: np.ndarray


def patterns(model, windows, *, seed: int = 0) -> Patterns:
    """Measure every head of a model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        See `attnorm.heads.capture`.
    windows : torch.LongTensor (count, L)
        Windows of a text, L >= 4; a row counts once. Induction is measured on as many windows of random
        tokens, of the same length and taken from the tokens that occur in `windows`.
    seed : int
        Of the random tokens.

    Raises
    ------
    ValueError
        If `windows` is not of that shape.
    """
    import torch

    if not torch.is_tensor(windows) or windows.ndim != 2 or windows.shape[1] < 4:
        given = tuple(windows.shape) if torch.is_tensor(windows) else type(windows).__name__
        raise ValueError(f"windows must be a tensor of shape (count, L) with L >= 4; got {given}")
    half = windows.shape[1] // 2
    rng = np.random.default_rng(seed)
    once = rng.choice(np.unique(windows.numpy()), size=(len(windows), half))
    twice = torch.from_numpy(np.concatenate([once, once], axis=1))
    on_text = np.array(
        [each_layer(model, window, lambda layer: _on_text(layer.weights)) for window in windows]
    )
    on_copies = np.array(
        [each_layer(model, window, lambda layer: _induction(layer.weights)) for window in twice]
    )
    previous, first, entropy = np.moveaxis(on_text.mean(axis=0), 1, 0)
    return Patterns(previous, first, entropy, on_copies.mean(axis=0))


def _on_text(weights):
    import torch

    rows = torch.arange(1, weights.shape[-1])
    previous = weights.diagonal(-1, -2, -1).mean(-1)
    first = weights[:, 2:, 0].mean(-1)  # in row 1 the first token is also the one before
    entropy = (torch.special.entr(weights).sum(-1)[:, 1:] / torch.log(rows + 1.0)).mean(-1)
    return torch.stack([previous, first, entropy]).double().numpy()


def _induction(weights):
    half = weights.shape[-1] // 2
    # Row half + k repeats token k, and what followed that is token k + 1: k + 1 - (half + k) = 1 - half.
    return weights[:, half:].diagonal(1, -2, -1)[:, :half].mean(-1).double().numpy()
