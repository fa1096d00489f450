"""A checkpoint's card says what it was made of, stage by stage, and what was measured, with n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from palio import __version__
from palio.broker.pin import ModelPin
from palio.records import InputError, Provenance, Record
from palio.train.audit import read_audit
from palio.train.checkpoint import checkpoint_folder
from palio.train.ground import TRAIN
from palio.train.held import TEACHER
from palio.train.rows import ROWS, TEMPLATE, told_digests
from palio.train.servers import ENDPOINT
from palio.train.serving import checkpoint_digests, is_own
from palio.world.artefacts import read_manifest, write_lines

CARD = "README.md"
OUTSIDE = "outside the corpus"


class Measured(Record, frozen=True):
    """One measured rate.

    Attributes:
        measure: what, on which problems, e.g. "greedy ASR (oro), held-out".
        value, low, high: in [0, 1], with its 95 % interval.
        n: problems that were scored.
        weights: digest of those that were measured; "" where the evaluation does not tell.
        pool: of the corpus, of which the problems are, see `pool_told`; "" where nobody told.
        unscored: problems that infrastructure kept from being scored.
    """

    measure: str
    value: float
    low: float
    high: float
    n: int
    weights: str = ""
    pool: str = ""
    unscored: int = 0


def pool_told(problems: Iterable[str], pools: Mapping[str, str]) -> str:
    """The pool of problems, in words: "heldout", or "development 3, train 9" of several."""
    counts = Counter(pools.get(one, OUTSIDE) for one in problems)
    several = len(counts) > 1
    return ", ".join(f"{pool} {n}" if several else pool for pool, n in sorted(counts.items()))


def write_card(run: Path, results: Sequence[Measured] = ()) -> Path:
    """Write the card of a run's last checkpoint beside its weights.

    Args:
        run: run folder of `palio train`.
        results: what was measured of that checkpoint.

    Raises:
        InputError: the folder is no run, no stage of it is finished, or a result is of other
            weights than its last checkpoint's.
    """
    chain = read_manifest(run / "chain.json")
    if chain is None:
        raise InputError("no run here", where=str(run), remedy="name a run folder of palio train")
    stages = [(each, read_manifest(run / each["name"] / "stage.json")) for each in _stages(chain)]
    done = [(each, manifest) for each, manifest in stages if manifest is not None]
    if not done:
        raise InputError("no stage of this run is finished", where=str(run))
    folder = checkpoint_folder(run)
    weights = _checked(folder, results)
    audit = read_audit(run)
    seen = {stage.name for stage in audit.stages} if audit else set()
    lineage = {**done[-1][1].inputs, **told_digests(run / done[-1][0]["name"])}
    text = _template("card.md.jinja").render(
        name=f"{chain.config['recipe']}, after {done[-1][0]['name']}",
        version=__version__,
        recipe=chain.config["recipe"],
        base_model=(chain.config.get("pretrained") or {}).get("path", ""),
        began=_began(chain),
        dry=chain.config.get("dry", False),
        inputs=sorted(lineage.items()),
        certified="certificate" in lineage,
        stages=[
            {"name": e["name"], "kind": e["kind"], "seed": m.seed, "facts": _facts(run, e, m)}
            for e, m in done
        ],
        **_told(results),
        weights=weights,
        own=is_own(folder),
        audit=audit,
        unaudited=[each["name"] for each, _ in done if each["name"] not in seen],
    )
    path = folder / CARD
    write_lines(path, [text.encode()])
    return path


def renew_results(checkpoint: Path, results: Sequence[Measured]) -> Path:
    """Tell in the card beside weights what was measured of them since; the rest of it stays.

    For a checkpoint that was copied away from its run, of which `write_card` tells all anew.

    Args:
        checkpoint: its folder.
        results: what was measured of it, at least one.

    Raises:
        InputError: there is no card with results, it is of other weights, or a result is; or there
            is no result.
    """
    path, weights = checkpoint / CARD, _checked(checkpoint, results)
    text = path.read_text("utf-8") if path.is_file() else ""
    head, begins, rest = text.partition(_RESULTS)
    _, ends, tail = rest.partition(_AFTER)
    if not begins or not ends:
        raise InputError(
            "no run here, and no card with results",
            where=str(checkpoint),
            remedy="name a run folder of palio train, or a checkpoint that its card lies in",
        )
    if weights not in head:
        raise InputError(
            f"the card is of other weights than the checkpoint has, {weights}", where=str(path)
        )
    if not results:
        raise InputError(
            "no run here, and no result to tell in the card",
            where=str(path),
            remedy="name evaluations of this checkpoint: --evaluation",
        )
    section = _template("card_results.md.jinja").render(**_told(results))
    write_lines(path, [f"{head}\n{section}{_AFTER}{tail}".encode()])
    return path


_RESULTS, _AFTER = "\n## Results\n", "\n## Use\n"


def _told(results: Sequence[Measured]) -> dict[str, Any]:
    """What the section of results is made from."""
    return {
        "results": results,
        "untold": any(not each.weights for each in results),
        "poolless": any(not each.pool for each in results),
        "trained": any(TRAIN in each.pool for each in results),
        "unscored": sum(each.unscored for each in results) > 0,
    }


def _began(chain: Provenance) -> str:
    """The weights that a run began with, as its recipe names them; "" of a model from scratch."""
    ours, theirs = chain.config.get("model") or {}, chain.config.get("pretrained") or {}
    return str(ours.get("start") or theirs.get("path") or "")


def _checked(folder: Path, results: Sequence[Measured]) -> str:
    """The digest of the checkpoint's weights, which all results must be of."""
    weights = checkpoint_digests(folder)["weights"]
    for each in results:
        if each.weights not in ("", weights):
            raise InputError(
                f"{each.measure!r} was measured on the weights {each.weights}, the checkpoint has "
                f"{weights}",
                where=str(folder),
                remedy="evaluate this checkpoint: palio eval run --checkpoint",
            )
    return weights


def _stages(chain: Provenance) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = chain.config["stages"]
    return stages


def _facts(run: Path, stage: dict[str, Any], manifest: Provenance) -> list[tuple[str, str]]:
    counts = [
        (name, f"{count:,}") for name, count in manifest.counts.items() if name != "shortened"
    ]
    measures = manifest.config.get("measures", {})
    told = [(name, f"{value:.4g}") for name, value in measures.items()]
    if manifest.counts.get("shortened"):
        told.append(
            ("shortened", "a time limit cut the schedule: the result depends on the machine")
        )
    plain = (int, float, str, bool)
    chosen = [f"{k} {v}" for k, v in stage.items() if isinstance(v, plain) and k not in _NAMED]
    digests = {name: told for name, told in manifest.inputs.items() if name in TEACHER}
    digests |= told_digests(run / stage["name"])
    read = [(label, f"`{digests[name]}`") for name, label in _READ.items() if name in digests]
    said = manifest.config.get(ENDPOINT)
    if said:
        read.append(("server", msgspec.convert(said, ModelPin).in_words()))
    return [*counts, *told, *read, ("settings", ", ".join(chosen))]


_NAMED = ("name", "kind", "seed")
_READ = {
    **{name: name.replace("_", ", ") for name in TEACHER},
    TEMPLATE: "chat template",
    ROWS: "every id and mask",
}


def _template(name: str) -> jinja2.Template:
    def read(name: str) -> str:
        return resources.files(__package__).joinpath(name).read_text("utf-8")

    environment = jinja2.Environment(  # noqa: S701 - Markdown, not HTML
        loader=jinja2.FunctionLoader(read),
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
