"""Does a decision follow the datum that its thinking cites? Measured by changing the datum."""

from palio.evaluate.counterfactual.chart import save_chart
from palio.evaluate.counterfactual.edits import Change, edited_tools
from palio.evaluate.counterfactual.flips import Fork, ForkedRun, fork_run, fork_runs
from palio.evaluate.counterfactual.forking import Forker
from palio.evaluate.counterfactual.measure import Counterfactual, Flips, JudgeCheck, measure
from palio.evaluate.counterfactual.planning import Intervention, Planner
from palio.evaluate.counterfactual.ranks import RankCorrelation, rank_correlation
from palio.evaluate.counterfactual.told import Told

__all__ = [
    "Change",
    "Counterfactual",
    "Flips",
    "Fork",
    "ForkedRun",
    "Forker",
    "Intervention",
    "JudgeCheck",
    "Planner",
    "RankCorrelation",
    "Told",
    "edited_tools",
    "fork_run",
    "fork_runs",
    "measure",
    "rank_correlation",
    "save_chart",
]
