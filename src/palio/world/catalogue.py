"""A catalogue is sorted by product id, free of duplicates, and known by one digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from palio import __version__
from palio.records import (
    ConfigError,
    InputError,
    IntegrityError,
    Product,
    Provenance,
    Reject,
    digest,
    to_json,
)
from palio.world.artefacts import MANIFEST, read_manifest, write_lines, write_manifest
from palio.world.documents import DOCUMENTS, Document, read_documents
from palio.world.lines import MAX_LINE_BYTES, Progress, read_lines
from palio.world.rows import BadRowError, check_product, product_of_line

PRODUCTS = "products.jsonl"
"""File of the products in a catalogue folder, beside `manifest.json`."""


Rows = Literal["full", "compact"]
"""How a world shows its products: every field as in ShoppingBench, or few and short ones."""


class Catalogue:
    """The products of one world.

    Attributes:
        catalogue_id: name of the catalogue, e.g. "compact-7"; no part of the digest.
        products: product id -> product, ids in ascending code point order.
        by_shop: shop id -> its product ids in ascending order.
        rows: the rows that it was generated for, "full" for everything imported; no part of the
            digest.
        documents: the offline web of its world, often none; no part of the digest either.
    """

    def __init__(
        self,
        catalogue_id: str,
        products: dict[str, Product],
        rows: Rows = "full",
        documents: tuple[Document, ...] = (),
    ) -> None:
        self.catalogue_id = catalogue_id
        self.products = products
        self.rows: Rows = rows
        self.documents = documents

    @classmethod
    def from_products(
        cls, catalogue_id: str, products: Iterable[Product], rows: Rows = "full"
    ) -> Catalogue:
        """Check and sort products.

        Raises:
            InputError: two products share an id, a price is NaN, infinite or negative, a service
                is unknown, or an id is empty or holds a comma.
        """
        kept: dict[str, Product] = {}
        for place, product in enumerate(products, 1):
            where = f"catalogue {catalogue_id}, product {place}"
            try:
                checked = check_product(product)
            except BadRowError as bad:
                raise InputError(bad.detail, where=where) from bad
            if checked.product_id in kept:
                raise InputError(
                    f"product_id {checked.product_id!r} occurs twice",
                    where=where,
                    remedy="give every product its own id",
                )
            kept[checked.product_id] = checked
        return cls(catalogue_id, dict(sorted(kept.items())), rows)

    @cached_property
    def by_shop(self) -> dict[str, tuple[str, ...]]:
        """Shop id -> ids of its products, ascending."""
        shops: dict[str, list[str]] = {}
        for product_id, product in self.products.items():
            shops.setdefault(product.shop_id, []).append(product_id)
        return {shop: tuple(ids) for shop, ids in shops.items()}

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` over `catalogue_lines`: the digest of the file `products.jsonl`.

        Options and attributes keep their order in it, so equal digests mean equal tool output.
        """
        running = hashlib.sha256()
        for line in catalogue_lines(self.products.values()):
            running.update(line)
        return "sha256:" + running.hexdigest()

    def __len__(self) -> int:
        return len(self.products)

    def __iter__(self) -> Iterator[Product]:
        return iter(self.products.values())


def catalogue_lines(products: Iterable[Product]) -> Iterator[bytes]:
    """The file form: one JSON line a product, record field order, line end included."""
    for product in products:
        yield to_json(product) + b"\n"


def products_file(path: Path) -> Path:
    """The products file that `path` names: itself, or `products.jsonl` in a folder."""
    return path / PRODUCTS if path.is_dir() else path


