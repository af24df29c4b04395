"""A BERT encoder with mean pooling, as plain torch operations on the weights of a sentence-transformers folder.

Why not the library: the vectors are the same to 1e-7, but sentence-transformers takes 6 to 10 s to import (this: what
torch takes, about 1.5 s) and a core encodes 16 passages a second here against 8 to 10 there (no padding to long
neighbours, no autograd, one thread per batch). Other architectures go through the library, see ``assay.index.embed``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_plain_bert(folder: Path) -> bool:
    """Whether the folder holds what this module computes: BERT, absolute positions, GELU, mean pooling, normalised."""
    try:
        config = json.loads((folder / "config.json").read_text())
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
        modules = [m["type"].rsplit(".", 1)[-1] for m in json.loads((folder / "modules.json").read_text())]
    except (OSError, ValueError, KeyError):
        return False
    modes = {mode for mode, on in pooling.items() if mode.startswith("pooling_mode_") and on is True}
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and modes == {"pooling_mode_mean_tokens"}
        and modules == ["Transformer", "Pooling", "Normalize"]
        and (folder / "model.safetensors").is_file()
        and (folder / "tokenizer.json").is_file()
    )


class Bert:
    """Token ids in, unit vectors out. Safe to call from several threads: the weights are only read."""

    def __init__(self, folder: Path, device: str) -> None:
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        self.dim: int = config["hidden_size"]
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self._eps: float = config["layer_norm_eps"]
        self._device = device
        weights = load_file(folder / "model.safetensors", device=device)
        self._w: dict[str, Any] = {name.removeprefix("bert."): tensor.float() for name, tensor in weights.items()}

    def encode(self, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(ids), dim). Shorter rows are padded and masked."""
        import torch

        longest = max(map(len, ids))
        tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids], device=self._device)
        lengths = torch.tensor([len(row) for row in ids], device=self._device)
        real = torch.arange(longest, device=self._device)[None, :] < lengths[:, None]
        with torch.inference_mode():
            hidden = self._forward(tokens, real)
            mask = real.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            vectors: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return vectors

    def _forward(self, tokens: Any, real: Any) -> Any:
        from torch.nn import functional as f

        rows, length = tokens.shape
        attended = None if bool(real.all()) else real[:, None, None, :]
        x = self._embed(tokens)
        for layer in range(self._layers):
            name = f"encoder.layer.{layer}."
            q, k, v = (
                self._linear(x, f"{name}attention.self.{part}").view(rows, length, self._heads, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=attended).transpose(1, 2).reshape(x.shape)
            x = self._norm(
                self._linear(mixed, f"{name}attention.output.dense") + x, f"{name}attention.output.LayerNorm"
            )
            wide = f.gelu(self._linear(x, f"{name}intermediate.dense"))
            x = self._norm(self._linear(wide, f"{name}output.dense") + x, f"{name}output.LayerNorm")
        return x

    def _embed(self, tokens: Any) -> Any:
        w = self._w
        words = w["embeddings.word_embeddings.weight"][tokens]
        places = w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        return self._norm(words + places + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")

    def _linear(self, x: Any, name: str) -> Any:
        from torch.nn import functional as f

        return f.linear(x, self._w[name + ".weight"], self._w[name + ".bias"])

    def _norm(self, x: Any, name: str) -> Any:
        from torch.nn import functional as f

        return f.layer_norm(x, (self.dim,), self._w[name + ".weight"], self._w[name + ".bias"], self._eps)
