"""The text as tokens, and what is known of it without a model: entropies and a bigram baseline."""

from __future__ import annotations

import numpy as np

#: Stands before each text, as in GPT-2.
END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(text: str, vocabulary: int):
    """Byte-level byte-pair encoding learned from a text, as GPT-2's.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        With `vocabulary` tokens, `END_OF_TEXT` among them as number 0.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split("\n"), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer, text: str) -> np.ndarray:
    """Token numbers of a whole text, shape (N,), with `END_OF_TEXT` in front."""
    return np.array([tokenizer.bos_token_id, *tokenizer(text, verbose=False).input_ids])


def unigram_entropy(tokens) -> float:
    r"""Entropy of the text's own token frequencies, in nats a token: :math:`-\sum_a p(a) \ln p(a)`.

    Examples
    --------
    >>> float(round(unigram_entropy([0, 1, 0, 1]) / np.log(2), 12))
    1.0
    """
    count = np.unique(tokens, return_counts=True)[1]
    p = count / count.sum()
    return float(-(p * np.log(p)).sum())


def bigram_entropy(tokens) -> float:
    r"""Entropy of a token given the one before, in nats: :math:`-\sum_{ab} p(ab) \ln p(b \mid a)`.

    It is taken from the text's own frequencies of pairs. Many pairs occur once, so that it lies below what
    any bigram model reaches on another text.

    Examples
    --------
    >>> bigram_entropy([0, 1, 0, 1, 0]) == 0
    True
    """
    tokens = np.asarray(tokens, dtype=np.int64)
    pairs = tokens[:-1] * (tokens.max() + 1) + tokens[1:]
    return max(unigram_entropy(pairs) - unigram_entropy(tokens[:-1]), 0.0)


def bigram_loss(training, held_out, vocabulary: int) -> float:
    """Loss on `held_out` of the bigram model of `training`, in nats a token: the baseline to beat.

    Pairs are smoothed towards single tokens by Witten and Bell's rule, single tokens by adding one.

    Parameters
    ----------
    training, held_out : (N,) and (M,) array_like of int
    vocabulary : int
        Number of tokens.
    """
    training, held_out = np.asarray(training, np.int64), np.asarray(held_out, np.int64)
    single = np.bincount(training, minlength=vocabulary) + 1.0
    single /= single.sum()
    pairs, counts = np.unique(training[:-1] * vocabulary + training[1:], return_counts=True)
    seen = np.bincount(training[:-1], minlength=vocabulary)
    kinds = np.bincount(pairs // vocabulary, minlength=vocabulary)
    before, after = held_out[:-1], held_out[1:]
    place = np.searchsorted(pairs, before * vocabulary + after).clip(max=len(pairs) - 1)
    count = np.where(pairs[place] == before * vocabulary + after, counts[place], 0)
    weight = np.maximum(kinds[before], 1)  # a token that was never followed says nothing
    return float(-np.log((count + weight * single[after]) / (seen[before] + weight)).mean())
