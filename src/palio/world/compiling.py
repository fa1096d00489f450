"""Loops over arrays are compiled on first use; the code is kept on disk where that can be done."""

from __future__ import annotations

from typing import Any

import numba


def compiled(function: Any) -> Any:
    """The function compiled by numba; with NumPy's rules for division, so nothing is raised."""
    try:
        return numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither its own folder nor the user's cache folder is writable
        return numba.njit(error_model="numpy")(function)
