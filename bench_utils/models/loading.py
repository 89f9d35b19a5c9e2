"""Loading: a located model becomes one on a device, with its tokenizer where it has one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from bench_utils import devices
from bench_utils.devices import demand_memory
from bench_utils.models import sources
from bench_utils.models.errors import ModelLoadError
from bench_utils.models.shapes import chapter_config
from bench_utils.models.sources import RANDOM_SEED, ModelIdentity
from bench_utils.settings import Settings

_POOL = 1 << 22  # elements of the pool that random weights repeat


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to run, with its tokenizer where it has one."""

    identity: ModelIdentity
    model: Any
    tokenizer: Any | None
    placement: devices.Placement
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, kept as long as the model is: for claims and cases that need the same of it."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    @property
    def config(self) -> Any:
        """The transformers config."""
        return self.model.config

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters, tied ones counted once."""
        return sum(p.nbytes for p in self.model.parameters())

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that one step reads: all but an input embedding of its own, which is looked up."""
        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        is_tied = head is None or embedding.weight is head.weight
        return self.weight_bytes - (0 if is_tied else embedding.weight.nbytes)


class _LastLoaded:
    """The last model, kept so that claims in a row share it; let go before the next one is made."""

    def __init__(self) -> None:
        self._key: tuple[str, devices.Placement] | None = None
        self._loaded: LoadedModel | None = None

    def get(self, model: str, placement: devices.Placement) -> LoadedModel:
        if self._loaded is None or self._key != (model, placement):
            self._key = self._loaded = None
            self._loaded = _load(model, placement)
            self._key = model, placement
        return self._loaded

    def let_go(self) -> None:
        self._key = self._loaded = None


_last = _LastLoaded()


def load(settings: Settings) -> LoadedModel:
    """The model of the settings; the last one is kept, so that claims in a row share it.

    Raises:
        ChoiceError: an unknown name or an absent device.
        ModelLoadError, AssetError: it cannot be used or fetched.
        MemoryError: it does not fit.
    """
    return _last.get(settings.model, devices.place(settings))


def let_go() -> None:
    """Forget the last model: another process is about to need its memory."""
    _last.let_go()


def load_float32(settings: Settings) -> LoadedModel:
    """The model in float32, whatever the run computes in: the same weights on every machine."""
    return load(replace(settings, dtype="float32"))


def _load(model: str, placement: devices.Placement) -> LoadedModel:
    located = sources.locate(model)
    name, folder = located.identity.name, located.folder
    if folder is None:
        return LoadedModel(located.identity, random_model(chapter_config(), placement, name), None, placement)
    weights = from_safetensors(folder, placement, name)
    return LoadedModel(located.identity, weights, _tokenizer(folder), placement)


def from_safetensors(folder: Path, placement: devices.Placement, name: str) -> Any:
    """A causal language model from a folder's safetensors; `name` stands for it in errors.

    Raises:
        ModelLoadError: it is no such model, or its weights are damaged or not all there.
        MemoryError: its weights do not fit.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        num_bytes = sum(p.numel() for p in skeleton(config, name).parameters()) * placement.dtype.itemsize
        demand_memory(num_bytes, placement.device, f"the weights of {name}")
        with _without_progress_bar():  # mapping takes a moment, and a claim may do it in every sample
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=placement.dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(
            f"{name} cannot be loaded as a causal language model from safetensors: {error}\n"
            "  Only safetensors and GGUF weights are read, and no code of the model's own is run."
        ) from error
    model, info = loaded
    # What a file lacks is made up at random, and only logged: a record would call it the real model.
    if lacking := sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]})):
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        raise ModelLoadError(f"{name} lacks weights that its config asks for: {shown}; fetch or copy it whole")
    return model.to(placement.device).eval()


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def skeleton(config: Any, name: str) -> Any:
    """The config's architecture in bfloat16 on 'meta': shapes and dtypes, and no memory.

    Raises:
        ModelLoadError: the config's fields do not make a causal language model.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="eager", trust_remote_code=False
            )
    except Exception as error:  # whatever a family's code meets in fields that do not go together
        raise ModelLoadError(f"the config of {name} makes no causal language model: {error}") from error


def random_model(config: Any, placement: devices.Placement, name: str = "a random model") -> Any:
    """The config's architecture with seeded random weights of standard deviation 0.02.

    One seeded pool of normal numbers is repeated over every matrix: filling is then as fast as copying, and
    bytes, multiply-accumulates and times do not depend on the values. Norms start at 1, biases at 0.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=placement.dtype, trust_remote_code=False)
    num_bytes = sum(p.numel() for p in model.parameters()) * placement.dtype.itemsize
    demand_memory(num_bytes, placement.device, f"the weights of {name}")
    generator = torch.Generator().manual_seed(RANDOM_SEED)
    pool = torch.randn(_POOL, generator=generator).mul_(0.02).to(placement.device, placement.dtype)
    for module in model.modules():
        for name, hollow in list(module.named_parameters(recurse=False)):
            weight = torch.empty(hollow.shape, dtype=placement.dtype, device=placement.device)
            if weight.dim() < 2:
                weight.fill_(0.0 if name == "bias" else 1.0)
            else:
                _repeat(pool, weight)
            setattr(module, name, torch.nn.Parameter(weight, requires_grad=False))
    model.tie_weights()
    return model.to(placement.device).eval()


def _repeat(pool: torch.Tensor, target: torch.Tensor) -> None:
    flat = target.view(-1)
    for start in range(0, flat.numel(), pool.numel()):
        piece = flat[start : start + pool.numel()]
        piece.copy_(pool[: piece.numel()])


def _tokenizer(folder: Path) -> Any | None:
    from transformers import AutoTokenizer

    if not sources.has_tokenizer(folder):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadError(f"the tokenizer beside the weights cannot be read: {error}") from error
