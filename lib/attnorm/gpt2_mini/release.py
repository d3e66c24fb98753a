"""Put a finished run into its folder: weights in half precision, tokenizer, curve, losses, model card."""

from __future__ import annotations

import copy
import csv
import json
import os
import platform
import shutil
import tempfile
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path
from string import Template

import torch
from transformers import GPT2LMHeadModel

from attnorm import sources
from attnorm.gpt2_mini.config import Config
from attnorm.gpt2_mini.language import bigram_entropy, bigram_loss, unigram_entropy
from attnorm.gpt2_mini.train import Run, held_out_loss, new_model
from attnorm.origins import quiet


def release(config: Config, run: Run, tokenizer, tokens, held_out, folder: Path) -> dict:
    """Write the model of a finished run, and what is known of it, to `folder`.

    Everything is written beside it first, and moved file by file at the end, checksums last: an interrupted
    release is a checksum error and never another model.

    Returns
    -------
    dict
        What ``evaluation.json`` holds: losses and entropies in nats a token.
    """
    if run.step < config.steps:
        raise ValueError(f"the run has done {run.step} of {config.steps} steps")
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".release-", dir=folder))
    try:
        with quiet():
            copy.deepcopy(run.model).half().save_pretrained(work)
            tokenizer.model_max_length = config.context
            tokenizer.save_pretrained(work)
        sources.record_checksums(work)
        with quiet():
            shipped = GPT2LMHeadModel.from_pretrained(work, dtype=torch.float32).eval()
        evaluation = evaluate(config, run, shipped, tokens, held_out)
        (work / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n", encoding="utf-8")
        with open(work / "curve.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(run.curve[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(run.curve)
        (work / "model-card.md").write_text(_card(config, run, evaluation), encoding="utf-8")
        record = work / sources.CHECKSUMS
        for path in (*(p for p in sorted(work.iterdir()) if p != record), record):
            path.chmod(0o644)  # transformers lets only the owner read the weights
            os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return evaluation


def evaluate(config: Config, run: Run, shipped, tokens, held_out) -> dict:
    """Losses of the shipped weights beside what is known of the text without a model, in nats a token."""
    both = [*tokens, *held_out]
    return {
        "held_out_loss": held_out_loss(shipped, held_out, config.context),
        "held_out_loss_before_rounding": held_out_loss(run.model.eval(), held_out, config.context),
        "held_out_loss_untrained": held_out_loss(new_model(config), held_out, config.context),
        "training_loss": held_out_loss(shipped, tokens[: len(held_out)], config.context),
        "unigram_entropy": unigram_entropy(both),
        "bigram_entropy": bigram_entropy(both),
        "bigram_loss": bigram_loss(tokens, held_out, config.vocabulary),
        "training_tokens": len(tokens),
        "held_out_tokens": len(held_out),
    }


def _card(config: Config, run: Run, evaluation: dict) -> str:
    template = resources.files("attnorm.gpt2_mini").joinpath("card.md").read_text(encoding="utf-8")
    device = next(run.model.parameters()).device
    hardware = f"{config.threads} threads, {platform.machine()} processor"
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    row = "| {step} | {tokens:,} | {context} | {loss:.3f} | {held_out:.3f} |".format_map
    few = [r for r in run.curve if r["step"] % (5 * config.every) == 0 or r is run.curve[-1]]
    tokens_seen = config.tokens_after(config.steps)
    values = asdict(config) | evaluation
    values |= {
        "beta1": config.betas[0],
        "beta2": config.betas[1],
        "head_width": config.width // config.heads,
        "steps": config.steps,
        "stages_in_words": "; ".join(f"{s.steps} on windows of {s.context} tokens" for s in config.stages),
        "tokens_seen": tokens_seen,
        "passes": f"{tokens_seen / evaluation['training_tokens']:.1f}",
        "parameters": run.model.num_parameters(),
        "curve": "\n".join(map(row, few)),
        "hardware": hardware,
        "hours": f"{run.seconds / 3600:.2f}",
        "versions": ", ".join(f"{n} {metadata.version(n)}" for n in ("torch", "transformers", "tokenizers")),
    }
    values |= {key: f"{value:.4f}" for key, value in evaluation.items() if isinstance(value, float)}
    values |= {key: f"{value:,}" for key, value in values.items() if type(value) is int and value > 9999}
    return Template(template).substitute(values)
