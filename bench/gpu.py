"""Throughput, memory and utilisation of each training stage on a GPU: mechanics only.

Usage: python -m bench.gpu --out FILE.json [--only NAME ...] [--minutes 6] [--cpu] [--tiny]

Weights are random, at the shapes of Qwen3-0.6B and 4B in bf16, so nothing here says what a model
learns. FILE.json is written again after every case, FILE.md beside it holds the table.
Utilisation is of model operations, without the recomputation of gradient checkpointing; frozen
weights under an adapter need no gradient of their own, so it counts 2 forward passes, not 3,
and the adapter's own operations are left out. In Dr. GRPO it is that of the update, sampling left
out. Full fine-tuning holds weights and Adam's states in bf16, as the recipe does.
Peak memory is what the allocator held for tensors, without CUDA's own context.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LABEL = "mechanics only"
PEAK = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
"""Dense bf16 TFLOP/s of the data sheets."""
LONGEST = 14_336
"""The paper's longest row, in tokens."""
ROOT = Path(__file__).parents[1]
GRACE_S = 30.0
"""What a case may take beyond its updates: weights, first update, which compiles and warms up."""
Case = Callable[[Path], dict[str, Any]]


def cases(*, tiny: bool, checkpoint: str) -> dict[str, Case]:
    """Name -> case; those that tell most come first, in case the time runs out."""
    from bench import gpu_cases as stages
    from bench.gpu_cases import SHAPES, Size

    made: dict[str, Case] = {}

    def add(name: str, run: Callable[..., dict[str, Any]], *given: Any, **more: Any) -> None:
        made[name] = lambda folder: run(*given, folder, **more)

    made["matmul"] = lambda _: stages.product(256 if tiny else 8192, 10)
    short, long, batch = Size(4, 2048, 6, 12.0), Size(1, LONGEST, 4, 15.0), Size(32, 576, 3, 20.0)
    if tiny:
        short, long, batch = Size(2, 64, 2, 30.0), Size(1, 128, 2, 30.0), Size(16, 64, 2, 30.0)
    for name in ("tiny",) if tiny else ("4B", "0.6B"):
        shape = SHAPES[name]
        for size in (short, long):
            add(f"sft lora {name} {size.length}", stages.sft, shape, size, lora=True)
            add(f"sft full {name} {size.length}", stages.sft, shape, size, lora=False)
        add(f"kto lora {name} {short.length}", stages.kto, shape, short)
        written = 8 if tiny else 64
        add(f"grpo lora {name} {batch.length}", stages.grpo, shape, batch, written=written)
    made["engine"] = lambda folder: stages.engine(folder, checkpoint)
    return made


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch
    import transformers

    found: dict[str, Any] = {
        "label": LABEL,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": "cpu",
        "attention": "sdpa",
    }
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        found |= {"device": about.name, "memory_gib": about.total_memory / 2**30}
        found["peak_tflop_per_s"] = next((v for k, v in PEAK.items() if k in about.name), None)
    return found


def attempt(name: str, case: Case, seconds: float) -> dict[str, Any]:
    """One case, with its failure if it has one; memory is given back and the alarm is off."""
    import torch

    folder = Path(tempfile.mkdtemp(prefix="palio-gpu-"))
    started, on_gpu = time.perf_counter(), torch.cuda.is_available()
    row: dict[str, Any] = {"name": name, "label": LABEL}
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        row["held_before_gib"] = torch.cuda.memory_allocated() / 2**30
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        row |= case(folder)
    except Exception as error:  # noqa: BLE001 - the other cases still count
        told = f"{type(error).__name__}: {str(error)[:400]}"
        row["error"] = told.replace(f"{ROOT}/", "")
        row["where"] = traceback.format_exc()[-1500:].replace(f"{ROOT}/", "")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        shutil.rmtree(folder, ignore_errors=True)
    row["case_seconds"] = time.perf_counter() - started
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    return row


