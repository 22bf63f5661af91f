"""Golden values of `transformers`' Gemma 2 and of Gemma 3n's MLP, for tests/spark_dist/model.

Needs the extra `interop` (torch for CPU and transformers). From the checkout's root:

    python benchmarks/make_golden.py tests/golden

writes gemma2.npz (a random model of three layers: weights, tokens, logits) and gemma3n_mlp.npz (one
MLP of activation sparsity 0.95), both float32 and made with fixed seeds; 85 and 17 KB. Nothing is
downloaded. `python -m pytest -m interop tests/spark_dist/model` compares with the installed
version instead.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

# Every size differs from its neighbours', the window is shorter than the rows, the soft caps bite,
# and the queries' scale is not head_dim ** -0.5: a mistake in any of them shows in the logits.
GEMMA2 = {
    "vocab_size": 61,
    "num_hidden_layers": 3,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "sliding_window": 5,
    "query_pre_attn_scalar": 5,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GEMMA3N = {"hidden_size": 16, "intermediate_size": 80, "sparsity": 0.95}


def gemma2(seed: int) -> dict[str, np.ndarray]:
    """A random Gemma 2 on two rows of 20 tokens: `weights/NAME`, `tokens`, `logits`, `config`."""
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(seed)
    # The soft cap on attention exists in the eager implementation alone.
    model = Gemma2ForCausalLM(Gemma2Config(**GEMMA2, attn_implementation="eager")).eval()
    for name, parameter in model.named_parameters():
        scale = 0.3 if "norm" in name else parameter.shape[-1] ** -0.5
        torch.nn.init.normal_(parameter, std=scale)
    tokens = torch.randint(0, GEMMA2["vocab_size"], (2, 20))
    with torch.no_grad():
        logits = model(tokens).logits
    weights = {f"weights/{k}": v.detach().numpy() for k, v in model.named_parameters()}
    return weights | {
        "tokens": tokens.numpy().astype(np.int32),
        "logits": logits.numpy(),
        "config": np.array(json.dumps(GEMMA2)),
    }


def gemma3n_mlp(seed: int) -> dict[str, np.ndarray]:
    """A random sparse MLP of Gemma 3n on 12 inputs: `gate, up, down` [out, in], `x`, `y`."""
    import torch
    from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextMLP

    torch.manual_seed(seed)
    size, width = GEMMA3N["hidden_size"], GEMMA3N["intermediate_size"]
    config = Gemma3nTextConfig(
        hidden_size=size,
        intermediate_size=[width],
        activation_sparsity_pattern=[GEMMA3N["sparsity"]],
        num_hidden_layers=1,
    )
    mlp = Gemma3nTextMLP(config, layer_idx=0).eval()
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(12, size)
    with torch.no_grad():
        y = mlp(x)
    out = {"gate": mlp.gate_proj.weight, "up": mlp.up_proj.weight, "down": mlp.down_proj.weight}
    return {k: v.detach().numpy() for k, v in out.items()} | {"x": x.numpy(), "y": y.numpy()}


def main() -> None:
    """Writes both files into the folder named on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python benchmarks/make_golden.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in (("gemma2", gemma2(0)), ("gemma3n_mlp", gemma3n_mlp(0))):
        path = folder / f"{name}.npz"
        np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]
        print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
