"""What can go wrong between a model's name and a model; every message says what to do."""


class AssetError(RuntimeError):
    """An asset that cannot be had or is not what it should be."""


class ModelLoadError(RuntimeError):
    """A model that exists but cannot be used."""
