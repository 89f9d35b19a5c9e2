"""The package index that the user's pip already reaches: its address and its certificates."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import requests
from pypi_simple import PYPI_SIMPLE_ENDPOINT, DistributionPackage, NoSuchProjectError, PyPISimple
from pypi_simple.progress import ProgressTracker


class IndexUnreachableError(RuntimeError):
    """No configured index could serve the wanted file."""


def pip_settings() -> dict[str, str]:
    """Pip's merged configuration of this interpreter, later sources winning; {} where there is no pip."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return parse_pip_settings(listing.stdout) if listing.returncode == 0 else {}


def parse_pip_settings(listing: str) -> dict[str, str]:
    """{'index-url': ...} from the lines of `pip config list` ("global.index-url='...'").

    A section ([download]) wins over [global] and the environment over both, as in pip.
    """
    rank = {"global": 0, "install": 1, "download": 2, ":env:": 3}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        key, separator, literal = line.partition("=")
        section, dot, name = key.rpartition(".")
        if not (separator and dot and section in rank):
            continue
        value = str(ast.literal_eval(literal))
        if rank[section] >= found.get(name, (-1, ""))[0]:
            found[name] = (rank[section], value)
    return {name: value for name, (_, value) in found.items()}


def index_urls(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """The http(s) indexes to ask, in order; the public one where nothing is configured."""
    main = settings.get("index-url") or environ.get("UV_DEFAULT_INDEX") or PYPI_SIMPLE_ENDPOINT
    candidates = [main, *settings.get("extra-index-url", "").split()]
    return [url for url in candidates if url.startswith(("http://", "https://"))]


def _session(settings: Mapping[str, str]) -> requests.Session:
    session = requests.Session()  # honours proxies, netrc and REQUESTS_CA_BUNDLE by itself
    if cert := settings.get("cert"):
        session.verify = cert
    if proxy := settings.get("proxy"):
        session.proxies.update({"http": proxy, "https": proxy})
    if client_cert := settings.get("client-cert"):
        session.cert = client_cert
    return session


def _offers(client: PyPISimple, project: str, filename: str) -> Iterator[DistributionPackage]:
    page = client.get_project_page(project, timeout=30.0)
    yield from (package for package in page.packages if package.filename == filename)


def download(project: str, filename: str, target: Path, progress: ProgressTracker | None = None) -> None:
    """Fetch one distribution file of `project` to `target`.

    Raises:
        IndexUnreachableError: with what each index said.
    """
    settings = pip_settings()
    failures: list[str] = []
    for number, url in enumerate(index_urls(settings), start=1):
        try:
            with PyPISimple(url, session=_session(settings)) as client:
                for package in _offers(client, project, filename):
                    # Our own pinned SHA-256 is checked afterwards, whatever the index claims.
                    client.download_package(
                        package,
                        target,
                        verify=False,
                        timeout=60.0,
                        progress=(lambda _size: progress) if progress else None,
                    )
                    return
            failures.append(f"index {number} does not list {filename}")
        except NoSuchProjectError:
            failures.append(f"index {number} has no project {project}")
        except (requests.RequestException, OSError, ValueError) as error:  # ValueError: no index page at all
            failures.append(f"index {number}: {type(error).__name__}")
    raise IndexUnreachableError("; ".join(failures) or "pip is configured with no http index")
