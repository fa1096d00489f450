"""Every setting of every kind of stage is read by the stage, or refused when the recipe is read."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.records import ConfigError, Record
from palio.train import dry
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.settings import SftSettings
from palio.train.stages import KINDS, kind_named
from palio.train.unread import unread
from tests.train_rl.test_chain import SHAPE

pytest.importorskip("trl", reason="the settings of the later stages come with it")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MODELS: dict[bool, dict[str, Any]] = {
    True: SHAPE,
    False: {"backend": "transformers", "path": "Org/Model"},
}
DOCUMENTS = {"documents": 0.2, "kinds": {"copy": 1.0}}
_INTEGRATIONS = "palio.train.reporting:Integrations"
ELSEWHERE = {
    ("rejection", "least"): "palio.train.stages.rejection:run_rejection",
    ("rejection", "sampling.model"): "palio.train.stages.rejection:token_server",
    ("kto", "sampling.model"): "palio.train.preference.kto:run_kto",
    **{(kind, "trl.extra"): _INTEGRATIONS for kind in ("base", "sft", "rejection", "teacher")},
}
"""What a dry run has no use for -> what reads it: a bar for rewards, a server, an integration."""


def paths(record: type[msgspec.Struct], head: str = "") -> Iterator[str]:
    """The settings of a record, those of its parts with a dot."""
    for field in msgspec.structs.fields(record):
        if isinstance(field.type, type) and issubclass(field.type, Record):
            yield from paths(field.type, f"{head}{field.name}.")
        else:
            yield head + field.name


def watched(record: Any, read: set[str], head: str = "") -> Any:
    """The same record, which notes what it is asked for."""
    kind = type(record)
    names = set(kind.__struct_fields__)

    def asked(self: Any, name: str) -> Any:
        if name in names:
            read.add(head + name)
        return object.__getattribute__(self, name)

    spy = type(kind.__name__, (kind,), {"__getattribute__": asked, "__module__": __name__})
    parts = {name: object.__getattribute__(record, name) for name in names}
    return spy(
        **{
            name: watched(part, read, f"{head}{name}.") if isinstance(part, Record) else part
            for name, part in parts.items()
        }
    )


def asked_of(
    stages: list[dict[str, Any]], out: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, set[str]]:
    """Kind -> what its stage asked its settings for, in a dry run."""
    read: dict[str, set[str]] = {stage["kind"]: set() for stage in stages}
    small = dry.rehearsed

    def spied(recipe: Recipe) -> Recipe:
        made = small(recipe)
        return msgspec.structs.replace(
            made,
            stages=tuple(
                msgspec.structs.replace(stage, settings=watched(stage.settings, read[stage.kind]))
                for stage in made.stages
            ),
        )

    monkeypatch.setattr(dry, "rehearsed", spied)
    dry.dry_run(read_recipe({"model": SHAPE, "stage": stages}), out, threads=1)
    return read


def source_of(name: str) -> str:
    module, _, inside = name.partition(":")
    return inspect.getsource(getattr(import_module(module), inside))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [("base", "sft", "rejection", "teacher"), ("sft", "distill", "kto", "grpo")]
)
def test_a_stage_reads_each_of_its_settings_but_those_that_are_refused(
    kinds: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"tokens": 1500, "batch": 600}
    more: dict[str, dict[str, Any]] = {
        "base": {"kinds": {"copy": 1.0}, **first},
        "sft": {**DOCUMENTS, **first},
        "rejection": first,
        "teacher": first,
    }
    stages = [{"kind": kind, **more.get(kind, {})} for kind in kinds]
    for kind, read in asked_of(stages, tmp_path, monkeypatch).items():
        record = kind_named(kind).settings
        refused = set(unread(kind, record(), ours=True))
        wanted = set(paths(record)) - refused
        elsewhere = {path for path in wanted - read if (kind, path) in ELSEWHERE}
        assert wanted - read == elsewhere, f"{kind}: nobody asks for these"
        assert not read & (refused - {"kinds"}), f"{kind}: refused, and yet read"
        for path in elsewhere:
            assert f".{path.rpartition('.')[2]}" in source_of(ELSEWHERE[kind, path])


def test_with_a_pretrained_model_nothing_but_trl_is_read_of_what_fine_tuning_shares() -> None:
    from palio.train.backends import pretrained

    asked = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(pretrained.PretrainedBackend.sft).strip()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "settings"
    }
    assert asked == {"trl"}
    shared = {field.name for field in msgspec.structs.fields(SftSettings)}
    for kind in ("sft", "rejection", "teacher"):
        found = unread(kind, kind_named(kind).settings(), ours=False)
        assert {path.split(".")[0] for path in found} == shared - {"seed", "trl"}


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 0.25 if isinstance(value, float) else value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        return {"copy": 0.5}
    return {**msgspec.to_builtins(value), "clip": 9.0} if isinstance(value, Record) else ["x"]


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_a_stage_does_not_read_is_refused_when_the_recipe_is_read(
    kind: str, ours: bool
) -> None:
    record = kind_named(kind).settings
    default = record()
    told = unread(kind, default, ours=ours)
    assert set(told) <= {*paths(record), "optimiser"}
    for path in told:
        value: Any = default
        for name in path.split("."):
            value = getattr(value, name)
        table: Any = other(value)
        for name in reversed(path.split(".")):
            table = {name: table}
        with pytest.raises(ConfigError, match=f"does not read `{path}`"):
            read_recipe({"model": MODELS[ours], "stage": [{"kind": kind, **table}]})


@pytest.mark.parametrize("kind", ["rejection", "teacher"])
def test_documents_of_later_stages_are_refused(kind: str) -> None:
    """They were taken and ignored: only fine-tuning on the corpus mixes documents in."""
    with pytest.raises(ConfigError, match="does not read `documents`") as caught:
        read_recipe({"stage": [{"kind": kind, "name": "again", "documents": 0.3}]}, where="r.toml")
    assert caught.value.where == "r.toml"
    assert "'again'" in caught.value.what
    read_recipe({"stage": [{"kind": kind, "documents": 0.0}, {"kind": "sft", **DOCUMENTS}]})


def test_a_setting_at_its_default_is_no_fault() -> None:
    stage = {"kind": "sft", "tokens": 9, "trl": {"learning_rate": 1e-4, "report_to": []}}
    read_recipe({"model": SHAPE, "stage": [stage]})
    with pytest.raises(ConfigError, match="does not read `trl.learning_rate`"):
        read_recipe({"model": SHAPE, "stage": [{**stage, "trl": {"learning_rate": 2e-4}}]})
    later = {"kind": "kto", "trl": {"learning_rate": 2e-4}}
    read_recipe({"model": SHAPE, "stage": [stage, later]})
