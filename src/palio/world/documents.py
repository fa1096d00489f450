"""Documents of the offline web: imported line by line, every bad line kept, the order preserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from palio import __version__
from palio.records import InputError, IntegrityError, Provenance, Record, Reject, digest, to_json
from palio.world.artefacts import file_digest, read_manifest, write_lines, write_manifest
from palio.world.lines import MAX_LINE_BYTES, Line, Progress, read_lines
from palio.world.rows import BadRowError, explain_bad_json, validation_reason

DOCUMENTS = "documents.jsonl"
"""File of the documents in a folder; in a catalogue's folder they are that catalogue's web."""
DOCUMENT_REJECTS = "documents.rejects.jsonl"
DOCUMENTS_MANIFEST = "documents.manifest.json"


class Document(Record, frozen=True):
    """A page of the offline web; `title` and `text` are searched."""

    title: str
    text: str
    url: str = ""


class _Row(msgspec.Struct):
    """The shapes that document rows come in."""

    title: str = ""
    text: str | None = None
    snippet: str | None = None
    contents: str | None = None
    url: str | None = None
    link: str | None = None


_row = msgspec.json.Decoder(_Row)


def document_of_line(line: bytes) -> Document:
    """The document that a line holds: {title, text | snippet | contents, url | link}.

    Raises:
        BadRowError: reasons "json", "encoding", "number", "type", "text".
    """
    try:
        row = _row.decode(line)
    except msgspec.ValidationError as error:
        raise BadRowError(validation_reason(str(error)), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRowError(*explain_bad_json(line, error)) from error
    text = next((each for each in (row.text, row.snippet, row.contents) if each), "").strip()
    if not text:
        raise BadRowError("text", "the document has no text")
    made = Document(title=row.title.strip(), text=text, url=(row.url or row.link or "").strip())
    if any("\x00" in part for part in (made.title, made.text, made.url)):
        raise BadRowError("text", "a text holds a NUL character")
    return made


def document_lines(documents: Iterable[Document]) -> Iterator[bytes]:
    """The file form: one JSON line a document, line end included."""
    for document in documents:
        yield to_json(document) + b"\n"


def documents_digest(documents: Sequence[Document]) -> str:
    """Digest of documents in order: equal digests are found alike."""
    return digest(list(documents))


def read_documents(
    source: Path,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    progress: Progress | None = None,
) -> tuple[tuple[Document, ...], tuple[Reject, ...]]:
    """Read a folder written by palio, or a document file (plain, gzip, zstd).

    Of equal documents the first is kept.

    Raises:
        InputError: there is no such file, or it holds no document.
        IntegrityError: the folder's manifest has another digest for the file.
    """
    path = source / DOCUMENTS if source.is_dir() else source
    if source.is_dir():
        _check_manifest(source)
    kept: dict[Document, None] = {}
    rejects: list[Reject] = []
    for line in read_lines(path, max_bytes=max_line_bytes, progress=progress):
        try:
            document = _checked(line)
            if document in kept:
                raise BadRowError("duplicate", "the same document stands above already")
            kept[document] = None
        except BadRowError as bad:
            rejects.append(bad.reject(str(path), line.number))
    if not kept:
        why = f"; line {rejects[0].line}: {rejects[0].detail}" if rejects else ""
        raise InputError(f"holds no document{why}", where=str(path), remedy="check the path")
    return tuple(kept), tuple(rejects)


def write_documents(
    documents: Sequence[Document],
    out: Path,
    *,
    rejects: Sequence[Reject] = (),
    config: dict[str, object] | None = None,
) -> Provenance:
    """Write documents, rejects and, last, a manifest of their own into a folder.

    The folder may be a catalogue's: then they are what `web_search` finds in its world.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / DOCUMENTS, document_lines(documents))
    write_lines(out / DOCUMENT_REJECTS, [to_json(reject) + b"\n" for reject in rejects])
    reasons = Counter(f"rejected:{reject.reason}" for reject in rejects)
    settings = dict(config or {})
    manifest = Provenance(
        kind="documents",
        tool_version=__version__,
        config=settings,
        config_digest=digest(settings),
        outputs={name: file_digest(out / name) for name in (DOCUMENTS, DOCUMENT_REJECTS)},
        counts={
            "in": len(documents) + len(rejects),
            "kept": len(documents),
            **sorted_counts(reasons),
        },
    )
    write_manifest(manifest, out / DOCUMENTS_MANIFEST)
    return manifest


def import_documents(source: Path, out: Path, *, progress: Progress | None = None) -> Provenance:
    """Import a document file into a folder; see `read_documents` and `write_documents`."""
    documents, rejects = read_documents(source, progress=progress)
    return write_documents(documents, out, rejects=rejects, config={"source": source.name})


def sorted_counts(counts: Counter[str]) -> dict[str, int]:
    """Counts in order of their names."""
    return dict(sorted(counts.items()))


def _checked(line: Line) -> Document:
    if line.fault:
        raise BadRowError(line.fault, line.detail)
    return document_of_line(line.data)


def _check_manifest(folder: Path) -> None:
    manifest = read_manifest(folder / DOCUMENTS_MANIFEST)
    path = folder / DOCUMENTS
    if manifest is None or not path.is_file():
        return
    held = file_digest(path)
    if manifest.outputs.get(DOCUMENTS, held) != held:
        raise IntegrityError(
            f"{DOCUMENTS} has digest {held}, the manifest says {manifest.outputs[DOCUMENTS]}",
            where=str(folder),
            remedy="import the documents again, or delete their manifest to trust the file",
        )
