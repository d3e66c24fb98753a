"""What the hooks hand over, against what transformers itself reports."""

import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from attnorm.heads import TOKENS, capture, each_layer, windows
from attnorm.origins import byte_tokenizer
from tiny_models import tiny

WINDOW = torch.arange(40) * 7 % 251
both = pytest.mark.parametrize("kind", ["gpt2", "llama"])
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@both
@precisions
def test_weights_and_hidden_states_are_those_that_transformers_reports(kind, dtype):
    model = tiny(kind, dtype=dtype)
    layers = each_layer(model, WINDOW, lambda layer: layer)
    with torch.no_grad():
        expected = model(WINDOW[None], output_attentions=True, output_hidden_states=True)
    assert [layer.index for layer in layers] == list(range(model.config.num_hidden_layers))
    for layer, weights, hidden in zip(layers, expected.attentions, expected.hidden_states[:-1], strict=True):
        assert layer.weights.dtype == dtype
        assert torch.equal(layer.weights, weights[0])
        assert torch.equal(layer.hidden, hidden[0])


@both
@precisions
def test_rows_are_distributions_with_exact_zeros_beyond_the_diagonal(kind, dtype):
    # Llama's softmax is computed in float32 whatever the dtype of the model.
    eps = torch.finfo(torch.float32 if kind == "llama" else dtype).eps
    for weights in each_layer(tiny(kind, dtype=dtype), WINDOW, lambda layer: layer.weights):
        assert not torch.triu(weights, 1).any()
        sums = weights.double().sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=4 * eps)


@both
@precisions
def test_the_weighted_values_are_what_the_layer_puts_out(kind, dtype):
    """Holds only if grouped heads repeat the right values, in the right order, with biases."""
    model = tiny(kind, dtype=dtype)
    blocks = model.base_model.h if kind == "gpt2" else model.base_model.layers
    modules = [block.attn if kind == "gpt2" else block.self_attn for block in blocks]
    outputs = []
    watchers = [m.register_forward_hook(lambda _m, _a, out: outputs.append(out[0][0])) for m in modules]
    layers = each_layer(model, WINDOW, lambda layer: layer)
    for watcher in watchers:
        watcher.remove()
    for layer, module, output in zip(layers, modules, outputs, strict=True):
        mixed = (layer.weights @ layer.value).transpose(0, 1).flatten(1)
        projected = (module.c_proj if kind == "gpt2" else module.o_proj)(mixed)
        torch.testing.assert_close(projected, output, rtol=0, atol=100 * torch.finfo(dtype).eps)


@both
@precisions
def test_queries_and_keys_give_the_weights(kind, dtype):
    """Holds only if both are cut into heads, and grouped heads repeated, as the model does it."""
    model = tiny(kind, dtype=dtype)
    positions = torch.arange(len(WINDOW))[None]
    for layer in each_layer(model, WINDOW, lambda layer: layer):
        query, key = layer.query, layer.key
        if kind == "llama":
            rotation = model.base_model.rotary_emb(query, positions)
            query, key = (x[0] for x in apply_rotary_pos_emb(query[None], key[None], *rotation))
        logits = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(
            torch.ones(len(WINDOW), len(WINDOW)).triu(1).bool(), -torch.inf
        )
        eps = torch.finfo(torch.float32 if kind == "llama" else dtype).eps
        torch.testing.assert_close(logits.softmax(-1), layer.weights, rtol=0, atol=200 * eps)


