"""Can a bin be told without reading? Trees on length, agent name and population alone.

    python scripts/labelled/trivial.py

Balanced accuracy, rows of one script never on both sides of a fold. The length of the model's words
tells 0.1 by the tree's own first gate, so the other four bins are guessed apart too.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from palio.evaluate.calibration import LabelledRow, shipped_labels
from palio.records import to_json


def features(rows: tuple[LabelledRow, ...]) -> dict[str, np.ndarray]:
    """Name -> matrix, one row a labelled row."""
    columns: dict[str, list[list[float]]] = {"bytes": [], "events": [], "messages": []}
    for row in rows:
        trajectory = row.trajectory
        assert trajectory is not None
        columns["bytes"].append([len(to_json(trajectory))])
        columns["events"].append([len(trajectory.events)])
        columns["messages"].append([len(trajectory.messages)])
    found = {name: np.array(values, dtype=float) for name, values in columns.items()}
    found["bytes, events, messages"] = np.hstack(list(found.values()))
    names = [[row.trajectory.agent.name] for row in rows if row.trajectory]
    for name, values in {
        "agent name": names,
        "population": [[row.population] for row in rows],
        "channel": [[row.channel] for row in rows],
    }.items():
        found[name] = OneHotEncoder(sparse_output=False).fit_transform(values)
    words = [
        [sum(len(m.reasoning_content or "") + len(m.content or "") for m in said(row))]
        for row in rows
    ]
    found["length of the model's words"] = np.array(words, dtype=float)
    return found


def said(row: LabelledRow) -> list:
    assert row.trajectory is not None
    return [e.completion for e in row.trajectory.inferences if e.completion is not None]


def guessed(matrix: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> list[float]:
    """Balanced accuracy of five shuffles of five folds."""
    scores = []
    for seed in range(5):
        folds = StratifiedGroupKFold(n_splits=5, shuffle=True, random_state=seed)
        tree = DecisionTreeClassifier(max_depth=4, class_weight="balanced", random_state=seed)
        given = cross_val_predict(tree, matrix, labels, groups=groups, cv=folds)
        scores.append(balanced_accuracy_score(labels, given))
    return scores


def main() -> int:
    rows = shipped_labels()
    labels = np.array([row.bin for row in rows])
    groups = np.array(
        [row.row_id if row.population == "trace" else row.script for row in rows], dtype=object
    ).astype(str)
    rest = labels > 0
    print(f"{'feature':30s} all five (chance 0.200)  0.3 to 0.9 only (chance 0.250)")
    for name, matrix in features(rows).items():
        five = guessed(matrix, labels, groups)
        four = guessed(matrix[rest], labels[rest], groups[rest])
        print(
            f"{name:30s} {np.mean(five):.3f} ({min(five):.3f} to {max(five):.3f})   "
            f"{np.mean(four):.3f} ({min(four):.3f} to {max(four):.3f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
