"""Configs by name, without weights; what they lack is named."""

import json

import pytest

from bench_utils.models import configs, sources
from bench_utils.models.errors import ModelLoadError
from bench_utils.settings import ChoiceError
from tests.models.families import tiny_of


@pytest.fixture
def folder(tmp_path):
    """A folder that holds a config and nothing else."""
    tiny_of("llama").save_pretrained(tmp_path / "only-a-config")
    return tmp_path / "only-a-config"


def rewrite(folder, **changes):
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def test_a_folder_and_its_file_are_the_same_model(folder):
    found = configs.config_of(str(folder))
    assert (found.name, found.config.hidden_size, found.most_positions) == ("only-a-config", 32, 2_048)
    other = configs.config_of(str(folder / "config.json"))
    assert (other.name, other.config.to_dict()) == (found.name, found.config.to_dict())


def test_the_built_in_shape_needs_no_file():
    found = configs.config_of("qwen2.5-0.5b-shape")
    assert (found.config.num_hidden_layers, found.most_positions) == (24, 32_768)


def test_a_gguf_files_own_metadata_are_its_config(gguf_file):
    found = configs.config_of(str(gguf_file))
    assert found.name == "one-layer"
    assert (found.config.model_type, found.config.num_hidden_layers) == ("llama", 1)


def test_of_a_hub_repository_the_config_alone_is_fetched(folder, monkeypatch):
    asked = []

    def download(name, file):
        asked.append((name, file))
        return str(folder / "config.json")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    found = configs.config_of("some-one/some-model")
    assert (found.name, found.config.hidden_size) == ("some-one/some-model", 32)
    assert asked == [("some-one/some-model", "config.json")]


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch):
    def unreachable(*_arguments):
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    with pytest.raises(ModelLoadError, match=r"'some-one/some-model' cannot be had: no route\n.*a local folder"):
        configs.config_of("some-one/some-model")


FIELDS = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_not_written_is_named_and_not_made_up(folder, field):
    rewrite(folder, **{field: None})
    with pytest.raises(ModelLoadError, match=f"only-a-config lacks the field {field}:"):
        configs.config_of(str(folder))


@pytest.mark.parametrize(
    ("family", "field"),
    [("qwen2", "num_key_value_heads"), ("mixtral", "num_local_experts"), ("gemma", "head_dim"), ("opt", "ffn_dim")],
)
def test_a_field_that_the_family_has_a_number_of_its_own_for_is_demanded_too(tmp_path, family, field):
    tiny_of(family).save_pretrained(tmp_path)
    assert configs.config_of(str(tmp_path)).config.model_type == family
    rewrite(tmp_path, **{field: None})
    with pytest.raises(ModelLoadError, match=f"lacks the field {field}:"):
        configs.config_of(str(tmp_path))


def test_blooms_older_name_of_its_width_is_known(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bloom", "n_layer": 2, "n_embed": 32, "n_head": 4, "vocab_size": 64}))
    assert configs.config_of(str(path)).config.hidden_size == 32


def test_positions_that_are_not_written_are_unknown_and_none_are_refused(folder):
    rewrite(folder, max_position_embeddings=None)
    assert configs.config_of(str(folder)).most_positions is None
    rewrite(folder, max_position_embeddings=-5)
    with pytest.raises(ModelLoadError, match="max_position_embeddings=-5: less than one"):
        configs.config_of(str(folder))


def test_more_layers_than_any_model_has_are_refused(folder):
    rewrite(folder, num_hidden_layers=20_000)
    with pytest.raises(ModelLoadError, match="num_hidden_layers=20,000: too many"):
        configs.config_of(str(folder))


def test_the_format_of_the_files_own_weights_is_told(folder):
    rewrite(folder, quantization_config={"quant_method": "mxfp4"})
    assert configs.config_of(str(folder)).packed_in == "mxfp4"


def test_code_of_a_models_own_is_never_run(folder):
    """A class that the config maps to: reading it would leave a file."""
    rewrite(folder, auto_map={"AutoConfig": "own.OwnConfig"}, model_type="own-family")
    (folder / "own.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('was-run').touch()\n"
        "from transformers import PretrainedConfig\n"
        "class OwnConfig(PretrainedConfig):\n    model_type = 'own-family'\n"
    )
    with pytest.raises(ModelLoadError, match="cannot be read"):
        configs.config_of(str(folder))
    assert not list(folder.rglob("was-run"))


def test_a_field_under_its_familys_own_name_is_there(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64}))
    assert configs.config_of(str(path)).config.num_hidden_layers == 2


def test_a_part_may_leave_its_heads_to_its_family_but_not_its_size(tmp_path):
    path = tmp_path / "config.json"
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2}
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert configs.config_of(str(path)).config.text_config.num_attention_heads == 8
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": {**text, "hidden_size": 64}}))
    del text["num_hidden_layers"]
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    with pytest.raises(ModelLoadError, match="lacks the field num_hidden_layers"):
        configs.config_of(str(path))


def test_a_model_that_is_not_causal_is_named(folder):
    for told in (["LlamaForSequenceClassification"], "LlamaForSequenceClassification"):
        rewrite(folder, architectures=told)
        with pytest.raises(ModelLoadError, match="is LlamaForSequenceClassification: no"):
            configs.config_of(str(folder))


@pytest.mark.parametrize("known", ["LlamaForCausalLM", "GPT2LMHeadModel", "Gemma3ForConditionalGeneration"])
def test_one_causal_class_among_others_is_enough(folder, known):
    rewrite(folder, architectures=["LlamaForTokenClassification", known])
    assert configs.config_of(str(folder)).config.hidden_size == 32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ('{"model_type": "no-such-family"}', "cannot be read"),
        ('{"model_type": "llama", "num_hidden_layers": "many"}', "cannot be read"),
        ('{"model_type": "llama", "architectures": [3]}', "cannot be read"),
        ('{"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}', "cannot be read"),
    ],
)
def test_a_config_that_is_none_is_one_line(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelLoadError, match=words) as caught:
        configs.config_of(str(path))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"the config of .* cannot be read"):
        configs.config_of(str(tmp_path))


def test_a_gguf_file_that_is_none_is_named(tmp_path):
    (tmp_path / "empty.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="empty has no metadata that can be read"):
        configs.config_of(str(tmp_path / "empty.gguf"))


def test_an_unknown_name_lists_what_the_caller_knows_too():
    with pytest.raises(ChoiceError, match=r"choose one of 7b, smollm2.*Did you mean '7b'\?"):
        configs.config_of("7c", also=("7b",))


def test_the_embedded_models_config_lies_beside_its_weights(folder, monkeypatch):
    monkeypatch.setattr(sources, "embedded_folder", lambda: folder)
    assert configs.config_of("smollm2").config.hidden_size == 32
