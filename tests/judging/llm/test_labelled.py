"""The record refutes no gate of the labelled set that a judge who cites well could call passed."""

from __future__ import annotations

from collections.abc import Iterator

from palio.evaluate.calibration import shipped_labels, trajectories_of
from palio.judging.llm.answer import Citation
from palio.judging.llm.refutation import _refuted
from palio.judging.llm.spans import Trace
from palio.judging.thinking import thought
from palio.records import QUALITY_BINS, InferenceEvent, Trajectory


def citations(run: Trajectory, trace: Trace, gate: int) -> Iterator[Citation]:
    """Every sentence and step of thinking, with all its short phrases as data."""
    for event in run.events:
        if not isinstance(event, InferenceEvent) or event.completion is None:
            continue
        sentences = [one.text for one in thought(event, []).sentences]
        for quote in (*sentences, " ".join(sentences)):
            words = quote.replace(",", " ").split()
            data = [
                " ".join(words[at : at + size]).strip(".;:()")
                for size in (1, 2, 3)
                for at in range(len(words) - size + 1)
            ][:60]
            if gate == 2:
                data += [one for _, rows in trace._rows for one, _ in rows][:5]
            yield Citation(gate, True, event.seq, quote[:2000], tuple(data))


def ceiling(run: Trajectory) -> float:
    """The highest bin that some citation reaches."""
    trace = Trace(run)
    if trace.long is None:
        return QUALITY_BINS[0]
    passed = 1
    for gate in (2, 3, 4):
        if all(_refuted(one, trace)[0] is not None for one in citations(run, trace, gate)):
            break
        passed = gate
    return QUALITY_BINS[passed]


def test_no_labelled_run_is_refuted_below_its_label_and_the_silent_stay_silent() -> None:
    rows = shipped_labels()
    runs = trajectories_of(rows)
    reached = [ceiling(run) for run in runs]
    low = [row.row_id for row, best in zip(rows, reached, strict=True) if best < row.label - 1e-9]
    assert len(rows) >= 300
    assert not low, "false refutations"
    silent = [best for row, best in zip(rows, reached, strict=True) if row.label == 0.1]
    assert set(silent) == {0.1}
    rhetoric = [best for row, best in zip(rows, reached, strict=True) if row.label == 0.3]
    assert max(rhetoric) <= 0.5
