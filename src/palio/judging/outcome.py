"""Outcome verdicts by rule: upstream, oro and strict, with infrastructure failure never a zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from palio.judging.answers import answer_ids, shown_results, ungrounded
from palio.judging.encoders import TitleEncoder, TitleUnavailableError
from palio.judging.rules import FIELDS, Wanted, count, wanted
from palio.records.base import digest
from palio.records.faults import Blame, ConfigError
from palio.records.problem import Problem
from palio.records.product import Product
from palio.records.trajectory import Ending, Fault, FaultCode, Trajectory
from palio.records.verdict import PROFILES, JudgeId, OutcomeVerdict, Profile
from palio.world.voucher import within_budget

SCORER = "outcome"
SCORER_VERSION = "1"
EXTRA_KEY = {"product": "", "shop": "shop", "voucher": "budget"}
"""Intent -> the extra key of its score dictionary."""


class LookupFailedError(Exception):
    """The catalogue could not be asked; that is no statement about the product."""


class _Prepared(NamedTuple):
    problem: Problem
    items: tuple[Wanted, ...]


class OutcomeScorer:
    """Scores trajectories against a catalogue.

    Args:
        products: product id -> product. A lookup that raises anything but KeyError is an
            infrastructure fault: the verdict is unscored.
        encoder: the title similarity; there is no scoring without one.

    Raises:
        ConfigError: the encoder is missing or lacks the threshold of a profile.
    """

    def __init__(self, products: Mapping[str, Product], encoder: TitleEncoder | None) -> None:
        if encoder is None:
            raise ConfigError(
                "the outcome scorer has no title encoder and never drops the title term",
                remedy="pass palio.judging.default_encoder()",
            )
        missing = [profile for profile in PROFILES if profile not in encoder.thresholds]
        if missing:
            raise ConfigError(
                f"encoder {encoder.encoder_id!r} has no title threshold for {', '.join(missing)}",
                remedy="calibrate it as palio.judging.lexical does",
            )
        self.products = products
        self.encoder = encoder
        self._prepared: dict[str, _Prepared] = {}
        decides = {
            "encoder": encoder.encoder_id,
            "thresholds": dict(encoder.thresholds),
            "web": encoder.web_threshold,
        }
        self._judge = JudgeId(name=SCORER, version=SCORER_VERSION, config_digest=digest(decides))

    def verdict(self, problem: Problem, trajectory: Trajectory, profile: Profile) -> OutcomeVerdict:
        """The verdict on one trajectory.

        A fault that is not the agent's makes it "unscored"; the agent's own fault scores zeros.
        """
        fault = infrastructure_fault(trajectory)
        scores: dict[str, float] = {}
        success = False
        notes: tuple[str, ...] = ()
        if fault is None:
            try:
                scores, success, notes = self._scored(problem, trajectory, profile)
            except TitleUnavailableError as error:
                fault = Fault(
                    code=FaultCode.scorer_unavailable, what=error.what, remedy=error.remedy
                )
            except LookupFailedError as error:
                fault = Fault(code=FaultCode.catalogue_unavailable, what=str(error))
        return OutcomeVerdict(
            trajectory_id=trajectory.trajectory_id,
            problem_id=problem.problem_id,
            judge=self._judge,
            profile=profile,
            status="scored" if fault is None else "unscored",
            scores=scores,
            success=success,
            encoder=self.encoder.encoder_id,
            fault=fault,
            notes=notes,
        )

    def score_answer(
        self, problem: Problem, answer: Any, profile: Profile
    ) -> tuple[dict[str, float], bool]:
        """Score dictionary and strict success of an answer alone.

        Under `strict` this canonicalises and refuses extra ids; what needs the record (grounding,
        termination) is only in `verdict`.

        Raises:
            TitleUnavailableError: the encoder has no vector for a title that decides.
            LookupFailedError: the catalogue could not be asked.
        """
        ids = answer_ids(answer, profile)
        scores = self._scores(problem, ids, profile)
        success = succeeded(problem, scores)
        return scores, success and not (profile == "strict" and len(ids) > _wanted_ids(problem))

    def _scored(
        self, problem: Problem, trajectory: Trajectory, profile: Profile
    ) -> tuple[dict[str, float], bool, tuple[str, ...]]:
        if agent_failed(trajectory):
            what = trajectory.fault.what if trajectory.fault else str(trajectory.ending)
            return zero_scores(problem), False, (f"agent failed: {what}",)
        ids = answer_ids(trajectory.answer, profile)
        scores = self._scores(problem, ids, profile)
        success = succeeded(problem, scores)
        if profile != "strict":
            return scores, success, ()
        notes = self._refusals(problem, trajectory, ids)
        return scores, success and not notes, notes

    def _refusals(
        self, problem: Problem, trajectory: Trajectory, ids: Sequence[str]
    ) -> tuple[str, ...]:
        """Why `strict` refuses a run whatever it recommended; empty when it does not."""
        notes = [f"no such product: {one}" for one in ids if self._product(one) is None]
        if not ids:
            notes.append("no answer")
        if len(ids) > _wanted_ids(problem):
            notes.append(f"extra ids: {len(ids)} given, {_wanted_ids(problem)} wanted")
        if trajectory.ending is not Ending.terminated:
            notes.append(f"not terminated: {trajectory.ending}")
        notes += [
            f"ungrounded id: no earlier tool result shows {one}"
            for one in ungrounded(ids, shown_results(trajectory))
        ]
        return tuple(notes)

    def _scores(self, problem: Problem, ids: Sequence[str], profile: Profile) -> dict[str, float]:
        items = self._items(problem)
        if problem.kind == "web":
            return self._web_scores(problem, items[0], ids)
        if problem.kind == "product":
            product = self._product(ids[0]) if ids else None
            return {} if product is None else self._positions([product], items[:1], profile)[0]
        products = [self._product(one) for one in ids[: len(items)]]
        scores, hit = self._positions(products, items, profile)
        basket = [product for product in products if product is not None]
        complete = len(hit) == len(items) and all(hit)
        one_shop = len({product.shop_id for product in basket}) == 1
        if problem.kind == "shop":
            scores["shop"] = int(complete and one_shop)
        else:
            scores["budget"] = int(complete and _affordable(basket, problem))
        return scores

    def _positions(
        self, products: Sequence[Product | None], items: Sequence[Wanted], profile: Profile
    ) -> tuple[dict[str, float], list[bool]]:
        """Mean scores over the wanted items, and which positions hit."""
        empty = 1.0 if profile == "upstream" else 0.0
        resolved = truths = 0
        rule = title = price = service = pairs = 0.0
        hit: list[bool] = []
        for product, want in zip(products, items, strict=False):
            if product is None:
                hit.append(False)
                continue
            counted = count(product, want, profile, self.encoder)
            resolved += 1
            truths += product.product_id == want.product_id
            rule += counted.rule
            hit.append(profile == "upstream" or counted.rule > 0)
            (t1, t2, t3, t4), (h1, h2, h3, h4) = counted.totals, counted.hits
            title += h1 / t1 if t1 else empty
            price += h2 / t2 if t2 else empty
            service += h3 / t3 if t3 else empty
            pairs += h4 / t4 if t4 else empty
        k = len(items)
        scores = {
            "product": resolved / k,
            "gt": truths / k,
            "rule": rule / k,
            "title": title / k,
            "price": price / k,
            "service": service / k,
            "sku & attrs": pairs / k,
        }
        return scores, hit

    def _web_scores(self, problem: Problem, want: Wanted, ids: Sequence[str]) -> dict[str, float]:
        """Half for the fact in title or description (case folded), half for a near title."""
        product = self._product(ids[0]) if ids else None
        if product is None:
            return zero_scores(problem)
        truth = product.product_id == want.product_id
        fact = (problem.knowledge or "").casefold()
        text = f"{product.title}\n{product.description}".casefold()
        keyword = float(truth or (bool(fact) and fact in text))
        title = float(truth or self._near(product.title, want.titles))
        rule = (keyword + title) / 2
        return {
            "product": 1.0,
            "gt": float(truth),
            "rule": rule,
            "title": title,
            "keyword": keyword,
            "web": rule,
        }

    def _near(self, title: str, titles: Sequence[str]) -> bool:
        threshold = self.encoder.web_threshold
        return any(self.encoder.similarity(title, other) >= threshold for other in titles)

    def _product(self, product_id: str) -> Product | None:
        try:
            return self.products[product_id]
        except KeyError:
            return None
        except Exception as error:
            # Whatever a catalogue store raises, it is not "no such product": fault 5 of the
            # operators' list was a blip in look-up charged to the agent.
            raise LookupFailedError(
                f"the catalogue could not look up a product: {error}"
            ) from error

    def _items(self, problem: Problem) -> tuple[Wanted, ...]:
        known = self._prepared.get(problem.problem_id)
        if known is None or known.problem is not problem:
            known = _Prepared(problem, tuple(wanted(reward) for reward in problem.rewards))
            if not known.items:
                raise ConfigError(
                    "a problem without rewards cannot be scored", where=problem.problem_id
                )
            self._prepared[problem.problem_id] = known
        return known.items


AGENT_FAILURES = frozenset({Ending.crashed, Ending.invalid, Ending.timed_out})
"""Endings that are the agent's failure even where the record names no fault."""


