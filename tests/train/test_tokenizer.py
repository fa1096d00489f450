"""The vocabulary loses nothing, is small, deterministic, and marks what is trained."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import InputError, Message
from palio.train.text import END, assistant_text, chat_text
from palio.train.tokenizer import ChatTokenizer, train_tokenizer


def test_a_conversation_comes_back_letter_by_letter(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer
) -> None:
    for messages in talks:
        text = chat_text(messages)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(
    text=st.text()
    | st.text(alphabet='ab 1\x1f\x1e\x1c\x11\x12\x13<|im_end>\n"{}:,é▁Ġ', max_size=40)
)
def test_any_text_comes_back(tokenizer: ChatTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_of_a_conversation_are_those_of_its_text_and_prompts_are_prefixes(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer
) -> None:
    for messages in talks[:20]:
        ids = tokenizer.encode_chat(messages).ids
        assert ids == tokenizer.encode(chat_text(messages))
        for cut, message in enumerate(messages):
            if message.role == "assistant":
                prompt = tokenizer.encode(chat_text(messages[:cut], reply=True))
                assert ids[: len(prompt)] == prompt


def test_the_mask_decodes_to_what_the_assistant_wrote(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer
) -> None:
    for messages in talks:
        ids, trained = tokenizer.encode_chat(messages)
        runs: list[list[int]] = []
        for at, (token, on) in enumerate(zip(ids, trained, strict=True)):
            if on and not (at and trained[at - 1]):
                runs.append([])
            if on:
                runs[-1].append(token)
        wanted = [assistant_text(m) + END for m in messages if m.role == "assistant"]
        assert [tokenizer.decode(run) for run in runs] == wanted


def test_a_word_has_the_same_pieces_wherever_it_stands(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer
) -> None:
    word = tokenizer.encode("zorbrixum")
    spoken = tokenizer.encode("show me a zorbrixum, please")
    written = tokenizer.encode('{"title":"zorbrixum"}')
    for ids in (spoken, written):
        assert any(ids[at : at + len(word)] == word for at in range(len(ids)))


def test_trajectories_are_short(talks: list[Sequence[Message]], tokenizer: ChatTokenizer) -> None:
    letters = sum(len(chat_text(messages)) for messages in talks)
    tokens = sum(len(tokenizer.encode_chat(messages).ids) for messages in talks)
    assert tokenizer.size <= 900
    assert letters / tokens > 5


def test_the_same_sample_gives_the_same_bytes_in_another_process(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    import pickle

    (tmp_path / "talks").write_bytes(pickle.dumps(talks))
    code = (
        "import pickle, sys, hashlib\n"
        "from palio.train.tokenizer import train_tokenizer\n"
        "talks = pickle.load(open(sys.argv[1], 'rb'))\n"
        "made = train_tokenizer(talks, size=900).to_json()\n"
        "print(hashlib.sha256(made.encode()).hexdigest())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "talks")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert out == hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def test_transformers_loads_it_with_template_and_masks(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    plain = [message.to_openai() for message in talks[0]]
    made = loaded.apply_chat_template(
        plain, return_dict=True, return_assistant_tokens_mask=True, add_generation_prompt=False
    )
    ids, trained = tokenizer.encode_chat(talks[0])
    assert made["input_ids"] == ids
    assert [bool(each) for each in made["assistant_masks"]] == trained
    assert loaded.decode(ids) == chat_text(talks[0])
    assert (loaded.eos_token, loaded.eos_token_id) == (END, tokenizer.end)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        ChatTokenizer.load(tmp_path)


def test_nothing_to_learn_from_still_gives_a_vocabulary_that_writes_anything() -> None:
    bare = train_tokenizer([[Message(role="user", content="")]], size=600)
    assert bare.decode(bare.encode("Ünï \x00 code")) == "Ünï \x00 code"
