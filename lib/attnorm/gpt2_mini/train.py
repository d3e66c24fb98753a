"""The training loop: the same weights from the same configuration, in one go or in pieces."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from attnorm.gpt2_mini.config import Config
from attnorm.origins import initialise


class CheckpointError(Exception):
    """A checkpoint is damaged, or belongs to another configuration."""


@dataclass
class Run:
    """A model in training.

    Attributes
    ----------
    step : int
        Steps done.
    curve : list of dict
        A row every ``config.every`` steps: step, tokens, context, learning_rate, loss, held_out, seconds.
        ``loss`` is the mean over the steps since the row before; losses are in nats a token.
    """

    model: object
    optimiser: object
    step: int = 0
    seconds: float = 0.0
    curve: list = field(default_factory=list)


def new_model(config: Config):
    """GPT-2's architecture in the configured size, with fresh weights and without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return initialise(
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=config.vocabulary,
            n_positions=config.context,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, in one fused kernel
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        ),
        "sdpa",
        config.seed,
    )


def start(config: Config, device="cpu") -> Run:
    """A run before its first step."""
    model = new_model(config).to(device).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=config.betas,
        fused=True,
    )
    return Run(model, optimiser)


def batch(config: Config, tokens: np.ndarray, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of the text and the positions of their tokens, for step 0, 1, ...; both (B, context).

    They depend on the seed and the step alone, so that a run can be taken up anywhere.
    """
    context = config.context_at(step)
    if len(tokens) <= context:
        raise ValueError(f"the text has {len(tokens)} tokens, too few for windows of {context}")
    rng = np.random.default_rng((config.seed, step))
    count = config.batch_tokens // context
    starts = rng.integers(len(tokens) - context, size=(count, 1))
    offsets = rng.integers(config.context - context + 1, size=(count, 1))
    row = np.arange(context)
    return torch.from_numpy(tokens[starts + row]), torch.from_numpy(offsets + row)


def loss_of(model, tokens: torch.Tensor, positions: torch.Tensor | None = None, reduction="mean"):
    """Cross-entropy of each next token in nats; tokens (B, L), of which the first is only read."""
    logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, :-1]
    return cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction=reduction)


def held_out_loss(model, tokens: np.ndarray, context: int) -> float:
    """Mean loss over a text cut into consecutive windows, in nats a token.

    Parameters
    ----------
    model : transformers.GPT2LMHeadModel
    tokens : (N,) array of int
    context : int
        Length of a window. Windows share one token: every token but the first of the text is predicted once.
    """
    device = next(model.parameters()).device
    total = 0.0
    with torch.no_grad():
        for start_at in range(0, len(tokens) - 1, context - 1):
            window = torch.as_tensor(tokens[start_at : start_at + context], device=device)
            total += float(loss_of(model, window[None], reduction="sum"))
    return total / (len(tokens) - 1)


def advance(config: Config, run: Run, tokens: np.ndarray, held_out: np.ndarray, until: int, bar=None) -> None:
    """Train `run` in place up to step `until`."""
    device = next(run.model.parameters()).device
    losses = []
    while run.step < until:
        begin = time.perf_counter()
        rate = config.learning_rate_at(run.step)
        for group in run.optimiser.param_groups:
            group["lr"] = rate
        window, positions = batch(config, tokens, run.step)
        loss = loss_of(run.model, window.to(device), positions.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.clip)
        run.optimiser.step()
        run.optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if not np.isfinite(losses[-1]):
            raise ArithmeticError(f"the loss is {losses[-1]} at step {run.step}: lower the learning rate")
        run.step += 1
        run.seconds += time.perf_counter() - begin
        if run.step % config.every == 0 or run.step == config.steps:
            # A few windows say enough on the way; the whole text is measured at the end.
            part = held_out[: 8 * config.context]
            run.curve.append(
                {
                    "step": run.step,
                    "tokens": config.tokens_after(run.step),
                    "context": window.shape[1],
                    "learning_rate": rate,
                    "loss": float(np.mean(losses)),
                    "held_out": held_out_loss(run.model, part, window.shape[1]),
                    "seconds": round(run.seconds),
                }
            )
            losses.clear()
        if bar is not None:
            bar.update()
            bar.set_postfix(context=window.shape[1], loss=f"{float(loss.detach()):.2f}", refresh=False)


def save(config: Config, run: Run, path: Path) -> None:
    """Write a checkpoint whole or not at all; everything in it is a safetensors file."""
    from safetensors.torch import save_file

    names = {p: name for name, p in run.model.named_parameters()}
    tensors = {f"model.{name}": p.detach() for p, name in names.items()}
    for parameter, state in run.optimiser.state.items():
        for key, value in state.items():
            tensors[f"optimiser.{key}.{names[parameter]}"] = value
    about = {"digest": config.digest, "step": run.step, "seconds": run.seconds, "curve": run.curve}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    save_file(
        {name: t.contiguous().cpu() for name, t in tensors.items()}, partial, {"run": json.dumps(about)}
    )
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)


def resume(config: Config, path: Path, device="cpu") -> Run:
    """The run that a checkpoint holds.

    Raises
    ------
    CheckpointError
        If the file is damaged, or was made with another configuration.
    """
    from safetensors import SafetensorError, safe_open

    run = start(config, device)
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            about = json.loads(file.metadata()["run"])
            if about["digest"] != config.digest:
                raise CheckpointError(
                    f"{path} belongs to another configuration: delete it to start again, "
                    "or put the configuration back"
                )
            with torch.no_grad():
                for name, parameter in run.model.named_parameters():
                    parameter.copy_(file.get_tensor(f"model.{name}"))
                    if about["step"]:
                        run.optimiser.state[parameter] = {
                            key: file.get_tensor(f"optimiser.{key}.{name}")
                            for key in ("step", "exp_avg", "exp_avg_sq")
                        }
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): delete it to start again") from error
    run.step, run.seconds, run.curve = about["step"], about["seconds"], about["curve"]
    return run


def train(config: Config, tokens, held_out, checkpoint: Path, *, device="cpu", until=None) -> Run:
    """Train from the checkpoint, if there is one, to the end, with checkpoints on the way.

    Parameters
    ----------
    config : Config
    tokens, held_out : (N,) and (M,) arrays of int
    checkpoint : Path
    device : str
    until : int, optional
        Stop after this step.
    """
    from tqdm import tqdm

    run = resume(config, checkpoint, device) if checkpoint.is_file() else start(config, device)
    until = config.steps if until is None else min(until, config.steps)
    with tqdm(total=config.steps, initial=run.step, unit="step", desc="gpt2-mini", mininterval=5) as bar:
        while run.step < until:
            # A checkpoint falls on a row of the curve, so that no mean over steps is cut in two.
            pause = run.step - run.step % config.checkpoint_every + config.checkpoint_every
            advance(config, run, tokens, held_out, min(pause, until), bar)
            save(config, run, checkpoint)
    return run
