"""Random-weight Qwen3 models for a laptop: nothing is downloaded, and the answers still differ.

A model with the usual initialiser repeats one token for ever, and then "prefill/decode gives the
same output as one engine" proves nothing. These weights are so wide, and the attention so sharp,
that each token of an answer depends on its whole prompt. One token is one byte, and only printable
ASCII can win, so that text round-trips.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

CONTENT_VERSION: Final = 2
"""Part of the directory's name: raise it when the files of a model would change."""
DTYPE: Final = "float32"
_SEED: Final = 20_240_901
_SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QK_NORMS: Final = ("q_norm.weight", "k_norm.weight")
_PRINTABLE: Final = range(0x20, 0x7F)
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a Qwen3 model is ours to choose."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    initializer_range: float = 0.4
    qk_norm: float = 2.0
    """Weight of the norms before attention: at 1 it averages, and answers soon go in circles."""
    context: int = 4096

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache a token needs."""
        return self.layers * self.kv_heads * self.head_dim * 2 * 4


MODELS: Final = {
    "small": Shape(2, 128, 256, 4, 2, 64),
    "large-kv": Shape(16, 128, 128, 8, 8, 128),
}
"""`small` is for correctness; `large-kv` has 128 KiB a token, so that transfers can be seen.

Both want `DTYPE`: many CPUs have no bfloat16 arithmetic and are ten times slower with it, and
greedy answers of two engines agree only as far as their rounding does. vLLM has to be told: by
itself it turns float32 models into half precision.
"""


def cache_dir() -> Path:
    """Where models and vLLM's own cache are kept between runs."""
    chosen = os.environ.get("PDTRACE_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "pdtrace"


def model_path(name: str) -> Path:
    """Directory of a demo model, written on first use."""
    if name not in MODELS:
        raise ValueError(f"no demo model {name!r}; there are {', '.join(MODELS)}")
    target = cache_dir() / "models" / f"{name}-v{CONTENT_VERSION}"
    if not target.is_dir():
        _write_whole(target, MODELS[name])
    return target


def _write_whole(target: Path, shape: Shape) -> None:
    """Write beside the target and rename, so that nobody ever sees half a model."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write_model(draft, shape)
        draft.chmod(0o755)
        try:
            draft.rename(target)
        except OSError:
            # Somebody else was faster and wrote the same bytes.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_model(directory: Path, shape: Shape) -> None:
    """Write configuration, tokenizer and weights of one model."""
    _write_json(directory / "config.json", _config(shape))
    _write_json(directory / "generation_config.json", {"eos_token_id": 256})
    _write_tokenizer(directory, shape)
    _write_weights(directory / "model.safetensors", shape)


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": DTYPE,
        "vocab_size": 256 + len(_SPECIAL_TOKENS),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "initializer_range": shape.initializer_range,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 256,
        "bos_token_id": None,
    }


def _write_tokenizer(directory: Path, shape: Shape) -> None:
    """Token id = byte value; the special tokens follow."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.context,
        "eos_token": _SPECIAL_TOKENS[0],
        "pad_token": _SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", settings)


def _byte_symbols() -> list[str]:
    """The visible character by which byte-level tokenizers write each byte (GPT-2's table)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]


def _write_weights(path: Path, shape: Shape) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(_SEED)
    weights = {}
    for name, dims in _tensors(shape):
        if len(dims) == 1:
            weights[name] = torch.full(dims, shape.qk_norm if name.endswith(_QK_NORMS) else 1.0)
        else:
            weights[name] = torch.randn(dims, generator=generator) * shape.initializer_range
    _silence_unprintable(weights["lm_head.weight"])
    save_file(weights, path, metadata={"format": "pt"})


def _silence_unprintable(head: "torch.Tensor") -> None:
    """A zero row has logit 0, and the best of 95 random ones is above that."""
    for token in range(head.shape[0]):
        if token not in _PRINTABLE:
            head[token] = 0


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and dimensions of every weight; those with one dimension are norms."""
    vocab = 256 + len(_SPECIAL_TOKENS)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (vocab, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj.weight", (q, shape.hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (kv, shape.hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (kv, shape.hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (shape.hidden, q)
        yield f"{prefix}.self_attn.q_norm.weight", (shape.head_dim,)
        yield f"{prefix}.self_attn.k_norm.weight", (shape.head_dim,)
        yield f"{prefix}.mlp.gate_proj.weight", (shape.intermediate, shape.hidden)
        yield f"{prefix}.mlp.up_proj.weight", (shape.intermediate, shape.hidden)
        yield f"{prefix}.mlp.down_proj.weight", (shape.hidden, shape.intermediate)
        yield f"{prefix}.input_layernorm.weight", (shape.hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (shape.hidden,)
    yield "model.norm.weight", (shape.hidden,)
    yield "lm_head.weight", (vocab, shape.hidden)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
