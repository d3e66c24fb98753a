"""gpt2-mini: a GPT-2 of 12 x 12 heads that this book trains and ships in ``data/models/gpt2-mini``.

``python -m attnorm.gpt2_mini`` (``make gpt2-mini``) trains it, or goes on where it was stopped.
"""
