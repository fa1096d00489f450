"""The lab's settings: what they change, and what a setting that is left out leaves as it was."""

from collections import Counter
from pathlib import Path

import pytest

from palio.evaluate.experiment.config import LabConfig, read_lab
from palio.evaluate.experiment.draw import TRAIN
from palio.evaluate.mainjob.worlds import make_worlds, open_ground
from palio.records import ConfigError, canonical_json
from palio.suites.pools import SEALED

PUBLISHED = "sha256:2c71be7ef71c02e679280521e064fe95c0f60302740d575716da4853207ef170"
SMALL = {
    "suite_seed": 3,
    "catalogues": 1,
    "products": 700,
    "problems": 120,
    "race_problems": 3,
    "workers": 1,
}


def test_a_lab_without_heldout_banks_is_the_one_that_was_published():
    assert LabConfig(suite_seed=1, device="cpu").digest() == PUBLISHED
    assert LabConfig(suite_seed=1, heldout_banks=()).digest() == PUBLISHED
    assert b"heldout_banks" not in canonical_json(LabConfig())


def test_heldout_banks_make_another_lab_whatever_their_order():
    one = LabConfig(heldout_banks=("compact-list", "compact-prose"))
    assert one.digest() != LabConfig().digest()
    assert one.design() != LabConfig().design()
    assert one == LabConfig(heldout_banks=("compact-prose", "compact-list", "compact-list"))
    assert one.heldout_wordings == ("compact-list", "compact-prose")


def test_heldout_banks_are_read_from_a_file(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('heldout_banks = ["compact-list"]\n')
    assert read_lab(path).heldout_wordings == ("compact-list",)
    assert read_lab(None).heldout_wordings == ()


def pools_by_bank(folder: Path, config: LabConfig) -> Counter[tuple[str, str]]:
    make_worlds(config, folder, lambda done: None, config.heldout_wordings)
    ground = open_ground(folder)
    return Counter((p.bank, ground.pools[p.problem_id]) for p in ground.problems)


def test_a_heldout_bank_never_trains_and_is_measured(tmp_path):
    usual = pools_by_bank(tmp_path / "usual", LabConfig(**SMALL))
    assert usual["compact-list", TRAIN] > 0
    kept = pools_by_bank(tmp_path / "kept", LabConfig(**SMALL, heldout_banks=("compact-list",)))
    assert {pool for bank, pool in kept if bank == "compact-list"} == {"heldout", SEALED}
    assert kept["compact-prose", TRAIN] > 0


def test_a_bank_that_no_problem_is_worded_in_is_refused(tmp_path):
    config = LabConfig(**SMALL, heldout_banks=("compact-lists",))
    with pytest.raises(ConfigError, match=r"compact-lists.*(?s:.*)compact-list"):
        make_worlds(config, tmp_path, lambda done: None, config.heldout_wordings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool = 'sealed'", "pool = 'sealed'"),
        ("train_share = 0.9", "sealed one"),
        ("nothing = 1", "unknown field"),
        ("loss_tokens = 0", "loss_tokens"),
        ("recipe = 'nothing'", "no such recipe"),
        ("agents = []", "agents"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(text, message, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_lab(path).digest()


def test_workers_do_not_make_another_lab():
    assert LabConfig(workers=8).digest() == LabConfig().digest()
    assert LabConfig(suite_seed=2).digest() != LabConfig().digest()


def test_the_design_of_a_lab_is_all_but_device_and_workers():
    assert LabConfig(device="cuda", workers=9).design() == LabConfig().design()
    assert LabConfig(loss_tokens=5).design() != LabConfig().design()
