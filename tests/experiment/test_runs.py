"""Lines of runs.jsonl that nothing can be told from are refused with file and row."""

import msgspec
import pytest

from palio.evaluate.experiment.runs import RUNS, append_run, read_runs, unpacked
from palio.records import InputError, to_json
from tests.experiment.test_analysis import first, run


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"solved": "z" * 5}, "'zzzzz' are no hexadecimal digits"),
        ({"solved": "-ffff"}, "no hexadecimal digits"),
        ({"solved": "f"}, "1 digits cannot hold 20 outcomes"),
        ({"solved": 7}, "Expected `str`"),
        ({"n": {"shop": 20}}, "two/a/0 has no examination"),
        ({"n": {"overall": 0}, "solved": ""}, "has no examination"),
        ({"n": {"overall": 20, "voucher": 20}}, "successes of 'voucher'"),
        ({"n": {"overall": "20"}}, "Expected `int`"),
        ({"n": [20]}, "Expected `object`"),
        ({"unscored": -1}, "has no examination"),
        ({"successes": {"overall": 21, "shop": 9}}, "successes of 'overall' are not from 0 to 20"),
        ({"strict": {"overall": 9, "shop": -9}}, "strict of 'shop'"),
        ({"groups": {"exposed": [0, 0]}}, "group 'exposed' has 0 successes of 0"),
        ({"groups": {"exposed": [9, 8]}}, "group 'exposed'"),
        ({"pass_at": {"1": 1.5}}, "pass@1 is 1.5"),
    ],
)
def test_a_line_that_is_no_run_is_refused_with_its_row(tmp_path, change, told):
    append_run(tmp_path, run("b", 0, first(9)))
    plain = msgspec.to_builtins(run("a", 0, first(9))) | change
    with (tmp_path / RUNS).open("ab") as file:
        file.write(to_json(plain) + b"\n")
    with pytest.raises(InputError, match=told) as found:
        read_runs(tmp_path)
    assert found.value.where == f"{tmp_path / RUNS}:2"
    assert "make the run again" in found.value.remedy


def test_a_run_that_infrastructure_kept_from_all_scores_is_read(tmp_path):
    none = {"overall": 0}
    broken = msgspec.structs.replace(
        run("a", 0, first(0)), n=none, successes=none, strict=none, unscored=20
    )
    append_run(tmp_path, broken)
    assert read_runs(tmp_path) == [broken]


def test_digits_are_read_as_they_are_written():
    assert unpacked("8", 1) == [True]
    for digits in ("_", "+8", "0X1", " 8"):
        with pytest.raises(InputError, match="no hexadecimal digits"):
            unpacked(digits, 4 * len(digits))
