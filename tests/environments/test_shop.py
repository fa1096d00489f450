"""The verdict on replayed calls is the race's verdict on the run that made them."""

from __future__ import annotations

import pytest

from palio.judging.encoders import default_encoder
from palio.judging.outcome import OutcomeScorer
from palio.records import InputError
from palio.train.environments.shop import Call, Shop, ShopSettings
from palio.train.ground import Worlds
from tests.environments.conftest import Made, calls


@pytest.fixture(scope="module")
def shop(made: Made) -> Shop:
    return Shop(
        Worlds({name: lambda held=world: held for name, world in made.worlds.items()}),
        default_encoder(),
    )


def test_replayed_calls_get_the_verdict_of_the_run(made: Made, shop: Shop) -> None:
    encoder = default_encoder()
    scorers = {
        name: OutcomeScorer(world.catalogue.products, encoder)
        for name, world in made.worlds.items()
    }
    seen = set()
    for problem, run in made.runs:
        marks = shop.marks(problem, calls(run))
        for profile, name in (("oro", "score"), ("strict", "strict")):
            verdict = scorers[problem.catalogue].verdict(problem, run, profile)  # type: ignore[arg-type]
            assert marks[name] == float(verdict.success)
            assert marks["rule"] == verdict.scores["rule"]
            seen.add((name, verdict.success))
    assert len(seen) == 4  # both shoppers' successes and failures were compared


def test_results_are_those_that_the_run_read(made: Made, shop: Shop) -> None:
    for problem, run in made.runs[:20]:
        results = [m.content for m in run.messages if m.role == "tool"]
        again = [shop.call(problem.catalogue, *call) for call in calls(run)]
        assert again == results


def test_nothing_after_the_end_counts(made: Made, shop: Shop) -> None:
    problem, run = made.runs[0]
    late = Call("recommend_product", '{"product_ids":"nothing"}')
    assert shop.marks(problem, calls(run))["score"] == 1
    assert shop.marks(problem, (*calls(run), late))["score"] == 1
    assert shop.marks(problem, (late, *calls(run)[-1:]))["score"] == 0
    assert shop.marks(problem, ())["score"] == 0


def test_what_an_agent_sends_is_answered_and_what_we_misname_is_an_error(shop: Shop) -> None:
    name = next(iter(shop.worlds))
    assert "error" in shop.call(name, "buy", "{}")
    assert "error" in shop.call(name, "find_product", "not json")
    with pytest.raises(InputError, match="no catalogue"):
        shop.call("elsewhere", "find_product", "{}")


def test_four_tools_are_a_setting(made: Made) -> None:
    folders = tuple(str(made.folder / name) for name in made.worlds)
    four = ("find_product", "view_product_information", "recommend_product", "terminate")
    shop = Shop.open(ShopSettings(catalogues=folders, tools=four))
    assert [schema["function"]["name"] for schema in shop.schemas()] == list(four)
    assert "no tool" in shop.call(next(iter(made.worlds)), "calculate_voucher", "{}")
