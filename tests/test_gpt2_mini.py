"""gpt2-mini: training in pieces is training in one go, and what is shipped is what was recorded."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from attnorm import load_corpus, load_model, sources
from attnorm.gpt2_mini import language
from attnorm.gpt2_mini.config import Config, Stage, read_config
from attnorm.gpt2_mini.release import release
from attnorm.gpt2_mini.train import CheckpointError, batch, held_out_loss, loss_of, new_model, train
from attnorm.patterns import patterns
from attnorm.sources import ChecksumError

SHIPPED = sources.DATA / "models" / "gpt2-mini"
SMALL = Config(
    seed=1,
    threads=1,
    training="king-james-training",
    held_out="king-james-held-out",
    vocabulary=300,
    layers=2,
    heads=2,
    width=16,
    context=32,
    learning_rate=1e-2,
    warm_up=0.2,
    decay=0.4,
    betas=(0.9, 0.98),
    weight_decay=0.1,
    clip=1.0,
    batch_tokens=64,
    every=2,
    checkpoint_every=4,
    stages=(Stage(8, 6), Stage(32, 6)),
)


@pytest.fixture(scope="module")
def text():
    return "\n".join(f"{k} and {k + 1} are {2 * k + 1}, which is odd." for k in range(400))


@pytest.fixture(scope="module")
def tokenizer(text):
    return language.train_tokenizer(text, SMALL.vocabulary)


@pytest.fixture(scope="module")
def tokens(tokenizer, text):
    return language.encode(tokenizer, text)


@pytest.fixture
def trained(tokens, tmp_path):
    return train(SMALL, tokens, tokens[:200], tmp_path / "run.safetensors")


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Training


@pytest.mark.parametrize("pause", [4, 7, 8])
def test_training_in_two_pieces_equals_training_in_one_go(trained, tokens, tmp_path, pause):
    """7 lies between two rows of the curve and after the change of context."""
    place = tmp_path / "pieces.safetensors"
    train(SMALL, tokens, tokens[:200], place, until=pause)
    resumed = train(SMALL, tokens, tokens[:200], place)
    assert same(weights(resumed), weights(trained))
    if pause % SMALL.every == 0:
        drop = [{k: v for k, v in row.items() if k != "seconds"} for row in resumed.curve]
        assert drop == [{k: v for k, v in row.items() if k != "seconds"} for row in trained.curve]


def test_another_seed_gives_other_weights(trained, tokens, tmp_path):
    other = train(replace(SMALL, seed=2), tokens, tokens[:200], tmp_path / "other.safetensors")
    assert not same(weights(other), weights(trained))


def test_a_killed_run_goes_on_from_its_last_checkpoint(trained, tokens, tmp_path):
    """The process is killed without warning, in the middle of writing its second checkpoint."""
    place = tmp_path / "killed.safetensors"
    code = textwrap.dedent("""
        import os, signal, sys, types
        import numpy as np, safetensors.torch
        from pathlib import Path
        sys.path.insert(0, sys.argv[3])
        from test_gpt2_mini import SMALL
        from attnorm.gpt2_mini.train import train
        write, done = safetensors.torch.save_file, []
        def kill(tensors, path, metadata):
            if done:
                Path(path).write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            done.append(write(tensors, path, metadata))
        safetensors.torch.save_file = kill
        tokens = np.load(sys.argv[1])
        train(SMALL, tokens, tokens[:200], Path(sys.argv[2]))
    """)
    np.save(tmp_path / "tokens.npy", tokens)
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "tokens.npy"), str(place), str(Path(__file__).parent)],
        capture_output=True,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    resumed = train(SMALL, tokens, tokens[:200], place)
    assert same(weights(resumed), weights(trained))


def test_a_checkpoint_of_another_configuration_is_refused(trained, tokens, tmp_path):
    with pytest.raises(CheckpointError, match="belongs to another configuration"):
        train(replace(SMALL, learning_rate=1e-3), tokens, tokens, tmp_path / "run.safetensors")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"no tensors" * 99])
def test_a_damaged_checkpoint_is_named(trained, tokens, tmp_path, damage):
    place = tmp_path / "run.safetensors"
    place.write_bytes(damage(place.read_bytes()))
    with pytest.raises(CheckpointError, match=r"run.safetensors is damaged .* delete it"):
        train(SMALL, tokens, tokens, place)


def test_training_lowers_the_loss_below_that_of_the_untrained_model(trained, tokens):
    assert held_out_loss(trained.model, tokens[:500], 32) < held_out_loss(new_model(SMALL), tokens[:500], 32)


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    config = replace(SMALL, stages=(Stage(8, 100),))
    rates = np.array([config.learning_rate_at(step) for step in range(100)])
    assert rates[0] == pytest.approx(config.learning_rate / 20)
    assert (rates[19:61] == config.learning_rate).all()
    assert (np.diff(rates)[61:] < 0).all()
    assert rates[-1] == pytest.approx(config.learning_rate / 40)


def test_every_position_is_trained_in_short_windows():
    seen = {
        int(p)
        for step in range(60)
        for p in batch(replace(SMALL, stages=(Stage(8, 60),)), np.arange(400), step)[1].flatten()
    }
    assert seen == set(range(SMALL.context))


def test_batches_depend_on_seed_and_step_alone(tokens):
    first, again, other = (batch(c, tokens, 3)[0] for c in (SMALL, SMALL, replace(SMALL, seed=2)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, batch(SMALL, tokens, 4)[0])


def test_held_out_loss_predicts_every_token_once(tokens):
    """Against a loop over single tokens."""
    model, text = new_model(SMALL), torch.as_tensor(tokens[:70])
    total = 0.0
    for k in range(1, 70):
        start = (k - 1) // 31 * 31  # windows of 32 share one token
        with torch.no_grad():
            logits = model(text[None, start:k]).logits[0, -1]
        total -= float(logits.log_softmax(-1)[text[k]])
    assert held_out_loss(model, text.numpy(), 32) == pytest.approx(total / 69, rel=1e-5)


def test_the_loss_of_a_batch_is_that_of_transformers(tokens):
    model = new_model(SMALL)
    window, positions = batch(SMALL, tokens, 8)
    with torch.no_grad():
        theirs = model(input_ids=window, position_ids=positions, labels=window).loss
    with torch.no_grad():
        ours = loss_of(model, window, positions)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = ", "sed = "), "missing or unknown: sed, seed"),
        (("width = 192", "width = 190"), "190 is no multiple of 12 heads"),
        (("context = 256", "context = 2048"), r"context must lie in 2\.\.1024; got 2048"),
        (("batch_tokens = 2048", "batch_tokens = 512"), "at least one window of every stage"),
        (("checkpoint_every = 100", "checkpoint_every = 75"), "must be a multiple"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path, change, message):
    path = tmp_path / "training.toml"
    path.write_text((SHIPPED / "training.toml").read_text().replace(*change))
    with pytest.raises(ValueError, match=message):
        read_config(path)


# The text


def test_bigram_entropy_is_below_unigram_entropy_and_the_bigram_loss_above(tokens):
    bigram = language.bigram_entropy(tokens)
    assert bigram < language.unigram_entropy(tokens)
    assert language.bigram_loss(tokens, tokens, SMALL.vocabulary) > bigram


def test_the_bigram_model_is_a_distribution():
    """exp(-loss) over all possible next tokens sums to one, also after a token that was never followed."""
    training = np.array([0, 1, 2, 1, 0, 3])
    for before in range(5):
        chances = [np.exp(-language.bigram_loss(training, [before, after], 5)) for after in range(5)]
        assert sum(chances) == pytest.approx(1)


def test_held_out_books_are_not_in_the_training_text():
    training, held_out, whole = (
        load_corpus(name)[0] for name in ("king-james-training", "king-james-held-out", "king-james")
    )
    lines = set(training.split("\n"))
    assert not any(line in lines for line in held_out.split("\n") if len(line) > 80)
    assert sorted(training.split("\n") + held_out.split("\n")) == sorted(whole.split("\n"))


# What is shipped


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The shipped folder in another place, where it may be damaged."""
    data = tmp_path / "data"
    folder = data / "models" / "gpt2-mini"
    folder.mkdir(parents=True)
    for path in SHIPPED.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(sources, "DATA", data)
    return folder


