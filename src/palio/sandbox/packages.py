"""The one package beside the standard library that arena agents may expect: requests, read-only.

Its pure-Python files are taken from this installation and handed to the sandbox as one archive.
Where requests is not installed there is none, and an agent that imports it fails as it would alone.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib import metadata

NAMES = ("requests", "urllib3", "idna", "certifi", "charset-normalizer")
KEPT = (".py", ".pem")
_MOMENT = (2026, 1, 1, 0, 0, 0)


@cache
def archive() -> bytes:
    """An uncompressed zip file of the packages, the same bytes each time; b"" without requests."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as made:
        for name in NAMES:
            try:
                files = metadata.distribution(name).files or []
            except metadata.PackageNotFoundError:
                return b""
            for file in sorted(files, key=str):
                path = str(file)
                if path.endswith(KEPT) and not path.startswith(("..", "/")):
                    entry = zipfile.ZipInfo(path, _MOMENT)
                    made.writestr(entry, file.read_binary())
    return packed.getvalue()
