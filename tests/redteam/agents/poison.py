"""Puts start-up files wherever a Python might look for them, for itself, the next and the host."""

import os
import subprocess
import sys
import sysconfig

POISON = "import sys; sys.stderr.write('POISONED')\n"
NAMES = ("sitecustomize.py", "usercustomize.py", "evil.pth", "json.py", "socket.py")


def agent_main(problem):
    home = os.environ.get("HOME", "/tmp")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folders = {
        *(path for path in sys.path if path and not path.endswith(".zip")),
        *sysconfig.get_paths().values(),
        f"{home}/.local/lib/{version}/site-packages",
        f"/usr/lib/{version}",
        "/usr/lib/python3/dist-packages",
        f"/usr/local/lib/{version}/dist-packages",
        *("/palio", "/palio/src", "/agent", "/etc", "/etc/" + version, "/tmp", "/dev/shm", "/"),
    }
    wrote = []
    for folder in sorted(folders):
        for name in NAMES:
            try:
                os.makedirs(folder, exist_ok=True)
                with open(f"{folder}/{name}", "w") as file:
                    file.write(POISON)
                wrote.append(f"{folder}/{name}")
            except OSError:
                pass
    subprocess.run([sys.executable, "-c", "import json"], check=False)
    return [{"wrote": wrote}]
