"""A corpus and its suite become a folder that verl or verifiers trains on; held-out stays out.

For verl: `rl/POOL.parquet` with a row a problem, `sft/POOL.parquet` with a row a conversation,
`tools.yaml`, `reward.py`, `sft_dataset.py`. For verifiers: a package `palio_shop` with the tasks.
Both: `shop.json`, what tools and scorer need; README.md; the manifest last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2
import msgspec
import pyarrow as pa

from palio import __version__
from palio.corpus.build import POOL_FILE, read_pools
from palio.corpus.membership import check_catalogues, check_problems
from palio.corpus.readers.chat import read_chat
from palio.corpus.rows import read_rows
from palio.corpus.writers.hugging_face import chat_row
from palio.corpus.writers.tables import CHAT, SplitWriter
from palio.records import InputError, Problem, Provenance, Record, digest, to_json
from palio.suites.files import read_suite
from palio.train.environments.shop import SETTINGS, Shop, ShopSettings
from palio.train.inputs import check_listed
from palio.world.artefacts import MANIFEST, file_digest, naming, write_lines, write_manifest

Framework = Literal["verl", "verifiers"]
POOLS = ("train", "development")
TASKS, PACKAGE = "tasks.jsonl", "palio_shop"
SOURCE, AGENT = "palio", "tool_agent"
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])


class ShopTask(Record, frozen=True):
    """One line of `tasks.jsonl`: what is asked, and how the harness begins.

    Attributes:
        pool: train or development.
        system: system message, "" for none.
        problem: as JSON text; never shown to a model.
    """

    pool: str
    query: str
    system: str
    problem: str


class ShopExport(Record, frozen=True, omit_defaults=False):
    """What an export wrote: pool -> problems, and pool -> conversations of the corpus."""

    to: Framework
    problems: dict[str, int]
    rows: dict[str, int]


def export_shop(
    to: Framework, corpus: Path, suite: Path, settings: ShopSettings, out: Path
) -> ShopExport:
    """Write the training and development pools of a corpus for another framework.

    Args:
        to: verl or verifiers.
        corpus: folder of a finished `palio corpus build`; its pools decide.
        suite: suite that the corpus was built with.
        settings: what tools and scorer need; catalogues by path.
        out: folder to write.

    Raises:
        InputError: a catalogue is missing, no problem of the suite is in the training pool, or one
            is not the corpus' of that id.
        IntegrityError: the corpus' pools or rows are not those that it was certified with.
    """
    check_listed(corpus, POOL_FILE, *(f"{pool}.jsonl" for pool in POOLS))
    pools, held = read_pools(corpus), read_suite(suite).problems
    check_problems(corpus, held, suite)
    problems = {
        pool: [each for each in held if pools.get(each.problem_id) == pool] for pool in POOLS
    }
    if not problems["train"]:
        raise InputError(
            "no problem of the suite is in the training pool of the corpus",
            where=str(suite),
            remedy="name the suite that the corpus was built with",
        )
    settings = msgspec.structs.replace(
        settings, catalogues=tuple(str(Path(name).resolve()) for name in settings.catalogues)
    )
    shop = Shop.open(settings)
    check_catalogues(corpus, shop.digests)
    settings = msgspec.structs.replace(settings, digests=shop.digests)
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
    write: Callable[..., dict[str, int]] = _verl if to == "verl" else _verifiers
    with naming(out):
        rows = write(corpus, problems, shop, settings, out)
    report = ShopExport(
        to=to, problems={pool: len(each) for pool, each in problems.items()}, rows=rows
    )
    steps = max(shop.max_steps(each.catalogue) for each in problems["train"])
    _write(out / "README.md", _readme(report, out, steps))
    inputs = {"corpus": file_digest(corpus / MANIFEST), "suite": file_digest(suite)}
    inputs |= {f"catalogue:{name}": each for name, each in shop.digests.items()}
    write_manifest(_manifest(report, settings, inputs, out), out / MANIFEST)
    return report


def rl_row(
    problem: Problem, index: int, pool: str, *, system: str = "", tools: Sequence[str]
) -> dict[str, Any]:
    """One row of verl's RL data for a problem.

    The prompt is what every harness of palio begins with; the problem, targets and all, is the
    ground truth that only the reward function reads.
    """
    prompt = [{"role": "system", "content": system}] if system else []
    create = {"create_kwargs": {"catalogue": problem.catalogue}}
    return {
        "data_source": SOURCE,
        "agent_name": AGENT,
        "prompt": [*prompt, {"role": "user", "content": problem.query}],
        "ability": problem.kind,
        "reward_model": {"style": "rule", "ground_truth": to_json(problem).decode()},
        "extra_info": {
            "index": index,
            "split": pool,
            "problem_id": problem.problem_id,
            "need_tools_kwargs": True,
            "tools_kwargs": dict.fromkeys(tools, create),
        },
    }


def rl_schema(tools: Sequence[str]) -> pa.Schema:
    """Columns of verl's RL data."""
    create = pa.struct([("create_kwargs", pa.struct([("catalogue", pa.string())]))])
    extra = pa.struct(
        [
            ("index", pa.int64()),
            ("split", pa.string()),
            ("problem_id", pa.string()),
            ("need_tools_kwargs", pa.bool_()),
            ("tools_kwargs", pa.struct([(tool, create) for tool in tools])),
        ]
    )
    truth = pa.struct([("style", pa.string()), ("ground_truth", pa.string())])
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("agent_name", pa.string()),
            ("prompt", pa.list_(_MESSAGE)),
            ("ability", pa.string()),
            ("reward_model", truth),
            ("extra_info", extra),
        ]
    )


