"""A name on the hub means one commit: the one that this machine holds of it, where it holds any."""

from __future__ import annotations

import re
from pathlib import Path

CONFIG = "config.json"
_COMMIT = re.compile("[0-9a-f]{40}")


def commit_of(name: str, revision: str = "", *, file: str = CONFIG) -> str:
    """The commit that a hub name means here; "" of a folder, and where nothing here tells it.

    Nobody is asked over the network: the hub's cache is read, and what it says is what is loaded
    (`pinned`), also when the hub has a newer one.

    Args:
        name: as transformers takes it.
        revision: branch, tag or commit; "" for the main branch.
        file: that the cache must hold, by its path in the repository.
    """
    if Path(name).is_dir():
        return ""
    if _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, file, revision=revision or None)
    except ValueError:  # no name that the hub could have, such as the path of a folder that is gone
        return ""
    return Path(found).parents[len(Path(file).parts) - 1].name if isinstance(found, str) else ""


def pinned(name: str, revision: str = "", *, file: str = CONFIG) -> dict[str, str]:
    """What `from_pretrained` is told, so that it loads the commit that `commit_of` tells.

    Empty of a folder, and where neither recipe nor cache tells a revision: then the hub decides.
    """
    told = commit_of(name, revision, file=file) or revision
    return {"revision": told} if told and not Path(name).is_dir() else {}
