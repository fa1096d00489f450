"""Reasoning quality by what the record shows: a strict tree of four questions, deterministic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from palio.judging.citing import analyses, cites
from palio.judging.coefficient import coefficient
from palio.judging.outcome import infrastructure_fault
from palio.judging.seen import Seen
from palio.judging.thinking import Sentence, Thought, thought, written_text
from palio.judging.weighing import weighs
from palio.judging.words import fold, lexicon
from palio.records.base import digest
from palio.records.trajectory import DispatchEvent, InferenceEvent, Trajectory
from palio.records.verdict import QUALITY_BINS, GateAnswer, JudgeId, ReasoningVerdict
from palio.world.arguments import CATALOGUE_TOOLS

JUDGE = "evidence-v2"
MIN_TOKENS = 30
BYTES_PER_TOKEN = 4
QUOTE = 200
QUESTIONS = (
    "Is there a recorded inference of at least 30 completion tokens?",
    "Does thinking refer to what tool results held, or to their shape?",
    "Does thinking name a datum of a tool result that the query does not hold?",
    "Does one step of thinking weigh two candidates and give a datum as the reason?",
)


class _Hit(NamedTuple):
    seq: int
    quote: str


class EvidenceJudge:
    """Judges a trajectory by the four gates of the published tree; the first that fails decides.

    The trajectory is untrusted text and is only ever compared with the record, so nothing in it
    can instruct this judge. Length and repetition of the query pass no gate; a claim about the
    results as a whole passes gate 2 alone.

    Args:
        count_tokens: reference tokenizer for gate 1; None counts UTF-8 bytes / 4.
        tokenizer_id: name of that tokenizer; part of the judge's identity.
    """

    def __init__(
        self, count_tokens: Callable[[str], int] | None = None, tokenizer_id: str = "utf8/4"
    ) -> None:
        self._count = count_tokens
        self._words = lexicon()
        decides = [self._words.digest, MIN_TOKENS, tokenizer_id, list(QUALITY_BINS)]
        self.judge_id = JudgeId(name=JUDGE, version="2", config_digest=digest(decides))

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        """The verdict; "unjudged" when anybody but the agent failed, or when it is salvaged."""
        fault = infrastructure_fault(trajectory)
        if fault is not None:
            return ReasoningVerdict(
                trajectory_id=trajectory.trajectory_id,
                problem_id=trajectory.problem_id,
                judge=self.judge_id,
                status="unjudged",
                explanation="infrastructure failed, so there is nothing to judge",
                fault=fault,
            )
        if trajectory.salvaged:
            return ReasoningVerdict(
                trajectory_id=trajectory.trajectory_id,
                problem_id=trajectory.problem_id,
                judge=self.judge_id,
                status="unjudged",
                explanation="its thinking was written after the fact, which is no reasoning",
            )
        gates = self._gates(trajectory)
        passed = sum(gate.passed for gate in gates)
        quality = QUALITY_BINS[passed]
        asked = gates[-1]
        return ReasoningVerdict(
            trajectory_id=trajectory.trajectory_id,
            problem_id=trajectory.problem_id,
            judge=self.judge_id,
            status="judged",
            quality=quality,
            coefficient=coefficient(quality),
            gates=gates,
            explanation=f"{'yes' if asked.passed else 'no'}: {asked.question}",
        )

    def _gates(self, trajectory: Trajectory) -> tuple[GateAnswer, ...]:
        """Answers up to the first gate that fails."""
        hits = self._evidence(trajectory)
        gates = []
        for at, (question, hit) in enumerate(zip(QUESTIONS, hits, strict=True), start=1):
            gates.append(
                GateAnswer(
                    gate=at,
                    question=question,
                    passed=hit is not None,
                    event_seq=hit.seq if hit else None,
                    quote=hit.quote if hit else "",
                )
            )
            if hit is None:
                break
        return tuple(gates)

    def _evidence(self, trajectory: Trajectory) -> tuple[_Hit | None, ...]:
        """What passes each gate, the earliest first; a cited datum also passes gate 2."""
        long = self._long_inference(trajectory)
        analysed = datum = weighed = None
        if long is None:
            return None, None, None, None
        for step, seen in _steps(trajectory):
            if datum is None:
                datum = _hit(step, cites(step, seen, self._words))
            if analysed is None:
                analysed = datum or _hit(step, analyses(step, seen, self._words))
            if weighed is None:
                weighed = _hit(step, weighs(step, seen, self._words))
            if datum is not None and weighed is not None:
                break
        return long, analysed, datum, weighed

    def _long_inference(self, trajectory: Trajectory) -> _Hit | None:
        for event in trajectory.events:
            if not isinstance(event, InferenceEvent) or event.completion is None:
                continue
            text = written_text(event.completion)
            size = (
                self._count(text)
                if self._count is not None
                else len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN
            )
            if size >= MIN_TOKENS:
                return _Hit(event.seq, text[:QUOTE])
        return None


def _hit(step: Thought, sentence: Sentence | None) -> _Hit | None:
    return None if sentence is None else _Hit(step.seq, sentence.text[:QUOTE])


def _steps(trajectory: Trajectory) -> Iterator[tuple[Thought, Seen]]:
    """Each step of thinking with what the tools had shown by then.

    `Seen` grows between the steps, so a step must be judged before the next one is taken. What
    came before the first result can refer to none and is left out.
    """
    thoughts: dict[int, Thought] = {}
    mentioned: set[str] = set()
    prompts: list[str] = []
    shown = False
    for event in trajectory.events:
        if isinstance(event, DispatchEvent):
            shown = shown or event.tool in CATALOGUE_TOOLS
            continue
        prompts += [
            fold(text)
            for message in event.request
            if message.role != "tool"
            for text in (message.content, message.reasoning_content)
            if text
        ]
        if shown:
            step = thought(event, prompts)
            thoughts[event.seq] = step
            mentioned.update(*(sentence.tokens for sentence in step.sentences))
    if not mentioned:
        return
    seen = Seen(trajectory.query, mentioned)
    for event in trajectory.events:
        if isinstance(event, DispatchEvent):
            seen.add(event)
        elif event.seq in thoughts and seen.any:
            yield thoughts[event.seq], seen