def _verl(
    corpus: Path,
    problems: Mapping[str, Sequence[Problem]],
    shop: Shop,
    settings: ShopSettings,
    out: Path,
) -> dict[str, int]:
    """All files for verl; the conversations of each pool."""
    rows: dict[str, int] = {}
    for folder in ("rl", "sft"):
        (out / folder).mkdir(exist_ok=True)
    for pool, asked in problems.items():
        with closing(SplitWriter(out / "rl", pool, rl_schema(shop.tools))) as writer:
            for index, problem in enumerate(asked):
                system = shop.system(problem.catalogue)
                writer.write(rl_row(problem, index, pool, system=system, tools=shop.tools))
        with closing(SplitWriter(out / "sft", pool, CHAT)) as writer:
            for row in _conversations(corpus, pool):
                writer.write(row)
            rows[pool] = writer.rows
    _write(out / SETTINGS, to_json(settings).decode())
    _write(out / "tools.yaml", tool_config(shop.tools, out / SETTINGS))
    _write(out / "reward.py", _file("reward.py.txt"))
    _write(out / "sft_dataset.py", _file("sft_dataset.py.txt"))
    return rows


def _conversations(corpus: Path, pool: str) -> Iterator[dict[str, Any]]:
    for row in read_rows(corpus / f"{pool}.jsonl"):
        yield from chat_row(read_chat(msgspec.to_builtins(row), "corpus").trajectory).rows


def tool_config(tools: Sequence[str], settings: Path) -> str:
    """`tool_config_path` of verl: one entry a tool, as JSON, which is YAML too."""
    entries = [
        {
            "class_name": "palio.train.environments.verl_tools.ShopTool",
            "config": {"type": "native", "tool": tool, "settings": str(settings.resolve())},
        }
        for tool in tools
    ]
    return json.dumps({"tools": entries}, indent=2)


def _verifiers(
    corpus: Path,  # noqa: ARG001 - one signature for both frameworks
    problems: Mapping[str, Sequence[Problem]],
    shop: Shop,
    settings: ShopSettings,
    out: Path,
) -> dict[str, int]:
    """The package for verifiers; no conversations."""
    package = out / PACKAGE
    package.mkdir(exist_ok=True)
    tasks = [
        ShopTask(
            pool=pool,
            query=problem.query,
            system=shop.system(problem.catalogue),
            problem=to_json(problem).decode(),
        )
        for pool, asked in problems.items()
        for problem in asked
    ]
    write_lines(package / TASKS, [to_json(task) + b"\n" for task in tasks])
    _write(package / SETTINGS, to_json(settings).decode())
    _write(package / "__init__.py", _file("verifiers_package.py.txt"))
    _write(out / "pyproject.toml", _file("verifiers_project.toml.txt"))
    return {}


def _file(name: str) -> str:
    return resources.files(__package__).joinpath("files", name).read_text("utf-8")


def _write(path: Path, text: str) -> None:
    write_lines(path, [text.rstrip("\n").encode() + b"\n"])


def _readme(report: ShopExport, out: Path, steps: int) -> str:
    # Markdown, not HTML: nothing in it comes from an agent
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701
    return environment.from_string(_file(f"{report.to}.md.j2")).render(
        pools=POOLS,
        problems=report.problems,
        rows=report.rows,
        out=out.resolve(),
        steps=steps,
        version=__version__,
    )


def _manifest(
    report: ShopExport, settings: ShopSettings, inputs: dict[str, str], out: Path
) -> Provenance:
    return Provenance(
        kind="export",
        tool_version=__version__,
        config=msgspec.to_builtins(settings),
        config_digest=digest(settings),
        inputs=inputs,
        outputs={
            str(path.relative_to(out)): file_digest(path)
            for path in sorted(out.rglob("*"))
            if path.is_file() and path.name != MANIFEST and "__pycache__" not in path.parts
        },
        counts={f"problems:{pool}": count for pool, count in report.problems.items()}
        | {f"rows:{pool}": count for pool, count in report.rows.items()},
    )
