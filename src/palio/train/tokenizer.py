"""A vocabulary of about a thousand entries that loses nothing: decode(encode(text)) == text.

Three ideas keep trajectories short and copying easy. A string of JSON or chat syntax is one token
(`glue`). A word has one form wherever it stands: the mark at the start of a word stands for the
space before it only where another word precedes, so a brand has the same pieces in the request, in
a title and in a call. Numbers go in chunks of two digits. Underneath are the 256 bytes, so that
any text can be written. The file is an ordinary `tokenizers` JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre
from tokenizers.trainers import BpeTrainer

from palio.records import InputError, Message
from palio.train.glue import MARKS, frequent_glue
from palio.train.text import END, Segment, chat_template, chat_text, segments

PAD = "<|pad|>"
_MARK, _SPACE, _ESCAPE = "\x1f", "\x1c", "\x1e"
"""Control characters that stand for "a word starts", "a space", "one of these three itself"."""
_ESCAPED = ("\x11", "\x12", "\x13")
_WORD = "A-Za-z0-9"
_LEVEL_MARK = "\u011f"
"""How the byte-level alphabet writes the mark."""
_COMMON = 0.003
"""A word in this share of the conversations is common and gets an entry; the others (brands) are
cut into pieces that many of them share."""
_CHUNK = 512
"""Texts encoded at once: all 13,000 trajectories of a corpus at once take 670 MB of offsets."""
_SYLLABLES = 160
"""Pieces of rare words. Between 230 syllables and 26 letters: 2 to 4 pieces a brand."""


class Encoded(NamedTuple):
    """Token ids of a conversation and, token by token, whether the assistant wrote it."""

    ids: list[int]
    trained: list[bool]


class ChatTokenizer:
    """Tokens of chat text; see the module.

    Attributes:
        size: number of entries.
        end: id of the token that ends a turn.
        pad: id of the padding token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size()
        self.end = self.id_of(END)
        self.pad = self.id_of(PAD)

    def id_of(self, token: str) -> int:
        """The id of one entry.

        Raises:
            InputError: the vocabulary has no such entry.
        """
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise InputError(f"the tokenizer has no entry {token!r}", remedy="train it with palio")
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of a text; chat marks in it become their tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, chat marks included; exact for ids that `encode` gave."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def encode_chat(self, messages: Sequence[Message]) -> Encoded:
        """Ids of a whole conversation and which of them are trained on."""
        return self.encode_chats([messages])[0]

    def encode_chats(self, conversations: Iterable[Sequence[Message]]) -> list[Encoded]:
        """`encode_chat` of many conversations, in one batch."""
        return self.encode_segments(segments(messages) for messages in conversations)

    def encode_segments(self, texts: Iterable[Iterable[Segment]]) -> list[Encoded]:
        """Ids of segmented texts; neighbours that are not trained on are encoded as one."""
        stream, out = iter(texts), []
        while chunk := list(islice(stream, _CHUNK)):
            out += self._encode_chunk(chunk)
        return out

    def _encode_chunk(self, texts: Iterable[Iterable[Segment]]) -> list[Encoded]:
        pieces: list[str] = []
        plans: list[list[bool]] = []
        for parts in texts:
            plan: list[bool] = []
            for text, trained in parts:
                if plan and not trained and not plan[-1]:
                    pieces[-1] += text
                else:
                    pieces.append(text)
                    plan.append(trained)
            plans.append(plan)
        encodings = iter(self._tokenizer.encode_batch(pieces, add_special_tokens=False))
        out = []
        for plan in plans:
            encoded = Encoded([], [])
            for trained in plan:
                ids = next(encodings).ids
                encoded.ids.extend(ids)
                encoded.trained.extend([trained] * len(ids))
            out.append(encoded)
        return out

    def save(self, folder: Path, *, longest: int = 4096) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`.

        Args:
            folder: of a checkpoint.
            longest: tokens that its model has places for; servers take no longer prompts.
        """
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": longest,
        }
        (folder / "tokenizer.json").write_text(self.to_json(), "utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), "utf-8")
        (folder / "chat_template.jinja").write_text(chat_template(), "utf-8")

    def to_json(self) -> str:
        """The `tokenizers` JSON, the same for the same vocabulary."""
        text: str = self._tokenizer.to_str(pretty=False)
        return text

    @classmethod
    def from_json(cls, text: str) -> ChatTokenizer:
        """Inverse of `to_json`."""
        return cls(Tokenizer.from_str(text))

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """Read the tokenizer of a checkpoint folder.

        Raises:
            InputError: the folder has none, or it is not one of palio's.
        """
        path = folder / "tokenizer.json"
        try:
            return cls.from_json(path.read_text("utf-8"))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"no readable tokenizer: {error}", where=str(path)) from error


def train_tokenizer(
    conversations: Sequence[Sequence[Message]], *, size: int = 1024, glue: int = 112
) -> ChatTokenizer:
    """Learn a vocabulary from a sample of conversations; the same sample gives the same bytes.

    Common words get an entry each, as many as leave room for `_SYLLABLES` pieces of rare words.

    Args:
        conversations: about a thousand from the corpus; ASCII letters and digits are words.
        size: entries in all; the bytes, digit chunks and chat marks take about 490.
        glue: how many strings of syntax get an entry of their own, at most.
    """
    found = [*MARKS, *frequent_glue(conversations, limit=glue)]
    literals = sorted(dict.fromkeys(found), key=lambda text: (-len(text), text))
    alphabet = sorted(pre.ByteLevel.alphabet())
    bare = _assemble(alphabet, [], literals)
    fixed = [*alphabet, *_digit_chunks()]
    room = size - len(fixed) - len(literals) - 2
    held = _document_frequencies(bare, conversations)
    least = _COMMON * len(conversations)
    common = sorted(word for word, count in held.items() if count >= least and len(word) > 1)
    common.sort(key=lambda word: -held[word])
    common = common[: max(0, room - _SYLLABLES)]
    merges = _merges([word for word in sorted(held) if word not in set(common)])
    merges = merges[: max(0, room - len(common))]
    entries = [*fixed, *common, *(left + right for left, right in merges)]
    return ChatTokenizer(_assemble(list(dict.fromkeys(entries)), merges, literals))


def _assemble(
    entries: Sequence[str], merges: list[tuple[str, str]], literals: Sequence[str]
) -> Tokenizer:
    vocabulary = {entry: number for number, entry in enumerate([PAD, *entries])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.normalizer = norm.Sequence(
        [
            norm.Replace(_ESCAPE, f"{_ESCAPE}{_ESCAPED[0]}"),
            norm.Replace(_MARK, f"{_ESCAPE}{_ESCAPED[1]}"),
            norm.Replace(_SPACE, f"{_ESCAPE}{_ESCAPED[2]}"),
            norm.Replace(Regex(f"(?<=[{_WORD}]) (?=[{_WORD}])"), _MARK),
            norm.Replace(" ", _SPACE),
        ]
    )
    # `Metaspace` puts the mark before every piece that has none yet: a word looks the same after a
    # space and after a quote. Before punctuation the mark says nothing and decodes to nothing.
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(f"{_MARK}?[{_WORD}]+"), "isolated"),
            pre.Metaspace(replacement=_MARK, prepend_scheme="always", split=False),
            pre.Split(Regex(f"{_MARK}?[A-Za-z]+|{_MARK}?[0-9]{{1,2}}"), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteLevel(),
            decoders.Replace(Regex(f"(?<=[{_WORD}]){_MARK}(?=[{_WORD}])"), " "),
            decoders.Replace(_MARK, ""),
            decoders.Replace(_SPACE, " "),
            decoders.Replace(f"{_ESCAPE}{_ESCAPED[2]}", _SPACE),
            decoders.Replace(f"{_ESCAPE}{_ESCAPED[1]}", _MARK),
            decoders.Replace(f"{_ESCAPE}{_ESCAPED[0]}", _ESCAPE),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(PAD, special=True), AddedToken(END, special=True)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in literals])
    return tokenizer


def _digit_chunks() -> list[str]:
    """One token for each one-digit and two-digit chunk, at the start of a number or inside."""
    pairs = [f"{first}{second}" for first in "0123456789" for second in "0123456789"]
    return [_LEVEL_MARK + chunk for chunk in ["0123456789"[i] for i in range(10)] + pairs] + pairs


def _document_frequencies(
    bare: Tokenizer, conversations: Sequence[Sequence[Message]]
) -> Counter[str]:
    """In how many conversations each piece outside the literals stands; numbers left out."""
    literals = {token.content for token in bare.get_added_tokens_decoder().values()}
    held: Counter[str] = Counter()
    for messages in conversations:
        held.update(set(_pieces(bare, chat_text(messages))) - literals)
    return Counter({w: n for w, n in held.items() if not w.removeprefix(_LEVEL_MARK).isdigit()})


def _merges(words: list[str]) -> list[tuple[str, str]]:
    """Merges learned from rare words, each counted once, so that their shared syllables win."""
    learner = Tokenizer(models.BPE())
    trainer = BpeTrainer(
        vocab_size=1 << 16,
        min_frequency=4,
        initial_alphabet=sorted(pre.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(words, trainer)
    learned: list[Any] = json.loads(learner.to_str())["model"]["merges"]
    return [(left, right) for left, right in learned]


def _pieces(bare: Tokenizer, text: str) -> list[str]:
    """Byte-level words of a text, and the literals between them as they stand."""
    encoding = bare.encode(text, add_special_tokens=False)
    words: list[str] = []
    last: int | None = None
    for token, word in zip(encoding.tokens, encoding.word_ids, strict=True):
        if word is not None and word == last:
            words[-1] += token
        else:
            words.append(token)
        last = word
    return words
