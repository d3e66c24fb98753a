"""Where the code runs: in a notebook kernel, and if so in which cell."""

from __future__ import annotations

import sys


def shell():
    """The running IPython shell, or None. IPython is asked only where it is already loaded."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def current_run() -> tuple[object, object]:
    """Which execution we are in, and of which cell: ``(run, cell)``.

    Two calls with equal ``run`` belong to one execution. Two with equal ``cell`` belong to the same cell,
    perhaps run again: front ends name the cell; where they do not, its source text stands for it. Outside a
    kernel the whole process is one run.
    """
    ip = shell()
    if ip is None:
        return None, None
    parent = ip.get_parent() if hasattr(ip, "get_parent") else {}
    if not parent:  # IPython in a terminal
        return ip.execution_count, ip.user_ns.get("In", [None])[-1]
    cell = parent.get("metadata", {}).get("cellId") or parent.get("content", {}).get("code")
    return parent.get("header", {}).get("msg_id"), cell
