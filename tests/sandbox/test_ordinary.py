"""Sandboxes need no root: the same runs as a user with no rights at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from palio.records import MissingDependencyError
from palio.sandbox.programs import system_python

ROOT = Path(__file__).parents[2]
NOBODY = "65534"
SCRIPT = """
import json, os, sys, tempfile
from pathlib import Path
from palio.sandbox.choice import close_driver, open_driver
from tests.sandbox.enclosures import outcome_of, tiny_session
from tests.sandbox.test_conformance import GOOD
from tests.sandbox.test_enclosure import BOMB, FORK

driver = open_driver(sys.argv[1])
folder = Path(tempfile.mkdtemp())
session = tiny_session()
good = outcome_of(driver, GOOD, folder, session=session)
bomb = outcome_of(driver, BOMB.format(one=FORK), folder, pids=24)
fat = outcome_of(
    driver,
    "def agent_main(p):\\n    held = []\\n    while True: held.append(bytearray(4_000_000))",
    folder,
    memory_bytes=160 << 20,
)
files = outcome_of(
    driver,
    "import time\\ndef agent_main(p):\\n"
    "    try:\\n        [open(f'/tmp/{n}', 'w').close() for n in range(60_000)]\\n"
    "    except OSError: return [{}]\\n    time.sleep(5)",
    folder,
    inodes=2000,
)
spin = outcome_of(driver, "def agent_main(p):\\n    while True: pass", folder, seconds=1.0)
close_driver(driver)
print(json.dumps({
    "user": os.getuid(),
    "found": good.claim and good.claim[0]["found"],
    "made": bomb.claim and bomb.claim[0]["made"],
    "fat": fat.reason,
    "files": "held" if files.reason == "output_limit" or files.claim == [{}] else files.reason,
    "spin": [spin.reason, spin.usage.kill_s < 1.0],
    "why": str(good.fault or bomb.fault or ""),
}))
"""


@pytest.mark.parametrize("name", ["bwrap", pytest.param("oci", marks=pytest.mark.slow)])
def test_an_ordinary_user_s_sandboxes_hold_the_same(name: str, tmp_path: Path) -> None:
    argv = [sys.executable]
    path = [str(ROOT / "src"), str(ROOT)]
    if os.geteuid() == 0:
        # Root's own interpreter may lie where nobody else can look.
        try:
            python = system_python()
        except MissingDependencyError as error:
            pytest.skip(str(error))
        if python.version != sys.version_info[:2]:
            pytest.skip(f"the system's Python is not {sys.version_info[:2]}, as the packages are")
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("needs setpriv of util-linux")
        argv = [setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--", python.path]
        path.append(sysconfig.get_paths()["purelib"])
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [*argv, "-B", "-c", SCRIPT, name],
        env={
            "PYTHONPATH": ":".join(path),
            "PATH": "/usr/bin:/bin:/usr/sbin",
            "HOME": str(tmp_path),
            "NUMBA_CACHE_DIR": str(tmp_path),
            "TMPDIR": "/tmp",
        },
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/tmp",
    )
    if "does not work here" in done.stderr or "is not installed" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    if "ModuleNotFoundError" in done.stderr or "PermissionError" in done.stderr:
        pytest.skip("nobody cannot read the packages: " + done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["found"] == 2, seen["why"]
    assert 5 <= seen["made"] <= 24
    assert (seen["fat"], seen["files"], seen["spin"]) == ("oom", "held", ["timeout", True])
    assert seen["user"] != 0
