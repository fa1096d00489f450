"""A corpus names problems and catalogues by id; whoever brings them again must bring the same ones.

Generated suites of one seed share ids whatever their sizes, and so do catalogues of one name. An id
that is in the held-out pool says nothing of another problem that happens to be called so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from palio.corpus.certificate import PROBLEM_FILE
from palio.corpus.decontaminate import read_problems
from palio.corpus.scrub import Scrubber
from palio.corpus.standing import PREVIOUS
from palio.records import InputError, Problem
from palio.suites.keys import keys_of
from palio.world.artefacts import MANIFEST, read_manifest

_SAME = ("product", "spec", "text")


def check_problems(corpus: Path, problems: Iterable[Problem], suite: Path) -> None:
    """Refuse a problem that a corpus has under the same id with other products, wishes or words.

    Labels, such as the difficulty, may differ. Problems that the corpus does not publish (never to
    be touched, or of a version that published none) cannot be compared and pass.

    Args:
        corpus: corpus folder.
        problems: of a suite; those whose ids the corpus does not know pass.
        suite: their file, for the message.

    Raises:
        InputError: one is another problem than the corpus split.
    """
    if not (corpus / PROBLEM_FILE).is_file():
        return
    known, published = read_problems(corpus), None
    for row, problem in enumerate(problems, start=1):
        own = known.get(problem.problem_id)
        if own is None or _differs(problem, own) is None:
            continue
        published = published or _publishing(corpus)  # its finders may not be installed
        rule = _differs(published(problem), own)
        if rule is not None:
            raise InputError(
                f"{problem.problem_id!r} is another problem than that of the corpus ({rule}), so "
                "the pools of the corpus do not hold for it",
                where=f"{suite}: problem {row}",
                remedy=f"name the suite that {corpus} was built with",
            )


def _publishing(corpus: Path) -> Callable[[Problem], Problem]:
    """What makes of a problem the one that a corpus publishes: it may scrub requests."""
    manifest = read_manifest(corpus / MANIFEST)
    config = manifest.config if manifest is not None else {}
    kinds = config.get("scrub") or ()
    if not kinds:
        return lambda problem: problem
    return Scrubber(kinds, config.get("phone_region", "")).problem


def _differs(one: Problem, other: Problem) -> str | None:
    """What differs of what makes two problems one: keys of a rule, or the voucher."""
    if one == other:
        return None
    if one.voucher != other.voucher:
        return "voucher"
    return next((rule for rule in _SAME if keys_of(one, rule) != keys_of(other, rule)), None)


def check_catalogues(corpus: Path, catalogues: Mapping[str, str]) -> None:
    """Refuse a catalogue that has the name of one that a corpus was judged in, and other products.

    A corpus that grew day by day may have been judged in several of one name, of which its manifest
    lists the last: there all pass.

    Args:
        corpus: corpus folder; one that lists no catalogues passes.
        catalogues: id -> digest of the products; those of other names pass.

    Raises:
        InputError: one is another catalogue.
    """
    manifest = read_manifest(corpus / MANIFEST)
    inputs = manifest.inputs if manifest is not None else {}
    if PREVIOUS in inputs:
        return
    for name, digest in sorted(catalogues.items()):
        listed = inputs.get(f"catalogue:{name}")
        if listed is not None and listed != digest:
            raise InputError(
                f"the catalogue {name!r} is not the one of that name that the corpus was made in",
                where=str(corpus),
                remedy="name the catalogue that the corpus was built with",
            )
