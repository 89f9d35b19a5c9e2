"""The user's own index settings, and a download from an index served on the loopback."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench_utils.models import package_index
from bench_utils.models.package_index import IndexUnreachableError, download, index_urls, parse_pip_settings

LISTING = """\
:env:.cert='/env/cert.pem'
global.cert='/file/cert.pem'
global.index-url='http://global/simple'
download.index-url='http://download/simple'
global.extra-index-url='file:///opt/simple http://extra/simple'
wheel.index-url='http://ignored/simple'
not a setting
"""


@pytest.fixture
def served(tmp_path):
    """A loopback index with one project; yields its simple URL."""
    page = tmp_path / "simple" / "pkg"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<html><body><a href="pkg-1.0.tar.gz">pkg-1.0.tar.gz</a></body></html>')
    (page / "pkg-1.0.tar.gz").write_bytes(b"archive" * 1000)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *arguments: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


class Bytes:
    """A progress bar that only counts."""

    def __init__(self):
        self.seen = 0

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None

    def update(self, increment):
        self.seen += increment


def use(monkeypatch, **settings):
    monkeypatch.setattr(
        package_index, "pip_settings", lambda: {k.replace("_", "-"): v for k, v in settings.items()}
    )
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_pips_sections_win_in_pips_order():
    settings = parse_pip_settings(LISTING)
    assert settings["index-url"] == "http://download/simple"
    assert settings["cert"] == "/env/cert.pem"


def test_only_http_indexes_are_asked_the_main_one_first():
    assert index_urls(parse_pip_settings(LISTING), {}) == ["http://download/simple", "http://extra/simple"]


def test_without_settings_the_librarys_public_index_is_asked():
    assert len(index_urls({}, {})) == 1
    assert index_urls({}, {"UV_DEFAULT_INDEX": "http://uv/simple"}) == ["http://uv/simple"]


def test_a_file_comes_from_the_configured_index_with_progress(served, tmp_path, monkeypatch):
    use(monkeypatch, index_url=served)
    progress = Bytes()
    download("pkg", "pkg-1.0.tar.gz", tmp_path / "got", progress)
    assert (tmp_path / "got").read_bytes() == b"archive" * 1000
    assert progress.seen == 7000


def test_an_extra_index_is_asked_where_the_main_one_has_nothing(served, tmp_path, monkeypatch):
    empty = served.replace("/simple", "/nothing")
    use(monkeypatch, index_url=empty, extra_index_url=served)
    download("pkg", "pkg-1.0.tar.gz", tmp_path / "got")
    assert (tmp_path / "got").is_file()


def test_what_no_index_has_is_said_index_by_index(served, tmp_path, monkeypatch):
    use(monkeypatch, index_url=served, extra_index_url="http://127.0.0.1:9/simple")
    with pytest.raises(IndexUnreachableError, match=r"index 1 does not list pkg-9.*; index 2: ConnectionError"):
        download("pkg", "pkg-9.tar.gz", tmp_path / "got")