def read_catalogue(
    path: Path,
    *,
    catalogue_id: str = "",
    max_line_bytes: int = MAX_LINE_BYTES,
    progress: Progress | None = None,
) -> tuple[Catalogue, tuple[Reject, ...]]:
    """Read a catalogue folder or any product file (plain, gzip, zstd; plain or document rows).

    Bad lines become rejects; of two rows with one id the first is kept. Documents that stand in
    the folder come with it.

    Args:
        path: a folder written by palio, or a file.
        catalogue_id: name for the catalogue; "" takes the manifest's, or the file's name.
        max_line_bytes: longer lines are rejected.
        progress: called every 2,000 lines.

    Raises:
        InputError: there is no such file, or it holds no product.
        IntegrityError: the folder's manifest has another digest for the products.
    """
    source = products_file(path)
    manifest = read_manifest(path / MANIFEST) if path.is_dir() else None
    products: dict[str, Product] = {}
    rejects: list[Reject] = []
    for line in read_lines(source, max_bytes=max_line_bytes, progress=progress):
        try:
            if line.fault:
                raise BadRowError(line.fault, line.detail)
            product = product_of_line(line.data)
            if product.product_id in products:
                raise BadRowError("duplicate_id", f"{product.product_id!r} stands above already")
            products[product.product_id] = product
        except BadRowError as bad:
            rejects.append(bad.reject(str(source), line.number))
    if not products:
        why = f"; line {rejects[0].line}: {rejects[0].detail}" if rejects else ""
        raise InputError(f"holds no product{why}", where=str(source), remedy="check the path")
    name = catalogue_id or _recorded_id(manifest) or source.name.split(".")[0]
    documents: tuple[Document, ...] = ()
    if path.is_dir() and (path / DOCUMENTS).is_file():
        documents, bad_documents = read_documents(path)
        rejects += bad_documents
    rows = _recorded_rows(manifest)
    catalogue = Catalogue(name, dict(sorted(products.items())), rows, documents)
    _check_manifest(manifest, catalogue, path)
    return catalogue, tuple(rejects)


def read_catalogues(paths: Sequence[Path]) -> tuple[dict[str, Catalogue], tuple[Reject, ...]]:
    """Several catalogues by id, in the order given, and the bad lines of all of them.

    Raises:
        ConfigError: two of them have one id and different products.
        InputError, IntegrityError: see `read_catalogue`.
    """
    found: dict[str, Catalogue] = {}
    rejects: list[Reject] = []
    for path in paths:
        catalogue, bad = read_catalogue(path)
        held = found.setdefault(catalogue.catalogue_id, catalogue)
        if held.digest != catalogue.digest:
            raise ConfigError(
                f"two catalogues are called {catalogue.catalogue_id!r} and differ",
                where=str(path),
                remedy="import one of them under another --name",
            )
        rejects += bad
    return found, tuple(rejects)


def write_catalogue(catalogue: Catalogue, path: Path) -> Provenance:
    """Write a catalogue folder (products, manifest), or with a `.jsonl` name one file.

    The manifest is written last; beside a single file it is called `<name>.manifest.json`.
    """
    single = path.suffix == ".jsonl"
    target = path if single else path / PRODUCTS
    target.parent.mkdir(parents=True, exist_ok=True)
    write_lines(target, catalogue_lines(catalogue.products.values()))
    config = {"catalogue_id": catalogue.catalogue_id, "rows": catalogue.rows}
    manifest = Provenance(
        kind="catalogue",
        tool_version=__version__,
        config=config,
        config_digest=digest(config),
        outputs={target.name: catalogue.digest},
        counts={"kept": len(catalogue)},
    )
    where = path.with_name(path.name + ".manifest.json") if single else path / MANIFEST
    write_manifest(manifest, where)
    return manifest


def _recorded_id(manifest: Provenance | None) -> str:
    return str(manifest.config.get("catalogue_id", "")) if manifest else ""


def _recorded_rows(manifest: Provenance | None) -> Rows:
    """What `write_catalogue` or the generator wrote; imported catalogues say nothing."""
    config = manifest.config if manifest else {}
    made = config.get("synthesis")
    rows = made.get("world") if isinstance(made, dict) else config.get("rows")
    return "compact" if rows == "compact" else "full"


def _check_manifest(manifest: Provenance | None, catalogue: Catalogue, path: Path) -> None:
    recorded = manifest.outputs.get(PRODUCTS) if manifest else None
    if recorded is not None and recorded != catalogue.digest:
        raise IntegrityError(
            f"{PRODUCTS} has digest {catalogue.digest}, the manifest says {recorded}",
            where=str(path),
            remedy="make or import the catalogue again, or delete the manifest to trust the file",
        )
