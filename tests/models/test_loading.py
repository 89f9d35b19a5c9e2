"""Loading from folders, GGUF files and nothing but a shape; and what is refused."""

import gc
import os
import weakref
from dataclasses import replace

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from bench_utils.devices import Placement, place
from bench_utils.models import assets, conversion, loading, prompts, sources
from bench_utils.models.errors import ModelLoadError
from bench_utils.settings import ChoiceError, Settings
from tests.conftest import VOCAB, tiny_config

CPU32 = Placement(torch.device("cpu"), torch.float32, "")


def test_a_folder_loads_in_the_dtype_asked_for(tiny_folder):
    loaded = loading.load(Settings(model=str(tiny_folder), device="cpu", dtype="bfloat16"))
    assert loaded.identity.name == "tiny"
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.weight_bytes == 2 * sum(p.numel() for p in loaded.model.parameters())


def test_an_identity_holds_no_path(tiny_folder):
    identity = sources.locate(str(tiny_folder)).identity
    assert str(tiny_folder.parent) not in repr(identity)


def test_other_weights_have_another_revision(tiny_folder, tmp_path):
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((tiny_folder / "model.safetensors").read_bytes() + b"\0")
    revisions = [sources.locate(str(f)).identity.revision for f in (tiny_folder, tmp_path)]
    assert revisions[0] != revisions[1]


