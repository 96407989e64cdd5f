"""GPT-2 in words: learned positions, layer norms with biases, a plain network. Source: Radford et al. 2019.

No torch; gpt2_model.py computes.
"""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import ContextLength, LayerCount, Positive, Size, checked, require
from headrace.runners.models.contract import Family, Parameter

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.runners.models.gpt2_model import GPT2
    from headrace.runners.models.layers import Ops

PREFIX = "transformer."
"""Some folders leave it out."""
EMBEDDING = "transformer.wte.weight"
POSITIONS = "transformer.wpe.weight"
HEAD = "lm_head.weight"
_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")
"""Two names of the tanh approximation."""


class GPT2Config(Struct, frozen=True, kw_only=True):
    """Sizes and constants of one model. Implements contract.ModelConfig."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_layers: LayerCount
    num_heads: Size
    context_length: ContextLength
    eps: Positive
    tied_head: bool = True

    @property
    def num_kv_heads(self) -> int:
        """Every query head has its own keys and values."""
        return self.num_heads

    @property
    def head_dim(self) -> int:
        """Numbers of one head."""
        return self.hidden_size // self.num_heads


class FolderConfig(Struct, frozen=True):
    """What config.json says; fields that aren't here change nothing."""

    vocab_size: int
    n_embd: int
    n_layer: int
    n_head: int
    n_positions: int
    n_inner: int | None = None
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu_new"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    quantization_config: dict[str, Any] | None = None


def read_folder(where: str, values: dict[str, Any]) -> GPT2Config:
    """Read the config from a folder's config.json."""
    found = checked(where, FolderConfig, values)
    if found.activation_function not in _ACTIVATIONS:
        require(where, "activation_function", found.activation_function, _ACTIVATIONS[0])
    require(where, "scale_attn_weights", found.scale_attn_weights, True)
    require(where, "scale_attn_by_inverse_layer_idx", found.scale_attn_by_inverse_layer_idx, False)
    require(where, "add_cross_attention", found.add_cross_attention, False)
    require(where, "quantization_config", found.quantization_config, None)
    return _checked(
        where,
        vocab_size=found.vocab_size,
        hidden_size=found.n_embd,
        intermediate_size=found.n_inner or 4 * found.n_embd,
        num_layers=found.n_layer,
        num_heads=found.n_head,
        context_length=found.n_positions,
        eps=found.layer_norm_epsilon,
        tied_head=found.tie_word_embeddings,
    )


def read_gguf(file: GGUFFile) -> GPT2Config:
    """Read the config from a GGUF file's metadata; the vocabulary's size is the embedding's."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileDamaged(f"{file.path}: tensor token_embd.weight is missing")
    return _checked(
        str(file.path),
        vocab_size=embedding.shape[0],
        hidden_size=file.value("gpt2.embedding_length", int),
        intermediate_size=file.value("gpt2.feed_forward_length", int),
        num_layers=file.value("gpt2.block_count", int),
        num_heads=file.value("gpt2.attention.head_count", int),
        context_length=file.value("gpt2.context_length", int),
        eps=file.value("gpt2.attention.layer_norm_epsilon", float),
        tied_head="output.weight" not in file.tensors,
    )


def _checked(where: str, **values: Any) -> GPT2Config:
    config = checked(where, GPT2Config, values)
    if config.hidden_size % config.num_heads:
        raise ModelFileDamaged(f"{where}: {config.hidden_size} numbers can't be cut into {config.num_heads} heads")
    return config


def parameters(config: GPT2Config) -> list[Parameter]:
    """List the parameters of a model of this config."""
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    head = Parameter(HEAD, "output.weight", (vocab, hidden), tied_to=EMBEDDING if config.tied_head else None)
    found = [
        head,
        _parameter("wte.weight", "token_embd.weight", (vocab, hidden)),
        _parameter("wpe.weight", "position_embd.weight", (config.context_length, hidden)),
        *_norm("ln_f", "output_norm", hidden),
    ]
    for index in range(config.num_layers):
        ours, ggufs = f"h.{index}", f"blk.{index}"
        found += _norm(f"{ours}.ln_1", f"{ggufs}.attn_norm", hidden)
        found += _linear(f"{ours}.attn.c_attn", f"{ggufs}.attn_qkv", hidden, 3 * hidden)
        found += _linear(f"{ours}.attn.c_proj", f"{ggufs}.attn_output", hidden, hidden)
        found += _norm(f"{ours}.ln_2", f"{ggufs}.ffn_norm", hidden)
        found += _linear(f"{ours}.mlp.c_fc", f"{ggufs}.ffn_up", hidden, inner)
        found += _linear(f"{ours}.mlp.c_proj", f"{ggufs}.ffn_down", inner, hidden)
    return found


def _parameter(name: str, gguf_name: str, shape: tuple[int, ...], *, transposed: bool = False) -> Parameter:
    return Parameter(PREFIX + name, gguf_name, shape, other_name=name, is_transposed_in_folders=transposed)


def _norm(name: str, gguf_name: str, size: int) -> list[Parameter]:
    return [_parameter(f"{name}.{part}", f"{gguf_name}.{part}", (size,)) for part in ("weight", "bias")]


def _linear(name: str, gguf_name: str, inputs: int, outputs: int) -> list[Parameter]:
    weight = _parameter(f"{name}.weight", f"{gguf_name}.weight", (outputs, inputs), transposed=True)
    return [weight, _parameter(f"{name}.bias", f"{gguf_name}.bias", (outputs,))]


def build(config: GPT2Config, weights: "dict[str, Tensor]", ops: "Ops", max_positions: int) -> "GPT2":
    """Build the model in torch."""
    from headrace.runners.models.gpt2_model import GPT2

    return GPT2(config, weights, ops, max_positions)


FAMILY = Family("gpt2", read_gguf, read_folder, parameters, build, ("*.attn.bias", "*.attn.masked_bias"))
