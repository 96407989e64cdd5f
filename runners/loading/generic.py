"""Load any other causal language model of transformers, from a folder. Importing this file imports transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.loading.source import listed
from headrace.runners.models.generic import GenericModel, attend, refused

ATTENTION = "headrace_paged"
"""Our name among transformers' attention functions."""
_LAYER_TYPES = ("full_attention", "sliding_attention")


def is_generic(architecture: str) -> bool:
    """Tell whether transformers has a causal language model of this name."""
    return architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def load_generic(path: Path, dtype: torch.dtype) -> GenericModel:
    """Load a folder by transformers; runs no code that comes with it. Raises ModelFileDamaged, UnsupportedModel."""
    transformers.AttentionInterface.register(ATTENTION, attend)
    options: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **options)
        _check(str(path), config)
        loader: Any = transformers.AutoModelForCausalLM
        model, report = loader.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a damaged file makes transformers raise
        raise ModelFileDamaged(f"{path}: transformers can't load it: {' '.join(str(error).split()):.300}") from error
    if report["missing_keys"] or report["mismatched_keys"]:
        wrong = sorted(map(str, (*report["missing_keys"], *report["mismatched_keys"])))
        raise ModelFileDamaged(f"{path}: tensors are missing or have wrong shapes: {listed(wrong)}")
    return GenericModel(str(path), model.eval())


def _check(where: str, config: transformers.PreTrainedConfig) -> None:
    kind: Any = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    if not kind._supports_attention_backend or kind._is_stateful:
        raise refused(where, config, "it doesn't use transformers' attention functions")
    if getattr(config, "quantization_config", None) is not None:
        raise refused(where, config, "it is quantised")
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - set(_LAYER_TYPES)
    if others:
        raise refused(where, config, f"it has layers of type {listed(sorted(others))}")