def test_weights_changed_in_place_have_another_revision(tiny_folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    before = sources.locate(str(tmp_path)).identity
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert sources.locate(str(tmp_path)).identity.revision != before.revision


def test_weights_that_are_not_all_there_are_refused_by_name(tiny_folder, tmp_path):
    """Planted fault: a shard is missing; transformers would make its weights up and only log it."""
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    tensors = load_file(tiny_folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks weights.*layers\.1\.mlp\.down_proj"):
        loading.load(Settings(model=str(tmp_path), device="cpu"))


def test_weights_of_another_shape_are_refused(tiny_folder, tmp_path):
    tiny_config(intermediate_size=56).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tiny_folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelLoadError):
        loading.load(Settings(model=str(tmp_path), device="cpu"))


def test_a_folder_without_tokenizer_files_has_no_tokenizer_and_says_so(tmp_path):
    """Transformers makes an empty tokenizer up for qwen2: no text becomes no tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    Qwen2ForCausalLM(Qwen2Config(**small, num_attention_heads=4, num_key_value_heads=2)).save_pretrained(tmp_path)
    loaded = loading.load(Settings(model=str(tmp_path), device="cpu"))
    assert loaded.tokenizer is None
    assert loaded.identity.note == "no tokenizer: prompts are seeded random tokens"
    assert prompts.prompt_ids(loaded, 5).shape == (1, 5)


def test_the_last_model_is_let_go_before_the_next_is_made(tiny_folder, monkeypatch):
    first = weakref.ref(loading.load(Settings(model=str(tiny_folder), device="cpu", dtype="float16")).model)
    alive = []
    honest = loading.from_safetensors
    monkeypatch.setattr(
        loading, "from_safetensors", lambda *a: (gc.collect(), alive.append(first()), honest(*a))[-1]
    )
    loading.load(Settings(model=str(tiny_folder), device="cpu", dtype="float32"))
    assert alive == [None]


def test_a_damaged_conversion_is_made_anew_before_a_run(gguf_file, monkeypatch):
    pinned = replace(assets.SMOLLM2, member=gguf_file.name, member_sha256="f" * 64)
    monkeypatch.setattr(assets, "SMOLLM2", pinned)
    monkeypatch.setattr(assets, "path_of", lambda asset: gguf_file)
    monkeypatch.setattr(assets, "ensure", lambda asset, progress=None: gguf_file)
    weights = sources.prepare("smollm2").folder / "model.safetensors"
    honest = {name: tensor.clone() for name, tensor in load_file(weights).items()}  # loaded ones are mapped
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    sources.prepare("smollm2")
    assert all(torch.equal(tensor, honest[name]) for name, tensor in load_file(weights).items())


def test_pickled_weights_are_never_read(tiny_folder, tmp_path):
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin: pickled weights are never read"):
        loading.load(Settings(model=str(tmp_path), device="cpu"))


def test_a_folder_without_a_config_says_so(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        sources.prepare(str(tmp_path))


def test_a_damaged_safetensors_file_is_a_clear_error(tiny_folder, tmp_path):
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        loading.load(Settings(model=str(tmp_path), device="cpu"))


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="local folder"):
        sources.prepare("nobody/nothing-of-this-name")


def test_weights_that_do_not_fit_are_refused_before_they_are_made(tiny_folder, monkeypatch):
    monkeypatch.setattr("bench_utils.devices.free_bytes", lambda device: 1_000)
    with pytest.raises(MemoryError, match=r"the weights of tiny needs? [\d,]+ B and 1,000 B are free"):
        loading.load(Settings(model=str(tiny_folder), device="cpu", dtype="float16"))


def test_random_weights_are_seeded_finite_and_tied():
    first, second = (loading.random_model(tiny_config(), CPU32) for _ in range(2))
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert first.lm_head.weight is first.model.embed_tokens.weight
    assert first.model.norm.weight.eq(1).all()
    assert abs(float(first.model.embed_tokens.weight.std()) - 0.02) < 0.002
    with torch.inference_mode():
        assert first(torch.zeros(1, 5, dtype=torch.long)).logits.isfinite().all()


def test_random_rotary_angles_are_the_configs_own():
    """A buffer lost while materialising would leave every position the same."""
    from transformers import LlamaForCausalLM

    ours, theirs = loading.random_model(tiny_config(), CPU32), LlamaForCausalLM(tiny_config())
    assert torch.equal(ours.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)


def test_without_a_tokenizer_prompts_are_seeded_tokens_of_the_vocabulary(tiny):
    a, b = prompts.prompt_ids(tiny, 9, batch=3), prompts.prompt_ids(tiny, 9, batch=3)
    assert torch.equal(a, b)
    assert a.shape == (3, 9)
    assert int(a.max()) < VOCAB
    assert not torch.equal(a, prompts.prompt_ids(tiny, 9, batch=3, seed=1))


def test_an_absent_device_says_what_torch_sees():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ChoiceError, match=r"'cuda' was asked for, but torch .* sees no CUDA device"):
        place(Settings(device="cuda"))


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_follows_what_the_cpu_is_good_at_and_says_so(monkeypatch, native, dtype):
    monkeypatch.setattr("bench_utils.devices.cpu_has_native_bfloat16", lambda: native)
    placement = place(Settings(device="cpu"))
    assert placement.dtype is dtype
    assert placement.why.startswith("auto: this CPU")


# --- a GGUF file, written by the reference writer


def test_a_gguf_file_is_converted_once_and_loads_as_dequantized(gguf_file, monkeypatch):
    settings = Settings(model=str(gguf_file), device="cpu", dtype="float32")
    expected = conversion.dequantize(gguf_file)
    loaded = loading.load(settings)
    for (name, ours), theirs in zip(loaded.model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    reader = gguf.GGUFReader(gguf_file)
    packed = next(t for t in reader.tensors if t.name.endswith("ffn_down.weight"))
    down = torch.from_numpy(gguf.quants.dequantize(packed.data, packed.tensor_type).copy())
    assert torch.equal(loaded.model.model.layers[0].mlp.down_proj.weight, down)
    assert loaded.tokenizer is not None
    monkeypatch.setattr(conversion, "dequantize", lambda path: pytest.fail("converted twice"))
    sources.prepare(str(gguf_file))


def test_a_file_that_is_no_gguf_is_a_clear_error(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 60)
    with pytest.raises(ModelLoadError, match=r"bad\.gguf cannot be read as a GGUF"):
        sources.prepare(str(tmp_path / "bad.gguf"))


def test_an_incomplete_conversion_is_made_anew(gguf_file):
    folder = conversion.converted(gguf_file, "key")
    assert conversion.is_intact(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert not conversion.is_whole(folder)
    assert conversion.is_intact(conversion.converted(gguf_file, "key"))


def test_a_flipped_bit_in_converted_weights_is_found(gguf_file):
    folder = conversion.converted(gguf_file, "key")
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert conversion.is_whole(folder)
    assert not conversion.is_intact(folder)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_step_reads_every_weight_but_an_input_embedding_of_its_own(is_tied):
    config = tiny_config(tie_word_embeddings=is_tied)
    loaded = loading.LoadedModel(None, loading.random_model(config, CPU32), None, CPU32)
    looked_up = 0 if is_tied else config.vocab_size * config.hidden_size * 4
    assert loaded.step_weight_bytes == loaded.weight_bytes - looked_up


def test_the_gguf_file_of_a_model_is_named_where_it_has_one(gguf_file, tiny_folder):
    assert sources.gguf_of(str(gguf_file)) == gguf_file
    assert sources.gguf_of("smollm2").name.endswith(".gguf")
    assert sources.gguf_of(str(tiny_folder)) is None
    assert sources.gguf_of("qwen2.5-0.5b-shape") is None
