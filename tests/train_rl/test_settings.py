"""What a recipe says of rollouts reaches them, whatever the stage is called."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from palio.records import InputError
from palio.train.context import Context, ground_of
from palio.train.preference.kto import KtoSettings
from palio.train.reading import read_recipe
from palio.train.rl.distill import DistillSettings
from palio.train.rl.rollouts import Play
from palio.train.rl.settings import GrpoSettings
from palio.train.settings import Sampling

SAID: dict[str, Any] = {
    "temperature": 0.7,
    "max_tokens": 33,
    "profile": "oro",
    "threads": 3,
    "seconds": 9.0,
}


def test_every_choice_of_a_stage_reaches_its_rollouts() -> None:
    assert GrpoSettings(**SAID, longest=77, brevity=0.1).play() == Play(
        **SAID, longest=77, brevity=0.1
    )
    assert DistillSettings(**SAID, longest=77).play() == Play(**SAID, longest=77)
    sampling = Sampling(**SAID, top_p=0.8)
    kto = KtoSettings(sampling=sampling, longest=77)
    assert kto.play() == Play(**SAID, top_p=0.8, longest=77)
    unlimited = msgspec.structs.replace(kto, sampling=Sampling(max_tokens=0))
    assert unlimited.play().max_tokens == 1024


def test_a_stage_that_says_nothing_plays_as_any_other() -> None:
    assert GrpoSettings().play() == DistillSettings().play() == Play()


def test_a_stage_without_problems_says_where_to_name_them() -> None:
    recipe = read_recipe({"stage": [{"kind": "sft"}]})
    context = Context(recipe, "sft", 1, 0, (), None, backend=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--suite and --catalogue"):
        ground_of(context)
