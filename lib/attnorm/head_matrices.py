"""The matrices Q, K and V of trained heads, as the equations of the particles want them.

A block of a language model normalises its input and then multiplies it with weights. A direction theta is
all that a normalisation leaves, so the normalisation folds into the matrices: its gain, the length sqrt(d)
that it gives to every token, and, for LayerNorm, the projection that takes the mean off. The factor
``1/sqrt(d_head)`` of the logits goes into Q. What then stands in the exponent is ``<Q theta_j, K theta_k>``.

Left out are what no matrix can hold: biases, the small number that keeps a normalisation from dividing by
zero, and positions (for rotary ones: the two tokens are taken at the same place).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnorm import validate
from attnorm.heads import attention_blocks


@dataclass(frozen=True)
class HeadMatrices:
    """The heads of one layer, float64.

    Attributes
    ----------
    Q, K : array (..., k, d)
        Query and key matrices: ``<Q theta_j, K theta_k>`` is the logit.
    read : array (..., k, d)
        Value projection.
    write : array (..., d, k)
        Output projection of the head.
    """

    Q: np.ndarray
    K: np.ndarray
    read: np.ndarray
    write: np.ndarray

    @property
    def V(self) -> np.ndarray:
        """Value matrix (..., d, d): what reaches the residual stream is ``sum_k p_jk V theta_k``."""
        return self.write @ self.read

    def logit_singular_values(self) -> np.ndarray:
        """The singular values of ``Q^T K`` that can differ from zero, (..., k), the largest first."""
        return _product_singular_values(_transposed(self.Q), self.K)

    def value_singular_values(self) -> np.ndarray:
        """The singular values of V that can differ from zero, (..., k), the largest first."""
        return _product_singular_values(self.write, self.read)

    def value_spectrum(self) -> np.ndarray:
        """The eigenvalues of V that can differ from zero, (..., k), by falling real part.

        Those of the small matrix ``read write``; the other d - k eigenvalues of V are zero. Of a pair of
        conjugates the one in the upper half-plane comes first.
        """
        values = np.linalg.eigvals(self.read @ self.write).astype(complex)
        order = np.lexsort((-values.imag, -values.real), axis=-1)
        return np.take_along_axis(values, order, axis=-1)

    def within_unit_norms(self) -> HeadMatrices:
        """The same heads with ``Q^T K`` and V over their operator norms; a matrix that is zero stays."""
        logit = _or_one(self.logit_singular_values()[..., :1, None])
        value = _or_one(self.value_singular_values()[..., :1, None])
        return replace(self, Q=self.Q / logit, write=self.write / value)

    def seen_from(self, x0, *, identity_values: bool = False):
        """The same heads in coordinates of the space that tokens starting at `x0` can ever reach.

        Each token moves along itself and along attention vectors, which lie in the range of V. So tokens
        stay in the span of their start and of the columns of `write`; with V = I, in the span of their start.
        Written in an orthonormal basis of that span, the equations are the same and smaller.

        Parameters
        ----------
        x0 : array (..., n, d)
            Starting tokens; leading dimensions are those of the heads.
        identity_values : bool
            True for V = I.

        Returns
        -------
        start : array (..., n, m)
        Q, K : array (..., k, m)
        V : array (..., m, m), or None for V = I
        basis : array (..., d, m)
            Orthonormal columns: a reduced token y stands for ``basis @ y``.

        Raises
        ------
        ValueError
            If the shapes do not fit.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> heads = HeadMatrices(*(rng.normal(size=s) for s in ((2, 9), (2, 9), (2, 9), (9, 2))))
        >>> start, Q, K, V, basis = heads.seen_from(rng.normal(size=(3, 9)))
        >>> start.shape, Q.shape, V.shape
        ((3, 5), (2, 5), (5, 5))
        """
        x0 = validate.tokens("x0", x0)
        d = self.Q.shape[-1]
        if x0.shape[-1] != d or x0.shape[:-2] != self.Q.shape[:-2]:
            wanted = f"{(*self.Q.shape[:-2], 'n', d)}".replace("'", "")
            raise ValueError(f"x0 must have shape {wanted}, one start for each head; got {x0.shape}")
        spanning = _transposed(x0)
        if not identity_values:
            spanning = np.concatenate([spanning, self.write], axis=-1)
        basis = np.linalg.qr(spanning)[0]
        V = None if identity_values else (_transposed(basis) @ self.write) @ (self.read @ basis)
        return x0 @ basis, self.Q @ basis, self.K @ basis, V, basis


def head_matrices(model) -> Iterator[HeadMatrices]:
    """Yield the matrices of a model's attention heads, layer by layer.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        GPT-2, or a model with Llama's blocks. Keys and values that heads share are repeated.

    Yields
    ------
    HeadMatrices
        With leading dimension (heads,). One layer is in memory at a time.

    Raises
    ------
    ValueError
        If the model is of another kind, or its queries, keys or block inputs go through a map that is not a
        LayerNorm or an RMSNorm (normalised queries, for example).

    Notes
    -----
    For LayerNorm the mean is taken off what a head writes, too: every later block takes it off again, so the
    model never sees it, and directions stay in the space of mean zero.
    """
    blocks, attention_name, *_ = attention_blocks(model)
    config = model.config
    for block in blocks:
        attention = getattr(block, attention_name)
        if hasattr(attention, "q_norm") or hasattr(attention, "k_norm"):
            raise ValueError(
                f"{type(model).__name__} normalises queries or keys: no matrices give its logits"
            )
        if attention_name == "attn":
            fold = _normalisation(block.ln_1)
            # Conv1D keeps (inputs, outputs), queries, keys and values side by side.
            parts = np.split(_array(attention.c_attn.weight).T, 3)
            out = _array(attention.c_proj.weight).T
        else:
            fold = _normalisation(block.input_layernorm)
            parts = [_array(getattr(attention, f"{name}_proj").weight) for name in "qkv"]
            out = _array(attention.o_proj.weight)
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        query, key, value = (
            np.repeat(part.reshape(count, -1, part.shape[1]), heads // count, axis=0)
            for part, count in zip(parts, (heads, groups, groups), strict=True)
        )
        write = out.reshape(len(out), heads, -1).swapaxes(0, 1)
        yield HeadMatrices(
            Q=float(attention.scaling) * fold(query),
            K=fold(key),
            read=fold(value),
            write=write - write.mean(axis=1, keepdims=True) if fold.centres else write,
        )


@dataclass(frozen=True)
class _Fold:
    """Weights (..., k, d) on a normalised token, as weights on its direction."""

    gain: np.ndarray
    centres: bool

    def __call__(self, weights):
        folded = np.sqrt(len(self.gain)) * weights * self.gain
        return folded - folded.mean(axis=-1, keepdims=True) if self.centres else folded


def _normalisation(module) -> _Fold:
    """Gain of a LayerNorm or an RMSNorm, recognised by what it does to a vector."""
    import torch

    gain = _array(module.weight)
    probe = np.random.default_rng(0).normal(size=len(gain)) + 1.0
    bias = getattr(module, "bias", None)
    with torch.no_grad():
        found = _array(module(torch.from_numpy(probe).to(module.weight)[None])[0])
    found = found - (0.0 if bias is None else _array(bias))
    for centres in (True, False):
        direction = probe - probe.mean() if centres else probe
        expected = np.sqrt(len(gain)) * gain * direction / np.linalg.norm(direction)
        if np.allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(gain).max()):
            return _Fold(gain, centres)
    raise ValueError(f"{type(module).__name__} is neither a LayerNorm nor an RMSNorm with a gain")


def _array(parameter) -> np.ndarray:
    return parameter.detach().cpu().double().numpy()


def _transposed(matrix):
    return np.swapaxes(matrix, -1, -2)


def _product_singular_values(tall, wide):
    """Of ``tall @ wide`` with tall (..., d, k) and wide (..., k, d), from k x k matrices."""
    left = np.linalg.qr(tall, mode="r")
    right = np.linalg.qr(_transposed(wide), mode="r")
    return np.linalg.svd(left @ _transposed(right), compute_uv=False)


def _or_one(values):
    return np.where(values > 0, values, 1.0)
