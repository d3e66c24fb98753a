"""Placeholder until the gates are in."""


def inspect(pages, notebooks, documents=None):
    return []
