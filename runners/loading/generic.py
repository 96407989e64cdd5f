"""Load any other causal language model of transformers, from a folder. Importing this file imports transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from headrace.core.errors import ModelError, ModelFileDamaged
from headrace.runners.loading.dummy import check_memory, dummy_values
from headrace.runners.loading.source import listed
from headrace.runners.models.generic import GenericModel, attend, refused

ATTENTION = "headrace_paged"
"""Our name among transformers' attention functions."""
_OPTIONS: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_LAYER_TYPES = ("full_attention", "sliding_attention")


def is_generic(architecture: str) -> bool:
    """Tell whether transformers has a causal language model of this name."""
    return architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def load_generic(path: Path, dtype: torch.dtype, is_dummy: bool = False) -> GenericModel:
    """Load a folder by transformers; runs no code that comes with it. Raises ModelFileDamaged, UnsupportedModel."""
    transformers.AttentionInterface.register(ATTENTION, attend)
    try:
        config = transformers.AutoConfig.from_pretrained(path, **_OPTIONS)
        _check(str(path), config)
        model = (_made_up if is_dummy else _read)(path, config, dtype)
    except ModelError:
        raise
    except Exception as error:  # whatever a damaged file makes transformers raise
        raise ModelFileDamaged(f"{path}: transformers can't load it: {' '.join(str(error).split()):.300}") from error
    return GenericModel(str(path), model.eval())


def _read(path: Path, config: transformers.PreTrainedConfig, dtype: torch.dtype) -> Any:
    loader: Any = transformers.AutoModelForCausalLM
    model, report = loader.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        attn_implementation=ATTENTION,
        use_safetensors=True,
        output_loading_info=True,
        **_OPTIONS,
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        wrong = sorted(map(str, (*report["missing_keys"], *report["mismatched_keys"])))
        raise ModelFileDamaged(f"{path}: tensors are missing or have wrong shapes: {listed(wrong)}")
    return model


def _made_up(path: Path, config: transformers.PreTrainedConfig, dtype: torch.dtype) -> Any:
    """Build the model of a config, first without memory to see how large it is, then with weights made up by name."""
    loader: Any = transformers.AutoModelForCausalLM
    options = {"dtype": dtype, "attn_implementation": ATTENTION, "trust_remote_code": False}
    with torch.device("meta"):
        check_memory(path, sum(weight.numel() for weight in loader.from_config(config, **options).parameters()))
    model = loader.from_config(config, **options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.from_numpy(dummy_values(name, tuple(weight.shape))))
    return model


def _check(where: str, config: transformers.PreTrainedConfig) -> None:
    kind: Any = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    if not kind._supports_attention_backend or kind._is_stateful:
        raise refused(where, config, "it doesn't use transformers' attention functions")
    if getattr(config, "quantization_config", None) is not None:
        raise refused(where, config, "it is quantised")
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - set(_LAYER_TYPES)
    if others:
        raise refused(where, config, f"it has layers of type {listed(sorted(others))}")
