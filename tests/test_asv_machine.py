"""A machine as asv keeps it: named by its user and no host, with the GPU among the axes."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bench_utils import asv_machine, cli
from bench_utils.settings import Settings


def claims(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def test_asv_is_told_of_the_machine_under_the_users_name(home):
    result = claims("machine", "--name", "my-laptop", "--device", "cpu")
    assert result.exit_code == 0
    assert "asv run --machine my-laptop HEAD^!" in result.stdout
    written = json.loads((home / ".asv-machine.json").read_text())["my-laptop"]
    assert set(written) == {"machine", "os", "arch", "cpu", "num_cpu", "ram", "gpu", "cuda"}
    assert (written["gpu"], written["cuda"]) == ("none", "none")
    assert all(isinstance(value, str) for value in written.values())


def test_another_machine_there_stays(home):
    for name in ("one", "two"):
        claims("machine", "--name", name, "--device", "cpu")
    assert {"one", "two"} <= set(json.loads((home / ".asv-machine.json").read_text()))


def test_a_gpu_and_its_cuda_are_axes(monkeypatch):
    gpu = SimpleNamespace(name="Some GPU", uuid="GPU-1", memory_bytes=8 * 2**30, driver="1", cuda="13.0")
    found = SimpleNamespace(
        name="some-gpu-8g-abc",
        os="linux",
        architecture="x86_64",
        cpu="c",
        num_usable_cpus=4,
        memory_bytes=2**34,
        gpu=gpu,
    )
    monkeypatch.setattr(asv_machine.machine, "fingerprint", lambda *_device: found)
    entry = asv_machine.entry_of(Settings(device="cpu"))
    assert (entry["machine"], entry["gpu"], entry["cuda"]) == ("some-gpu-8g-abc", "Some GPU", "13.0")


def test_a_name_that_is_no_folder_is_refused(home):
    result = claims("machine", "--name", "../up")
    assert result.exit_code == 2
    assert "becomes a folder" in result.stderr
