"""Objects of Transformers and PEFT, and dictionaries, in the place of the files that say the same."""
import json
import os
import sys
import tempfile
from collections.abc import Mapping

# Options that name a file of JSON.
_FILES = {"peft": "adapter_config.json", "training_args": "training_args.json",
          "deepspeed": "ds_config.json", "accelerate": "accelerate.json"}
_MODEL = "config.json"


def as_file(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, default=lambda value: sorted(value) if isinstance(value, set)
                  else str(value))
    return path


def inner_of(model):
    """The Transformers model within PEFT's, DDP's and FSDP1's wrappers."""
    for name in ("module", "_fsdp_wrapped_module"):
        while name in getattr(model, "_modules", {}):
            model = model._modules[name]
    return model


def config_of(model):
    """What a model's config.json would say, of a model or of its configuration. A model's class is
    the one that it has: a checkpoint's may be another one, with another head."""
    inner = inner_of(model)
    config = model if hasattr(model, "to_dict") else getattr(inner, "config", None)
    if not hasattr(config, "to_dict"):
        raise ValueError(f"{type(model).__name__} has no configuration of Transformers")
    said = config.to_dict()
    if config is not model:
        base = getattr(inner, "get_base_model", lambda: inner)()
        name = type(base).__name__.removeprefix("FSDP")  # fully_shard() makes a class of its own
        if hasattr(sys.modules.get("transformers"), name):
            said["architectures"] = [name]
    return said


def name_of(config):
    """What the model is called, of config_of()."""
    return config.get("_name_or_path") or config.get("model_type") or _MODEL


def adapters_of(model):
    """What an adapter_config.json would say; None: there is none."""
    configs = getattr(inner_of(model), "peft_config", None)
    if not configs or not hasattr(next(iter(configs.values())), "to_dict"):
        return None
    if len(configs) > 1:
        raise ValueError(f"{len(configs)} adapters in one model")
    return next(iter(configs.values())).to_dict()


class Asked:
    """MODEL and options with files in the place of objects, as long as the context lasts."""

    def __init__(self, model, options):
        self.model, self.options = model, dict(options)
        self._called, self._path, self._folder = None, None, None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        try:
            self._put_files()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def _put_files(self):
        if self.model is not None and not isinstance(self.model, (str, os.PathLike)):
            self._put_model()
        for option, name in _FILES.items():
            value = self.options.get(option)
            if hasattr(value, "to_dict"):
                value = value.to_dict()
            if isinstance(value, Mapping):
                self.options[option] = as_file(self._folder.name, name, value)

    def __exit__(self, *_):
        self._folder.cleanup()

    def _put_model(self):
        config = dict(self.model) if isinstance(self.model, Mapping) else config_of(self.model)
        adapters = None if isinstance(self.model, Mapping) else adapters_of(self.model)
        if adapters is not None and "peft" not in self.options:
            self.options["peft"] = adapters
        self._called = name_of(config)
        self.model = self._path = as_file(self._folder.name, _MODEL, config)

    def named(self, answer):
        """Without the folder, which is gone by then; a model is called what its objects say."""
        if isinstance(answer, dict):
            for key, value in answer.items():
                answer[key] = self.named(value)
        elif isinstance(answer, list):
            answer[:] = map(self.named, answer)
        elif isinstance(answer, str) and self._folder.name in answer:
            if answer == self._path:
                return self._called
            return answer.replace(self._folder.name + os.sep, "")
        return answer