def test_it_is_loaded_by_transformers_from_the_folder_alone_without_a_warning():
    code = textwrap.dedent(f"""
        from transformers import AutoTokenizer, GPT2LMHeadModel
        model = GPT2LMHeadModel.from_pretrained({str(SHIPPED)!r})
        tokenizer = AutoTokenizer.from_pretrained({str(SHIPPED)!r})
        config = model.config
        print(config.n_layer, config.n_head, config.n_embd, config.n_positions, len(tokenizer), model.dtype)
        text = "In the beginning God created the heaven and the earth."
        print(tokenizer.decode(tokenizer(text).input_ids) == text)
    """)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "12 12 192 1024 4096 torch.float16\nTrue\n"
    assert "warn" not in done.stderr.lower()
    assert "[transformers]" not in done.stderr


def test_it_takes_at_most_sixteen_megabytes():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 16e6


def test_it_has_the_recorded_held_out_loss():
    recorded = json.loads((SHIPPED / "evaluation.json").read_text())
    model, tokenizer, _ = load_model("gpt2-mini", attn_implementation="sdpa")
    tokens = language.encode(tokenizer, load_corpus("king-james-held-out")[0])
    assert held_out_loss(model, tokens, 1024) == pytest.approx(recorded["held_out_loss"], abs=1e-3)
    assert recorded["held_out_loss"] < recorded["bigram_loss"] < recorded["unigram_entropy"]
    assert recorded["training_loss"] < recorded["bigram_entropy"]


