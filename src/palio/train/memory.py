"""Memory that nobody uses any more goes back between stages and between examinations.

A trainer and its model hold each other, so that the next stage would stand beside them. And glibc
keeps what its threads' arenas have freed: after 90 rollouts by 96 threads a process of 440 MiB has
700 until it is asked.
"""

from __future__ import annotations

import ctypes
import gc

import torch


def give_back() -> None:
    """Collect cycles, and hand freed memory to the system; CUDA's cache, where there is one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # another C library than glibc has none
        trim(0)