@both
def test_normed_states_and_embeddings_are_what_their_names_say(kind):
    model = tiny(kind)
    blocks = model.base_model.h if kind == "gpt2" else model.base_model.layers
    for layer, block in zip(each_layer(model, WINDOW, lambda layer: layer), blocks, strict=True):
        norm = block.ln_1 if kind == "gpt2" else block.input_layernorm
        assert torch.equal(layer.normed, norm(layer.hidden))
        assert torch.equal(layer.embedding, model.get_input_embeddings().weight[WINDOW])
        shapes = [tuple(layer.tokens(name).shape) for name in TOKENS]
        heads, d = model.config.num_attention_heads, model.config.hidden_size
        assert shapes == [(40, d)] * 3 + [(heads, 40, d // heads)]
        with pytest.raises(ValueError, match="embedding, hidden, normed, value; got 'keys'"):
            layer.tokens("keys")


def test_a_window_of_gpt2s_size_takes_less_than_one_and_a_half_gigabytes_above_the_weights():
    """All 144 heads at L = 1024, as transformers reports them; in a process whose peak is its own."""
    code = """
import sys, torch
from attnorm import load_model
from attnorm.heads import each_layer
model, _, _ = load_model("random-gpt2")
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 2**20
def kept():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) / 2**20
open("/proc/self/clear_refs", "w").write("5")  # the peak so far is that of making the weights
before = kept()
window = torch.arange(1024) % 256
masses = each_layer(model, window, lambda layer: layer.weights[..., 0].sum(-1))
print(peak() - before)
with torch.no_grad():
    reported = model.base_model(window[None], output_attentions=True, use_cache=False).attentions
assert len(masses) == len(reported) == 12
assert all(torch.equal(ours, theirs[0, ..., 0].sum(-1)) for ours, theirs in zip(masses, reported))
"""
    try:
        open("/proc/self/clear_refs", "w").close()
    except OSError:
        pytest.skip("this system does not tell the peak of memory")
    used = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0 < float(used) < 1.5


@both
def test_one_layer_at_a_time_is_alive(kind):
    alive = []

    def visit(layer):
        assert not any(reference() is not None for reference in alive)
        alive.append(weakref.ref(layer.weights))

    each_layer(tiny(kind), WINDOW, visit)
    assert len(alive) == tiny(kind).config.num_hidden_layers


@both
def test_hooks_are_gone_afterwards_and_after_an_exception(kind):
    model = tiny(kind)
    before = hooks_of(model)

    def stop(layer):
        assert hooks_of(model) > before
        raise KeyError("stop here")

    with pytest.raises(KeyError, match="stop here"):
        each_layer(model, WINDOW, stop)
    assert hooks_of(model) == before
    each_layer(model, WINDOW, lambda layer: None)
    assert hooks_of(model) == before


@both
def test_capture_changes_no_output(kind):
    model = tiny(kind)
    with torch.no_grad():
        plain = model(WINDOW[None]).logits
        with capture(model, lambda layer: None):
            watched = model(WINDOW[None]).logits
    assert torch.equal(plain, watched)


@both
@pytest.mark.parametrize("backend", ["sdpa"])
def test_a_model_without_attention_weights_is_refused(kind, backend):
    model = tiny(kind, attn_implementation=backend)
    with pytest.raises(ValueError, match="eager backend, and this model has 'sdpa'"):
        each_layer(model, WINDOW, lambda layer: layer)
    assert hooks_of(model) == 0


def test_dropout_batches_and_empty_windows_are_refused():
    with pytest.raises(ValueError, match="training mode"):
        each_layer(tiny("gpt2").train(), WINDOW, lambda layer: layer)
    model = tiny("gpt2")
    with pytest.raises(ValueError, match="batch of 2"), capture(model, lambda layer: None):
        model(torch.stack([WINDOW, WINDOW]))
    assert hooks_of(model) == 0
    for wrong in (WINDOW[None], WINDOW[:0], WINDOW.tolist()):
        with pytest.raises(ValueError, match="one window"):
            each_layer(model, wrong, lambda layer: layer)


def test_another_architecture_is_refused_by_name():
    config = GPTNeoXConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16)
    config._attn_implementation = "eager"
    with pytest.raises(ValueError, match="GPTNeoXForCausalLM is neither GPT-2"):
        each_layer(GPTNeoXForCausalLM(config).eval(), WINDOW, lambda layer: layer)


def test_windows_start_at_paragraphs_spread_over_the_text():
    text = "\n".join(f"paragraph {k:03d} " + "x" * 40 for k in range(100))
    found = windows(text, byte_tokenizer(), 30, 4)
    assert found.shape == (4, 30)
    starts = [bytes(row.tolist()).decode() for row in found]
    assert all(start.startswith("paragraph ") for start in starts)
    assert [int(start[10:13]) for start in starts] == [0, 25, 50, 75]


def test_windows_are_the_beginning_of_the_whole_tokenised_text():
    text = "In the beginning God created the heaven and the earth. " * 50
    whole = byte_tokenizer()(text).input_ids
    assert windows(text, byte_tokenizer(), 500)[0].tolist() == whole[:500]
    assert windows(text, byte_tokenizer(), len(whole))[0].tolist() == whole


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="too short for 1 windows of 30 tokens: window 0 has 5"):
        windows("short", byte_tokenizer(), 30)
    with pytest.raises(ValueError, match="at least 1"):
        windows("text", byte_tokenizer(), 0)
    with pytest.raises(ValueError, match="too short"):
        windows("one paragraph without a break " * 10, byte_tokenizer(), 30, 2)


def test_measured_distance_agrees_in_both_precisions():
    """float32 attention against float64: a difference is rounding, not a mistake."""
    from attnorm.capacity import measure

    def measured(layer):
        return measure(layer.weights, layer.value, 3).distance

    single, double = (
        each_layer(tiny("llama", dtype=d), WINDOW, measured) for d in (torch.float32, torch.float64)
    )
    for one, other in zip(single, double, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