def infrastructure_fault(trajectory: Trajectory) -> Fault | None:
    """The fault that makes a run unscored and unjudged: anybody's but the agent's."""
    fault = trajectory.fault
    if fault is not None and fault.blame is not Blame.agent:
        return fault
    if trajectory.ending is Ending.infra and fault is None:
        return Fault(code=FaultCode.run_interrupted, what="the run ended without a named fault")
    return None


def agent_failed(trajectory: Trajectory) -> bool:
    """Whether the agent itself ended the run: its fault, a crash, a time-out, a bad answer."""
    fault = trajectory.fault
    if fault is not None:
        return fault.blame is Blame.agent
    return trajectory.ending in AGENT_FAILURES


def succeeded(problem: Problem, scores: Mapping[str, float]) -> bool:
    """Strict success (ASR): rule >= 1, and shop or budget >= 1 for those kinds."""
    extra = EXTRA_KEY.get(problem.kind, "")
    return scores.get("rule", 0.0) >= 1 and (not extra or scores.get(extra, 0.0) >= 1)


def zero_scores(problem: Problem) -> dict[str, float]:
    """Every key of the kind's score dictionary at zero: a failed run that is scored."""
    if problem.kind == "web":
        return dict.fromkeys(("product", "gt", "rule", "title", "keyword", "web"), 0.0)
    extra = EXTRA_KEY[problem.kind]
    return dict.fromkeys(("product", "gt", "rule", *FIELDS, *([extra] if extra else [])), 0.0)


def _affordable(basket: Sequence[Product], problem: Problem) -> bool:
    if problem.voucher is None:
        raise ConfigError(
            "a voucher problem without a voucher cannot be scored", where=problem.problem_id
        )
    prices = [product.price for product in basket]
    return within_budget(prices, problem.voucher, [product.shop_id for product in basket])


def _wanted_ids(problem: Problem) -> int:
    return 1 if problem.kind in {"product", "web"} else len(problem.rewards)
