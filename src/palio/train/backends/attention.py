"""Our causal attention behind transformers' name `palio`: the same sums in less time.

One AVX512-BF16 core, SmolLM2's heads, 3,000 positions, bfloat16, forward and backward: 306 ms, with
torch's own kernel 485 ms. The probabilities are kept for the backward pass: 80 MB a layer there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from palio.train.kernels import causal_attention

NAME = "palio"


def register_attention() -> None:
    """Make `attention = "palio"` known to transformers; harmless when done twice."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    AttentionInterface.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers asks for it: (B, heads, T, d) in, (B, T, heads, d) out.

    Whole unpadded conversations take our kernel, everything else torch's.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    whole = attention_mask is None and query.shape[2] == key.shape[2]
    scaling = settings.get("scaling") or query.shape[-1] ** -0.5
    if whole and not settings.get("dropout") and scaling == query.shape[-1] ** -0.5:
        mixed = causal_attention(*(part.transpose(1, 2) for part in (query, key, value)))
        return mixed.view(*mixed.shape[:2], query.shape[1], -1), None
    done: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **settings
    )
    return done
