"""Answers to a teacher's turns, in one folder of one policy: none lost, none asked for twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from palio.broker.pin import ModelPin
from palio.evaluate.pin import MODEL, check_pin, pin_of
from palio.evaluate.steps import StepAnswer
from palio.records import InputError, to_json
from palio.rollout.config import FILE, hold_config
from palio.rollout.journal import lock_folder
from palio.world.appended import mend_end, whole_records
from palio.world.artefacts import naming, read_manifest

ANSWERS = "steps.jsonl"


@contextmanager
def held_steps(folder: Path, config: Mapping[str, Any]) -> Iterator[list[StepAnswer]]:
    """Hold a folder of answers and give those that are in it; made when missing.

    A last line that a kill tore is cut off.

    Args:
        folder: of the answers.
        config: everything that decides them, the policy's pin among it.

    Raises:
        ConfigError: another process holds it.
        ResumeError: it has answers of another configuration, or of another model.
        InputError: a whole line is no answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        answers = read_answers(folder)
        before = read_manifest(folder / FILE)
        then = before.config if before else dict(config)
        if {**then, MODEL: None} == {**config, MODEL: None}:  # at most the model is another one
            if answers:
                check_pin(then, config, folder)
            elif then != config:
                (folder / FILE).unlink()
        hold_config(folder, "eval-steps", config)
        mend_end(folder / ANSWERS)
        yield answers


class Against(NamedTuple):
    """The answers of another policy, what it is called, and which weights it had."""

    answers: list[StepAnswer]
    name: str
    model: ModelPin | None


def read_against(folder: Path, config: Mapping[str, Any]) -> Against:
    """The answers of another policy to the same turns.

    Args:
        folder: of an earlier `palio eval steps`.
        config: of the policy that it is compared with.

    Raises:
        InputError: there are none, or they are to other conversations, or in another world or
            catalogue.
    """
    held = read_manifest(folder / FILE)
    if held is None or held.kind != "eval-steps":
        raise InputError(
            "holds no answers", where=str(folder), remedy="`palio eval steps --out` makes them"
        )
    then = {"catalogues": config.get("catalogues"), **held.config}  # older ones do not tell them
    keys = ("rows", "world", "catalogues")
    other = [key for key in keys if then.get(key) != config.get(key)]
    if other:
        raise InputError(
            f"these answers are to other questions: other {' and '.join(other)}",
            where=str(folder),
            remedy="ask both policies with the same --corpus, --pool, --catalogue and --world",
        )
    name = str(held.config.get("policy") or folder.name)
    return Against(read_answers(folder), name, pin_of(held.config))


def read_answers(folder: Path) -> list[StepAnswer]:
    """The answers in a folder; a line that is not whole is none, no file is no answers.

    Raises:
        InputError: a whole line is no answer.
    """
    return list(whole_records(folder / ANSWERS, StepAnswer))


def append_answer(folder: Path, answer: StepAnswer) -> None:
    """Keep one answer; it is on the operating system's side when this returns."""
    path = folder / ANSWERS
    with naming(path), path.open("ab") as file:
        file.write(to_json(answer) + b"\n")
