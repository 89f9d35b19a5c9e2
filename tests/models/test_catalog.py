"""What the name of a model may mean."""

import pytest

from bench_utils.models.catalog import SourceKind, resolve
from bench_utils.settings import ChoiceError


def test_built_in_names_and_hub_ids_are_told_apart():
    assert resolve("smollm2").kind is SourceKind.EMBEDDED
    assert resolve("qwen2.5-0.5b-shape").kind is SourceKind.RANDOM
    assert resolve("Qwen/Qwen2.5-0.5B-Instruct").kind is SourceKind.HUB


def test_local_folders_and_gguf_files_are_named_without_their_path(tmp_path):
    file = tmp_path / "small.Q4.gguf"
    file.write_bytes(b"")
    assert (resolve(str(file)).kind, resolve(str(file)).name) == (SourceKind.GGUF, "small.Q4")
    assert (resolve(str(tmp_path)).kind, resolve(str(tmp_path)).name) == (SourceKind.FOLDER, tmp_path.name)


def test_a_mistyped_name_gets_the_nearest_match():
    with pytest.raises(ChoiceError, match=r"unknown model 'smolm2'.*Did you mean 'smollm2'\?"):
        resolve("smolm2")


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "missing.gguf", "~/missing"])
def test_a_local_path_that_is_not_there_is_no_hub_id(name):
    with pytest.raises(ChoiceError, match="no model at"):
        resolve(name)
