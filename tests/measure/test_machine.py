"""The fingerprint: what it holds, what it must never hold, and how a machine is named."""

import getpass
import json
import platform
import socket
from dataclasses import asdict, replace

import pytest

from bench_utils.measure import machine
from bench_utils.measure.machine import Gpu, container_kind, fingerprint, state


@pytest.fixture(scope="module")
def here():
    return fingerprint()


def test_it_names_no_host_no_user_and_no_path(here):
    text = json.dumps([asdict(here), asdict(state())])
    for secret in (socket.gethostname(), platform.node()):
        assert len(secret) < 4 or secret not in text
    assert f'"{getpass.getuser()}"' not in text
    assert "/" not in here.name


def test_it_holds_what_explains_a_speed(here):
    assert here.num_usable_cpus >= 1
    assert here.num_threads >= 1
    assert here.memory_bytes > 2**28
    assert here.gpu is None
    assert here.versions["torch"].startswith("2.")


def test_the_same_hardware_has_the_same_name_and_id_whatever_is_installed(here):
    other = replace(here, versions={"torch": "9"}, container="docker", num_threads=99)
    assert (other.id, other.name) == (here.id, here.name)


def test_other_hardware_has_another_name(here):
    gpu = Gpu("NVIDIA H200", "GPU-1", 139 * 2**30, "580", "12.8")
    assert replace(here, num_usable_cpus=64).name != here.name
    assert replace(here, gpu=gpu).name.startswith("nvidia-h200-139g-")
    assert replace(here, gpu=gpu).id != replace(here, gpu=replace(gpu, uuid="GPU-2")).id


@pytest.mark.parametrize(
    ("cpu", "slug"),
    [
        ("Intel(R) Core(TM) i7-1365U CPU", "intel-core-i7-1365u-"),
        ("Apple M3 Max", "apple-m3-max-"),
        ("", "machine-"),
    ],
)
def test_names_are_plain(here, cpu, slug):
    assert replace(here, cpu=cpu).name.startswith(slug)


def test_containers_are_told_apart(tmp_path):
    assert container_kind(tmp_path, {}) == "none"
    assert container_kind(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "kubernetes"
    assert container_kind(tmp_path, {"WSL_DISTRO_NAME": "Ubuntu"}) == "wsl"
    (tmp_path / ".dockerenv").touch()
    assert container_kind(tmp_path, {}) == "docker"


def test_a_clock_that_cannot_be_read_has_a_reason(monkeypatch):
    monkeypatch.setattr(machine.psutil, "cpu_freq", lambda: None)
    assert state().cpu_mhz.reason == "the system shows no CPU frequency"
