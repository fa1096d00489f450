"""What a setting of a stage decides, `extra` cannot say otherwise without anybody noticing."""

from __future__ import annotations

from palio.records import ConfigError
from palio.train.settings import TrlSettings

_WHOLE = "the stage, which samples from the whole distribution,"
_OWN = {name: f"`{name}` of [stage.trl]" for name in TrlSettings.__struct_fields__}
_SAMPLED = dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty"), _WHOLE)
"""What TRL would tell its own generation, which no stage uses."""
_SERVER = (
    "use_vllm",
    "vllm_mode",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
)
OWNED: dict[str, dict[str, str]] = {
    "kto": {
        **_OWN,
        **dict.fromkeys(("loss_type", "disable_dropout"), "what KTO is"),
        **dict.fromkeys(("desirable_weight", "undesirable_weight"), "the share of right rollouts"),
        "beta": "`beta`",
        "max_length": "`longest`",
    },
    "grpo": {
        **_OWN,
        **_SAMPLED,
        **dict.fromkeys(("loss_type", "scale_rewards", "beta"), "what Dr. GRPO is"),
        **dict.fromkeys(("disable_dropout", "shuffle_dataset"), "what the stage is"),
        **dict.fromkeys(("num_generations", "num_generations_eval"), "`group`"),
        **dict.fromkeys(("generation_batch_size", "steps_per_generation"), "`group` * `groups`"),
        **dict.fromkeys(_SERVER, "`base_url`"),
        "max_completion_length": "`longest`",
        "temperature": "`temperature`",
    },
    "distill": {
        **_OWN,
        **_SAMPLED,
        **dict.fromkeys(_SERVER, "the student, which samples itself,"),
        "beta": "`divergence`",
        "disable_dropout": "what the stage is",
        "max_completion_length": "`longest`",
        "temperature": "`temperature`",
        "teacher_model_name_or_path": "`teacher`",
    },
}
"""Kind of stage -> field of TRL's configuration -> what decides it."""


def check_extra(trl: TrlSettings, kind: str) -> None:
    """`extra` of a stage names nothing that is decided already.

    Raises:
        ConfigError: it does; names the field and what decides it.
    """
    for name in trl.extra:
        decides = OWNED[kind].get(name)
        if decides is not None:
            raise ConfigError(
                f"`extra` of a {kind} stage cannot set {name!r}: {decides} decides it",
                remedy="take it out of `extra` in [stage.trl]",
            )
