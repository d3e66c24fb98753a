"""What attention heads see and do, one layer at a time.

Attention weights of all layers together are large (144 heads of 1024 x 1024 are 600 MB), so hooks hand over
one layer while the model runs, and nothing is kept that the caller does not keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: What the vectors x of the second paper can be.
TOKENS = "embedding", "hidden", "normed", "value"


@dataclass(frozen=True)
class Layer:
    """One attention layer on one window of L tokens, as torch tensors of the model's dtype.

    Attributes
    ----------
    index : int
        0 is the first layer.
    weights : (H, L, L)
        Attention weights: row i is a distribution over the tokens j <= i, exactly zero beyond. Llama's are
        computed in float32 whatever the dtype of the model.
    embedding : (L, d)
        Token embeddings, without positions.
    hidden : (L, d)
        Residual stream that enters the layer.
    normed : (L, d)
        The same after the layer's normalisation: what queries, keys and values are made of.
    query, key : (H, L, d_head)
        Queries and keys, biases included, before a rotation by position where the model has one. GPT-2 has
        none: its weights are the softmax of ``query @ key.T / sqrt(d_head)``.
    value : (H, L, d_head)
        Value vectors, biases included: what the weights average.
        Heads that share a key and a value (grouped queries) repeat them.
    """

    index: int
    weights: object
    embedding: object
    hidden: object
    normed: object
    query: object
    key: object
    value: object

    def tokens(self, kind: str):
        """The vectors x: one of `TOKENS` by name.

        Raises
        ------
        ValueError
            If there is no such kind.
        """
        if kind not in TOKENS:
            raise ValueError(f"x must be one of {', '.join(TOKENS)}; got {kind!r}")
        return getattr(self, kind)


@contextmanager
def capture(model, visit: Callable[[Layer], None]) -> Iterator[None]:
    """While inside, every forward pass of `model` hands each attention layer to `visit`, in order.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        GPT-2, or a model with Llama's blocks (``self_attn.q_proj``, grouped queries or not).
    visit : callable
        Called with a `Layer` as soon as it is computed. An exception that it raises ends the pass.

    Raises
    ------
    ValueError
        If the model is of another kind, has another attention backend than ``eager``, or is in training mode
        (dropout), and during the pass if it is given more than one sequence.

    Notes
    -----
    The hooks are removed on leaving, also by an exception. Nothing in the model is changed.
    """
    blocks, attention_name, projections = attention_blocks(model)
    backend = model.config._attn_implementation
    if backend != "eager":
        raise ValueError(
            f"attention weights need the eager backend, and this model has {backend!r}: "
            "load it with attn_implementation='eager'"
        )
    if model.training:
        raise ValueError(
            "the model is in training mode, where dropout changes the weights: call model.eval()"
        )

    seen: dict = {}
    hooks = [
        model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: _keep(seen, embedding=out))
    ]
    try:
        for index, block in enumerate(blocks):
            attention = getattr(block, attention_name)
            hooks += [
                block.register_forward_pre_hook(_remember(seen, "hidden"), with_kwargs=True),
                attention.register_forward_pre_hook(_remember(seen, "normed"), with_kwargs=True),
                attention.register_forward_hook(_hand_over(seen, index, projections, visit)),
            ]
            for name in projections:
                projection = getattr(attention, name)
                hooks.append(
                    projection.register_forward_hook(
                        lambda _m, _a, out, name=name: _keep(seen, **{name: out})
                    )
                )
        yield
    finally:
        for hook in hooks:
            hook.remove()


def each_layer(model, tokens, measure: Callable[[Layer], object]) -> list:
    """Run one window through the model, and return what `measure` says of each layer.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        See `capture`.
    tokens : torch.LongTensor (L,)
        Token numbers of one window.
    measure : callable
        Takes a `Layer`; what it returns is all that is kept.

    Returns
    -------
    list
        One entry a layer.
    """
    import torch

    if not torch.is_tensor(tokens) or tokens.ndim != 1 or tokens.shape[0] < 1:
        given = tuple(tokens.shape) if torch.is_tensor(tokens) else type(tokens).__name__
        raise ValueError(f"tokens must be one window, a tensor of shape (L,) with L >= 1; got {given}")
    found = []
    # The base model: the output logits are not needed.
    with capture(model, lambda layer: found.append(measure(layer))), torch.no_grad():
        model.base_model(input_ids=tokens[None].to(model.device), use_cache=False)
    return found


def windows(text: str, tokenizer, length: int, count: int = 1):
    """Windows of consecutive tokens, their beginnings spread evenly over the text.

    Each begins at the start of a paragraph (a line of `text`). The first is the start of the text.

    Parameters
    ----------
    text : str
    tokenizer : transformers tokenizer
        No special tokens are added.
    length, count : int

    Returns
    -------
    torch.LongTensor (count, length)

    Raises
    ------
    ValueError
        If a number is less than one, or the text is too short.
    """
    import torch

    if length < 1 or count < 1:
        raise ValueError(f"length and count must be at least 1; got {length} and {count}")
    found = []
    for k in range(count):
        start = k * len(text) // count
        if start:
            start = text.find("\n", start - 1) + 1 or len(text)
        # Some tokens are longer than a character, and few are longer than eight: ask for more only if needed.
        for characters in (8 * length, 32 * length, len(text)):
            part = tokenizer(text[start : start + characters], add_special_tokens=False).input_ids
            # A cut word makes other tokens, so leave some room before the cut, if there is one.
            if len(part) >= length + (8 if start + characters < len(text) else 0):
                break
        else:
            raise ValueError(
                f"the text is too short for {count} windows of {length} tokens: window {k} has {len(part)}"
            )
        found.append(part[:length])
    return torch.tensor(found)


#: Of each kind of model: where its blocks are, the attention in one, and what makes queries, keys and values.
_KINDS = (("h", "attn", ("c_attn",)), ("layers", "self_attn", ("q_proj", "k_proj", "v_proj")))


def attention_blocks(model):
    """The blocks of a model, the name of the attention in one, and the names of what projects its inputs.

    Raises
    ------
    ValueError
        If the model is neither GPT-2 nor of Llama's kind.
    """
    for blocks_name, attention_name, projections in _KINDS:
        blocks = getattr(model.base_model, blocks_name, ())
        attentions = [getattr(block, attention_name, None) for block in blocks]
        if attentions and all(hasattr(a, name) for a in attentions for name in projections):
            return blocks, attention_name, projections
    raise ValueError(
        f"{type(model).__name__} is neither GPT-2 (h.*.attn.c_attn) nor of Llama's kind "
        "(layers.*.self_attn.v_proj)"
    )


def _keep(seen, **what):
    seen.update(what)


def _remember(seen, name):
    def hook(_module, arguments, keywords):
        seen[name] = arguments[0] if arguments else keywords["hidden_states"]

    return hook


def _hand_over(seen, index, projections, visit):
    def hook(attention, _arguments, output):
        weights = output[1]
        if weights is None:
            raise ValueError(
                f"layer {index} returned no attention weights: its backend does not compute them"
            )
        if weights.shape[0] != 1:
            raise ValueError(f"give one sequence at a time; got a batch of {weights.shape[0]}")
        projected = [seen.pop(name)[0] for name in projections]
        if len(projected) == 1:  # queries, keys and values side by side
            projected = projected[0].chunk(3, dim=-1)
        query, key, value = (by_head(x, weights.shape[1], attention.head_dim) for x in projected)
        visit(
            Layer(
                index,
                weights[0],
                seen["embedding"][0],
                seen.pop("hidden")[0],
                seen.pop("normed")[0],
                query,
                key,
                value,
            )
        )

    return hook


def by_head(projected, heads, head_dim):
    """(L, groups * head_dim) to (heads, L, head_dim); a group is shared by consecutive heads."""
    grouped = projected.unflatten(-1, (-1, head_dim)).transpose(0, 1)
    return grouped.repeat_interleave(heads // grouped.shape[0], dim=0)