def utilisation(row: dict[str, Any], about: Mapping[str, Any]) -> None:
    """Add the shares of the data sheet's peak and of the measured matrix product."""
    rate = row.get("model_tflop_per_s")
    for name, ceiling in (("mfu", "peak_tflop_per_s"), ("of_matmul", "matmul_tflop_per_s")):
        if rate and about.get(ceiling):
            row[name] = rate / about[ceiling]


def table(found: Mapping[str, Any]) -> str:
    """The results in Markdown."""
    about = found["machine"]
    head = (
        f"{about['device']}, torch {about['torch']}, transformers {about['transformers']}, "
        f"{about['date'][:10]}; bf16, random weights: **{LABEL}**. "
        f"Largest bf16 matrix product: {figure(about.get('matmul_tflop_per_s'))} TFLOP/s.\n\n"
        "| stage | weights | updates | s/step | steps/s | tokens/s | sampled tokens/s | peak GiB "
        "| MFU | of matmul |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n"
    )
    names = ("step_seconds", "steps_per_s", "tokens_per_s", "sampled_tokens_per_s", "peak_gib")
    lines = []
    for row in found["rows"]:
        if row["name"] == "matmul" and "error" not in row:
            continue
        if "error" in row:
            short = row["error"].split("\n")[0][:90].replace("|", "/")
            lines.append(f"| {row['name']} | {short} | | | | | | | | |\n")
            continue
        timed = row.get("step_seconds_all")
        cells = [row["name"], row.get("weights", "-"), str(len(timed)) if timed else "-"]
        cells += [figure(row.get(name)) for name in names]
        cells += [f"{100 * row[n]:.0f} %" if n in row else "-" for n in ("mfu", "of_matmul")]
        lines.append("| " + " | ".join(cells) + " |\n")
        if "transformers_tokens_per_s" in row:
            peer = figure(row["transformers_tokens_per_s"])
            lines.append(f"| engine's peer: transformers generate | | | - | - | {peer} | | | | |\n")
    return head + "".join(lines)


def figure(value: float | None) -> str:
    """Three significant digits; "-" for what was not measured."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def measure(chosen: Mapping[str, Case], out: Path, minutes: float) -> dict[str, Any]:
    """Run the cases in order and write after each; those that no time is left for say so."""
    from bench.gpu_cases import dump

    until = time.perf_counter() + 60 * minutes
    found: dict[str, Any] = {"machine": machine(), "rows": []}
    for name, case in chosen.items():
        left = until - time.perf_counter()
        if left < 5:
            row = {"name": name, "label": LABEL, "error": "skipped: the time was up"}
        else:
            row = attempt(name, case, min(left, 20.0 + GRACE_S))
        if name == "matmul":
            found["machine"]["matmul_tflop_per_s"] = row.get("model_tflop_per_s")
        else:
            utilisation(row, found["machine"])
        found["rows"].append(row)
        dump(out, found)
        out.with_suffix(".md").write_text(table(found), "utf-8")
        shown = {k: v for k, v in row.items() if isinstance(v, float)} or row.get("error")
        print(f"[{time.perf_counter() - until + 60 * minutes:5.0f} s] {name}: {shown}", flush=True)
    return found


def ring(*_: object) -> None:
    from bench.gpu_cases import Enough

    raise Enough("the case's time is up")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; the table is beside it")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has such a part")
    parser.add_argument("--minutes", type=float, default=6.0, help="of all cases")
    parser.add_argument("--checkpoint", default="bundled", help="of the 1.8 M model")
    parser.add_argument("--tiny", action="store_true", help="a toy shape, for a smoke run")
    parser.add_argument("--cpu", action="store_true", help="leave the GPU alone")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if not options.cpu and not torch.cuda.is_available():
        sys.exit("there is no GPU here; --tiny --cpu runs the same code on a toy shape")
    warnings.filterwarnings("ignore", category=FutureWarning)
    signal.signal(signal.SIGALRM, ring)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    every = cases(tiny=options.tiny, checkpoint=options.checkpoint)
    only = options.only
    chosen = {
        name: case
        for name, case in every.items()
        if not only or name == "matmul" or any(part in name for part in only)
    }
    print(table(measure(chosen, options.out, options.minutes)), flush=True)


if __name__ == "__main__":
    main()