def test_its_tokenizer_is_that_of_the_training_text():
    config = read_config(SHIPPED / "training.toml")
    again = language.train_tokenizer(load_corpus(config.training)[0], config.vocabulary)
    assert AutoTokenizer.from_pretrained(SHIPPED).get_vocab() == again.get_vocab()


def test_the_card_gives_the_recorded_numbers():
    card = (SHIPPED / "model-card.md").read_text()
    for key, value in json.loads((SHIPPED / "evaluation.json").read_text()).items():
        assert (f"{value:.4f}" if isinstance(value, float) else f"{value:,}") in card, key


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:-100] + b"x" * 100, lambda b: b""])
def test_a_truncated_or_altered_file_is_an_error_that_names_it(copy, name, damage):
    path = copy / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ChecksumError, match=f"{name} has sha256 .* brings it back"):
        load_model("gpt2-mini")


def test_a_missing_file_is_an_error_that_names_it(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ChecksumError, match=r"model.safetensors is missing: .* brings it back"):
        load_model("gpt2-mini")


def test_nothing_is_unpickled(copy, monkeypatch):
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_a, **_k: pytest.fail("something was unpickled"))
    monkeypatch.setattr(torch, "load", lambda *_a, **_k: pytest.fail("torch.load was called"))
    assert load_model("gpt2-mini")[0].config.n_head == 12


def test_a_run_that_is_not_finished_is_not_released(trained, tokenizer, tokens, tmp_path):
    trained.step -= 1
    with pytest.raises(ValueError, match="11 of 12 steps"):
        release(SMALL, trained, tokenizer, tokens, tokens[:200], tmp_path / "model")


def test_a_release_can_be_loaded_and_carries_its_numbers(trained, tokenizer, tokens, tmp_path):
    folder = tmp_path / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluation = release(SMALL, trained, tokenizer, tokens, tokens[:200], folder)
    assert json.loads((folder / "evaluation.json").read_text()) == evaluation
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    assert held_out_loss(model.eval(), tokens[:200], 32) == pytest.approx(
        evaluation["held_out_loss"], abs=1e-6
    )
    for name, parameter in trained.model.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter.half().float(), rtol=0, atol=0)
    sources.verify_checksums(folder)
    assert not list(folder.glob(".release-*"))


# Its heads


def test_patterns_of_hand_made_weights():
    """Heads that look where the scores say give a score of one, and zero in the others."""
    from attnorm.patterns import _induction, _on_text

    before, first, uniform, copy = torch.zeros(4, 8, 8)
    for i in range(8):
        before[i, max(i - 1, 0)] = first[i, 0] = 1
        uniform[i, : i + 1] = 1 / (i + 1)
        copy[i, i - 3 if i > 3 else 0] = 1  # half = 4: row 4 repeats token 0, which token 1 followed
    found = _on_text(torch.stack([before, first, uniform]))
    assert found[0].tolist()[:2] == [1.0, pytest.approx(1 / 7)]
    assert found[1].tolist()[:2] == [0.0, 1.0]
    assert found[2].tolist() == [0.0, 0.0, pytest.approx(1.0)]
    assert _induction(torch.stack([copy, before])).tolist() == [1.0, 0.0]


def test_patterns_refuse_what_is_no_stack_of_windows():
    for wrong in (torch.arange(8), [[1, 2, 3, 4]]):
        with pytest.raises(ValueError, match=r"windows must be a tensor of shape \(count, L\)"):
            patterns(new_model(SMALL), wrong)
