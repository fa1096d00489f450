"""Wherever a kill cuts a file of JSON lines, no whole line is lost and no part of one counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import InputError, Record, from_json, to_json
from palio.world import appended
from palio.world.appended import mend_end, whole_lines, whole_records

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(0, 1)
OBJECTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        PLAIN,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("appended") / "grown.jsonl"


def told(path: Path) -> list[bytes]:
    return [line.data for line in whole_lines(path)]


@settings(deadline=None, max_examples=300)
@given(st.lists(OBJECTS, max_size=5), st.data())
def test_any_prefix_is_whole_lines_and_a_torn_rest(
    path: Path, objects: list[dict[str, Any]], data: st.DataObject
) -> None:
    lines = [to_json(each) for each in objects]
    text = b"".join(line + b"\n" for line in lines)
    cut = data.draw(st.integers(0, len(text)))
    ends = [sum(len(line) + 1 for line in lines[: n + 1]) for n in range(len(lines))]
    whole = sum(end - 1 <= cut for end in ends)  # the line end may be missing
    path.write_bytes(text[:cut])

    assert told(path) == lines[:whole]
    assert path.read_bytes() == text[:cut], "who reads changes nothing"
    aside: list[bytes] = []
    lost = mend_end(path, aside=aside.append)
    kept = b"".join(line + b"\n" for line in lines[:whole])
    assert path.read_bytes() == kept
    torn = text[:cut][len(kept) :]
    assert (lost, aside) == (len(torn), [torn] if torn else [])
    assert mend_end(path, aside=aside.append) == 0, "mended once, mended for good"
    assert path.read_bytes() == kept
    assert len(aside) <= 1

    with path.open("ab") as file:
        file.write(text[len(kept) :])
    assert told(path) == lines, "what is appended then stands in lines of its own"
    assert [*whole_records(path, dict[str, Any])] == [json.loads(line) for line in lines]


def test_no_file_is_no_lines_and_stays_none(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    assert told(path) == []
    assert mend_end(path) == 0
    assert not path.exists()
    path.touch()
    assert (told(path), mend_end(path), path.read_bytes()) == ([], 0, b"")


@pytest.mark.parametrize("rest", [b"1", b'"a"', b"[1]", b"null", b" ", b"{", b'{"a":1', b"\0\0\0"])
def test_only_an_object_is_whole_without_its_line_end(tmp_path: Path, rest: bytes) -> None:
    """Of 12 the 1 is a number as well, and a power cut leaves zeros."""
    path = tmp_path / "grown.jsonl"
    path.write_bytes(b'{"a":0}\n' + rest)
    assert told(path) == [b'{"a":0}']
    assert mend_end(path) == len(rest)
    assert path.read_bytes() == b'{"a":0}\n'


def test_a_whole_last_line_gets_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "grown.jsonl"
    path.write_bytes(b'{"a":0}\n{"a":1}')
    assert told(path) == [b'{"a":0}', b'{"a":1}']
    assert mend_end(path) == 0
    assert path.read_bytes() == b'{"a":0}\n{"a":1}\n'


class Counted(Record, frozen=True):
    number: int


@pytest.mark.parametrize("broken", [b'{"number":', b'{"number":1{"number":2}', b"", b"\0"])
def test_a_torn_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "grown.jsonl"
    before = b'{"number":0}\n' + broken + b'\n{"number":3}\n{"numb'
    path.write_bytes(before)
    with pytest.raises(InputError, match=r"grown\.jsonl:2: not a valid Counted"):
        list(whole_records(path, Counted))
    assert path.read_bytes() == before
    mend_end(path)
    assert path.read_bytes() == before[: -len(b'{"numb')], "mending the end takes nothing else"
    with pytest.raises(InputError, match=r"grown\.jsonl:2"):
        list(whole_records(path, Counted))


@pytest.mark.parametrize("size", [appended._BLOCK + each for each in (-2, -1, 0, 1, 2)])
def test_lines_longer_than_a_block(tmp_path: Path, size: int) -> None:
    path = tmp_path / "grown.jsonl"
    long = to_json({"text": "x" * size})
    for first in (b"", b'{"a":0}\n'):
        path.write_bytes(first + long + b"\n" + long[:-1])
        assert len(told(path)) == 1 + bool(first)
        assert mend_end(path) == len(long) - 1
        assert path.read_bytes() == first + long + b"\n"
        path.write_bytes(first + long[:-1])
        assert mend_end(path) == len(long) - 1
        assert path.read_bytes() == first


def test_what_cannot_be_kept_aside_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "grown.jsonl"
    path.write_bytes(b'{"a":0}\n{"a')

    def full(_: bytes) -> None:
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        mend_end(path, aside=full)
    assert path.read_bytes() == b'{"a":0}\n{"a'


def test_two_processes_that_mend_at_once_write_one_line_end(tmp_path: Path) -> None:
    """Both have seen that it is missing before either writes it."""
    path = tmp_path / "grown.jsonl"
    path.write_bytes(b'{"a":0}\n{"a":1}')
    again: list[bool] = []
    real = appended._is_object

    def seen(text: bytes) -> bool:
        if not again:
            again.append(True)
            mend_end(path)  # the other process, in between
        return real(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appended, "_is_object", seen)
        mend_end(path)
    assert again
    assert path.read_bytes() == b'{"a":0}\n{"a":1}\n'


WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    number = int(sys.argv[2])
    while True:
        line = b'{"number":%d,"text":"%s"}\\n' % (number, b"x" * 300)
        for at in range(0, len(line), 50):
            file.write(line[at : at + 50])
        number += 1
        if number % 20 == 0:
            print(number, flush=True)
"""


def test_a_writer_killed_again_and_again_loses_no_line(tmp_path: Path) -> None:
    """SIGKILL wherever it happens to write; the next one goes on after what was whole."""
    path = tmp_path / "grown.jsonl"
    for _ in range(4):
        mend_end(path)
        numbers = [from_json(line, Counted).number for line in told(path)]
        assert numbers == list(range(len(numbers)))
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(len(numbers))], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.kill()
    assert len(told(path)) >= 60
