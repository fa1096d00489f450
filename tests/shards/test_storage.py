"""Inputs and outputs lie where an fsspec URL points, and mean the same there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palio.corpus.shards import plan, run
from palio.corpus.shards.shard import MANIFEST
from palio.corpus.shards.storage import inputs_of
from tests.shards.making import LENIENT, mixed_rows, write_rows

fsspec = pytest.importorskip("fsspec", reason="object storage needs fsspec")


def files_at(url: str) -> dict[str, bytes]:
    system, path = fsspec.core.url_to_fs(url)
    system.invalidate_cache()
    return {name.rsplit("/", 1)[-1]: system.cat_file(name) for name in sorted(system.find(path))}


@contextlib.contextmanager
def memory(_: Path, __: pytest.MonkeyPatch) -> Iterator[str]:
    root = f"memory://{uuid.uuid4().hex}"
    yield root
    system, path = fsspec.core.url_to_fs(root)
    system.rm(path, recursive=True)


@contextlib.contextmanager
def files(folder: Path, _: pytest.MonkeyPatch) -> Iterator[str]:
    yield f"file://{folder / 'store'}"


@contextlib.contextmanager
def s3(_: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's server, which speaks S3 over HTTP on the loopback."""
    server = pytest.importorskip("moto.server", reason="needs moto's S3 server")
    pytest.importorskip("s3fs", reason="needs s3fs")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs  # type: ignore[import-untyped,unused-ignore]

    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("palio-test")
    try:
        yield "s3://palio-test/corpus"
    finally:
        running.stop()
        s3fs.S3FileSystem.clear_instance_cache()


STORES: dict[str, Any] = {"memory": memory, "file": files, "s3": s3}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_lies_beside_runs_is_no_input(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write_rows(folder / "trajectories.jsonl", mixed_rows(4))
    for name in ("run.json", "manifest.json", "verdicts.jsonl", "record/journal.chain"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}\n")
    (folder / "more").mkdir()
    write_rows(folder / "more" / "day.jsonl", mixed_rows(4))
    assert inputs_of([str(folder)]) == tuple(
        str(folder / name) for name in ("more/day.jsonl", "trajectories.jsonl")
    )
    with STORES[kind](tmp_path, monkeypatch) as root:
        system, where = fsspec.core.url_to_fs(root)
        system.put(str(folder), where, recursive=True)
        found = [name.rpartition("/")[2] for name in inputs_of([root])]
        assert found == ["day.jsonl", "trajectories.jsonl"]


@pytest.mark.filterwarnings("ignore:.*utcnow.*:DeprecationWarning")
@pytest.mark.parametrize("kind", STORES)
def test_a_store_holds_what_a_folder_holds(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = [
        write_rows(tmp_path / "in" / f"day-{n}.jsonl.zst", mixed_rows(20, n * 20)) for n in range(3)
    ]
    with STORES[kind](tmp_path, monkeypatch) as root:
        system, where = fsspec.core.url_to_fs(f"{root}/raw")
        system.makedirs(where, exist_ok=True)
        for path in local:
            system.put_file(str(path), f"{where}/{path.name}")
        todo = plan([f"{root}/raw"], LENIENT, f"{root}/out")
        assert len(todo.left) == 3
        made = run(todo, executor="inline")
        (tmp_path / "here").mkdir()
        here = run(plan([f"{root}/raw/*.zst"], LENIENT, str(tmp_path / "here")), executor="inline")
        assert here == made
        held = files_at(f"{root}/out")
        assert held == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
        again = plan([f"{root}/raw"], LENIENT, f"{root}/out")
        assert not again.left
        system.rm_file(f"{where.removesuffix('/raw')}/out/{todo.names[1]}{MANIFEST}")
        system.put_file(str(local[0]), f"{where}/{local[2].name}")
        changed = plan([f"{root}/raw"], LENIENT, f"{root}/out")
        assert [job.name for job in changed.left] == list(todo.names[1:])
        run(changed, executor="inline")
        assert len(files_at(f"{root}/out")) == 9


def test_a_shard_that_fails_leaves_no_object(tmp_path: Path) -> None:
    """An upload that breaks off leaves no manifest, so the shard does not count."""
    path = write_rows(tmp_path / "day.jsonl", mixed_rows(5))
    root = f"memory://{uuid.uuid4().hex}"
    todo = plan([str(path)], LENIENT, root)
    path.unlink()
    with contextlib.suppress(Exception):
        run(todo, executor="inline")
    assert not files_at(root) if fsspec.core.url_to_fs(root)[0].exists(root) else True
