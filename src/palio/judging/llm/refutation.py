"""The record overrules a judge: a gate that it refutes has failed, whatever a model says.

What refutes a gate: there is no completion of 30 tokens (1); the quoted thinking does not occur, or
no result came before it (2 to 4); neither it nor the cited data are anything that earlier results
held (2); a cited datum never occurred, or the quote does not name it (3); fewer than two
of the candidates occur in earlier results and in that step (4). Whether a comparison is a good one
is left to the judge.
"""

from __future__ import annotations

from typing import NamedTuple

from palio.judging.evidence import QUESTIONS
from palio.judging.llm.answer import Answer, Citation
from palio.judging.llm.spans import Trace, occurs
from palio.records.verdict import QUALITY_BINS, GateAnswer, Overruling


class Checked(NamedTuple):
    """An answer after the record was asked.

    Attributes:
        misquoted: some quote or datum was not found, so asking again may help.
    """

    quality: float
    gates: tuple[GateAnswer, ...]
    overruled: tuple[Overruling, ...]
    notes: tuple[str, ...]
    misquoted: bool


class _Refuted(NamedTuple):
    reason: str
    why: str


_MISQUOTED = frozenset({"span_absent", "datum_absent", "candidates_absent"})


def checked(answer: Answer, trace: Trace) -> Checked:
    """The answer with every gate looked up in the record.

    A value that is not the one that the gates give counts only where it is the lower one.
    """
    gates: list[GateAnswer] = []
    overruled: list[Overruling] = []
    notes: list[str] = []
    for citation in answer.gates:
        refuted, step = _refuted(citation, trace) if citation.passed else (None, citation.step)
        if refuted is not None:
            overruled.append(Overruling(gate=citation.gate, reason=refuted.reason, why=refuted.why))
        elif citation.passed and citation.step is not None and step != citation.step:
            notes.append(f"gate {citation.gate}: the quote stands in step {step}")
        gates.append(
            GateAnswer(
                gate=citation.gate,
                question=QUESTIONS[citation.gate - 1],
                passed=citation.passed and refuted is None,
                event_seq=step,
                quote=citation.quote,
            )
        )
        if refuted is not None or not citation.passed:
            break
    quality = QUALITY_BINS[sum(gate.passed for gate in gates)]
    if answer.value != answer.by_gates:
        notes.append(f"the value {answer.value:g} is not what its gates give: {answer.by_gates:g}")
        quality = min(quality, answer.value)
    misquoted = any(one.reason in _MISQUOTED for one in overruled)
    return Checked(quality, tuple(gates), tuple(overruled), tuple(notes), misquoted)


def _refuted(citation: Citation, trace: Trace) -> tuple[_Refuted | None, int | None]:
    """Why the record refutes a gate, None if it does not; and the step of the quote."""
    if citation.gate == 1:
        if trace.long is None:
            return _Refuted("no_inference", "no recorded completion has 30 tokens"), None
        return None, trace.long
    step = trace.step_of(citation.quote, citation.step)
    if step is None:
        why = f"the quoted words do not stand in any thinking of the run: {citation.quote[:80]!r}"
        return _Refuted("span_absent", why), citation.step
    if not trace.results_before(step):
        return _Refuted("no_result", f"no tool result came before step {step}"), step
    ask = (_no_reference, _no_datum, _no_candidates)[citation.gate - 2]
    return ask(citation, step, trace), step


def _named(citation: Citation, step: int, trace: Trace) -> list[str]:
    """Cited data that earlier results hold, that the quote names and that say anything."""
    return [
        datum
        for datum in citation.data
        if trace.telling(datum) and trace.held(datum, step) and occurs(datum, citation.quote)
    ]


def _no_reference(citation: Citation, step: int, trace: Trace) -> _Refuted | None:
    """Shapes can be told in any words ("they look alike"), so what they are told of is enough."""
    if any(trace.telling(datum) and trace.held(datum, step) for datum in citation.data):
        return None
    refers, _ = trace.told(citation.quote, step)
    if refers:
        return None
    why = f"neither the quote nor the cited data are anything that results before step {step} held"
    return _Refuted("no_reference", why)


def _no_datum(citation: Citation, step: int, trace: Trace) -> _Refuted | None:
    absent = [datum for datum in citation.data if not trace.held(datum, step)]
    if citation.data and len(absent) == len(citation.data):
        why = f"no result before step {step} holds {', '.join(map(repr, absent))[:120]}"
        return _Refuted("datum_absent", why)
    _, datum = trace.told(citation.quote, step)
    if datum or any(len(one.split()) > 1 for one in _named(citation, step, trace)):
        return None
    why = f"the quote names no datum that only results before step {step} held"
    return _Refuted("datum_unnamed", why)


def _no_candidates(citation: Citation, step: int, trace: Trace) -> _Refuted | None:
    """Two candidates are two cited data, both named in that step, that differ in who owns them."""
    named = [datum for datum in citation.data if trace.thinks(step, datum)]
    owners = {frozenset(trace.owners(datum, step)) for datum in named} - {frozenset()}
    if len(owners) >= 2:
        return None
    why = f"step {step} does not name two candidates that results before it held"
    return _Refuted("candidates_absent", why)
