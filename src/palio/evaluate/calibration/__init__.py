"""How far a reasoning judge agrees with labels, for whom, and where it errs."""

from palio.evaluate.calibration.agreement import (
    Agreement,
    agreement,
    balanced_accuracy,
    confusion,
    quadratic_kappa,
)
from palio.evaluate.calibration.chart import save_chart
from palio.evaluate.calibration.drift import Drift, drift
from palio.evaluate.calibration.labels import (
    LabelledRow,
    labels_digest,
    read_labels,
    shipped_labels,
)
from palio.evaluate.calibration.report import (
    Calibration,
    GateErrors,
    PairAccuracy,
    calibrate,
    trajectories_of,
)

__all__ = [
    "Agreement",
    "Calibration",
    "Drift",
    "GateErrors",
    "LabelledRow",
    "PairAccuracy",
    "agreement",
    "balanced_accuracy",
    "calibrate",
    "confusion",
    "drift",
    "labels_digest",
    "quadratic_kappa",
    "read_labels",
    "save_chart",
    "shipped_labels",
    "trajectories_of",
]
