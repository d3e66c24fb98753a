"""Matrices of trained heads: the model's own logits and outputs, in the coordinates of the theory."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from attnorm import attention_weights, simulate
from attnorm.head_matrices import HeadMatrices, head_matrices
from attnorm.heads import each_layer
from attnorm.schemes import unit
from tiny_models import tiny

WINDOW = torch.arange(24) * 7 % 251
both = pytest.mark.parametrize("kind", ["gpt2", "llama"])
# Llama's softmax is computed in float32 whatever the dtype of the model.
ROUNDING = {"gpt2": 1e-12, "llama": 1e-6}


def bare(kind):
    """A model without what no matrix can hold: biases, epsilon, positions."""
    model = tiny(kind, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or ".wpe." in name:
                parameter.zero_()
    for module in model.modules():
        for name in ("eps", "variance_epsilon"):
            if hasattr(module, name):
                setattr(module, name, 0.0)
    if kind == "llama":
        same_place = lambda x, position_ids: (torch.ones_like(x[..., :8]), torch.zeros_like(x[..., :8]))  # noqa: E731
        model.model.rotary_emb.forward = same_place
    return model


def directions(kind, hidden):
    x = hidden.double().numpy()
    return unit(x - x.mean(axis=-1, keepdims=True) if kind == "gpt2" else x)


def heads_of(rng, lead, k=2, d=7):
    return HeadMatrices(*(rng.normal(size=(*lead, *shape)) for shape in ((k, d), (k, d), (k, d), (d, k))))


@both
def test_the_logits_are_those_of_the_model(kind):
    """With every direction of a window, all heads, all layers: the softmax is the model's."""
    model = bare(kind)
    layers = each_layer(model, WINDOW, lambda layer: (layer.hidden, layer.weights))
    for (hidden, weights), heads in zip(layers, head_matrices(model), strict=True):
        theta = np.broadcast_to(directions(kind, hidden), (len(heads.Q), *hidden.shape))
        ours = attention_weights(theta, Q=heads.Q, K=heads.K, causal=True)
        np.testing.assert_allclose(ours, weights.double().numpy(), rtol=0, atol=ROUNDING[kind])


@both
def test_the_values_add_up_to_what_the_block_writes(kind):
    """Over heads, sum_k p_jk V theta_k is the output of the attention block, up to its mean for LayerNorm."""
    model = bare(kind)
    blocks = model.base_model.h if kind == "gpt2" else model.base_model.layers
    written = []
    hooks = [
        (block.attn if kind == "gpt2" else block.self_attn).register_forward_hook(
            lambda _m, _a, out: written.append(out[0][0])
        )
        for block in blocks
    ]
    layers = each_layer(model, WINDOW, lambda layer: (layer.hidden, layer.weights))
    for hook in hooks:
        hook.remove()
    for (hidden, weights), heads, out in zip(layers, head_matrices(model), written, strict=True):
        expected = out.double().numpy()
        if kind == "gpt2":
            expected = expected - expected.mean(axis=-1, keepdims=True)
        values = directions(kind, hidden) @ np.swapaxes(heads.V, -1, -2)
        found = (weights.double().numpy() @ values).sum(axis=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@both
def test_one_layer_at_a_time_with_one_matrix_for_each_head(kind):
    model = tiny(kind)
    config = model.config
    found = head_matrices(model)
    first = next(found)
    heads, d = config.num_attention_heads, config.hidden_size
    assert first.Q.shape == first.K.shape == first.read.shape == (heads, 8, d)
    assert first.V.shape == (heads, d, d)
    assert 1 + sum(1 for _ in found) == config.num_hidden_layers


def test_singular_values_and_spectrum_are_those_of_the_large_matrices():
    heads = heads_of(np.random.default_rng(0), (3,))
    M = np.swapaxes(heads.Q, -1, -2) @ heads.K
    for small, large in ((heads.logit_singular_values(), M), (heads.value_singular_values(), heads.V)):
        np.testing.assert_allclose(small, np.linalg.svd(large, compute_uv=False)[:, :2], rtol=1e-12)
    for small, V in zip(heads.value_spectrum(), heads.V, strict=True):
        large = np.linalg.eigvals(V)
        assert max(np.abs(large - value).min() for value in small) < 1e-12
        assert (np.diff(small.real) <= 1e-12).all()


def test_rescaled_heads_have_norm_one_and_zero_heads_stay():
    heads = heads_of(np.random.default_rng(1), (3,))
    heads.Q[2], heads.write[2] = 0, 0
    scaled = heads.within_unit_norms()
    for V, M in zip(scaled.V[:2], np.swapaxes(scaled.Q, -1, -2) @ scaled.K, strict=False):
        assert np.linalg.norm(V, 2) == pytest.approx(1, abs=1e-12)
        assert np.linalg.norm(M, 2) == pytest.approx(1, abs=1e-12)
    assert not scaled.V[2].any()
    assert not scaled.Q[2].any()


@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln", "peri-ln"])
@pytest.mark.parametrize("identity_values", [False, True])
def test_the_flow_in_the_small_space_is_the_flow(scheme, identity_values):
    rng = np.random.default_rng(2)
    heads = heads_of(rng, (2,), d=9).within_unit_norms()
    x0 = 2 * rng.normal(size=(2, 3, 9))
    start, Q, K, V, basis = heads.seen_from(x0, identity_values=identity_values)
    assert start.shape[-1] == (3 if identity_values else 5)
    large = simulate(scheme, x0, [0.5], Q=heads.Q, K=heads.K, V=None if identity_values else heads.V)
    small = simulate(scheme, start, [0.5], Q=Q, K=K, V=V)
    np.testing.assert_allclose(small.theta @ np.swapaxes(basis, -1, -2), large.theta, atol=1e-7)
    np.testing.assert_allclose(small.radius, large.radius, rtol=1e-7)


def test_a_start_of_the_wrong_shape_is_named():
    heads = heads_of(np.random.default_rng(3), (2,))
    with pytest.raises(ValueError, match=r"\(2, n, 7\).*got \(3, 7\)"):
        heads.seen_from(np.ones((3, 7)))


def test_models_that_normalise_queries_are_refused():
    config = Qwen3Config(
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=16,
        vocab_size=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    with pytest.raises(ValueError, match="normalises queries or keys"):
        next(head_matrices(Qwen3ForCausalLM(config)))


def test_an_unknown_normalisation_is_refused():
    model = tiny("llama")
    model.model.layers[0].input_layernorm.forward = torch.tanh
    with pytest.raises(ValueError, match="neither a LayerNorm nor an RMSNorm"):
        next(head_matrices(model))
