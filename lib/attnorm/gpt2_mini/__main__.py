"""Train gpt2-mini, or go on where it was stopped, and put it into its folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnorm import load_corpus, sources
from attnorm.gpt2_mini.config import read_config
from attnorm.gpt2_mini.language import encode, train_tokenizer


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m attnorm.gpt2_mini", description=__doc__)
    folder = sources.DATA / "models" / "gpt2-mini"
    parser.add_argument("--folder", type=Path, default=folder, help="has training.toml, gets the model")
    parser.add_argument("--checkpoint", type=Path, default=Path("_training/gpt2-mini.safetensors"))
    parser.add_argument("--device", help="cpu or cuda; by default cuda where there is one")
    chosen = parser.parse_args(arguments)

    import torch

    from attnorm.gpt2_mini.release import release
    from attnorm.gpt2_mini.train import CheckpointError, train

    device = chosen.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        config = read_config(chosen.folder / "training.toml")
        torch.set_num_threads(config.threads)
        torch.use_deterministic_algorithms(True)
        text, held_out = (load_corpus(name)[0] for name in (config.training, config.held_out))
        tokenizer = train_tokenizer(text, config.vocabulary)
        tokens, held_out = encode(tokenizer, text), encode(tokenizer, held_out)
        run = train(config, tokens, held_out, chosen.checkpoint, device=device)
        evaluation = release(config, run, tokenizer, tokens, held_out, chosen.folder)
    except (CheckpointError, ArithmeticError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {chosen.checkpoint}", file=sys.stderr)
        return 130
    print(f"{chosen.folder}: held-out loss {evaluation['held_out_loss']:.4f} nats a token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
