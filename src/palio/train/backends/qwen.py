"""The Qwen tokenizer from its published rank file, for dry runs without a model's own files."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre

from palio.records import InputError

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen cuts text before merging; part of its published tokenizer."""
_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *(f"<|{name}_{edge}|>" for name in ("object_ref", "box", "quad") for edge in ("start", "end")),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_PLAIN_MARKS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)


def qwen_tokenizer(ranks: Path) -> Any:
    """A fast tokenizer of `transformers` with Qwen3's ids.

    Args:
        ranks: a file of lines ``base64(token) rank``, as the package dashscope ships it.

    Raises:
        InputError: the file is not one of ranks.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        lines = ranks.read_bytes().split(b"\n")
        table = {base64.b64decode(t): int(r) for t, r in (x.split() for x in lines if x)}
    except (OSError, ValueError) as error:
        raise InputError(f"no readable rank file: {error}", where=str(ranks)) from error
    letters = _letters()
    spell: Callable[[bytes], str] = lambda token: "".join(letters[b] for b in token)  # noqa: E731
    merges = []
    for token, rank in sorted(table.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _last_merge(token, rank, table)
            if len(parts) != 2:
                raise InputError(
                    f"token {token!r} is no merge of tokens of lower rank",
                    where=str(ranks),
                    remedy="install the package again, or name another tokenizer",
                )
            merges.append((spell(parts[0]), spell(parts[1])))
    vocabulary = {spell(token): rank for token, rank in table.items()}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(_WORDS), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in _MARKS])
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in _PLAIN_MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=_MARKS[2], pad_token=_MARKS[0])


def _last_merge(token: bytes, rank: int, table: dict[bytes, int]) -> list[bytes]:
    """The two parts that a token is merged from, what lower ranks make of its bytes; more: none."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        ranked = [table.get(parts[at] + parts[at + 1], rank) for at in range(len(parts) - 1)]
        best = min(range(len(ranked)), key=ranked.__getitem__)
        if ranked[best] >= rank:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _letters() -> dict[int, str]:
    """The byte-level alphabet: printable bytes are themselves, the others follow from U+0100."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(hidden)}
