"""What a setting of a stage decides, `extra` cannot say otherwise without anybody noticing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from palio.records import ConfigError

_RUN = {
    "output_dir": "the folder of the stage",
    "seed": "`seed` of the stage",
    "data_seed": "`seed` of the stage",
    "warmup_steps": "`warmup_ratio` of [stage.trl]",
    **dict.fromkeys(("save_strategy", "save_only_model"), "`save_steps` of [stage.trl]"),
    "logging_strategy": "`logging_steps` of [stage.trl]",
    "logging_nan_inf_filter": "the run, which ends at a loss that is no number,",
    "load_best_model_at_end": "the run, which keeps its last update,",
}
_WHOLE = "the stage, which samples from the whole distribution,"
_SAMPLED = dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty"), _WHOLE)
"""What TRL would tell its own generation, which no stage uses."""
_ADAPTIVE = (
    "use_adaptive_entropy",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
)
"""A coefficient that moves begins anew after a kill: TRL keeps it in no state."""
_SERVER = (
    "use_vllm",
    "vllm_mode",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
)
OWNED: dict[str, dict[str, str]] = {
    "sft": {
        **_RUN,
        **dict.fromkeys(("assistant_only_loss", "completion_only_loss"), "the mask of the rows"),
        "dataset_kwargs": "`packing` of [stage.trl]",
        "include_num_input_tokens_seen": "the run, which counts tokens,",
        "max_length": "`longest` of [data]",
    },
    "kto": {
        **_RUN,
        **dict.fromkeys(("loss_type", "disable_dropout"), "what KTO is"),
        **dict.fromkeys(("desirable_weight", "undesirable_weight"), "the share of right rollouts"),
        "beta": "`beta`",
        "max_length": "`longest`",
    },
    "grpo": {
        **_RUN,
        **_SAMPLED,
        **dict.fromkeys(("loss_type", "scale_rewards", "beta"), "what Dr. GRPO is"),
        **dict.fromkeys(("disable_dropout", "shuffle_dataset"), "what the stage is"),
        **dict.fromkeys(_ADAPTIVE, "the run, which is the same after a kill,"),
        **dict.fromkeys(("num_generations", "num_generations_eval"), "`group`"),
        **dict.fromkeys(("generation_batch_size", "steps_per_generation"), "`group` * `groups`"),
        **dict.fromkeys(_SERVER, "`base_url`"),
        "max_completion_length": "`longest`",
        "temperature": "`temperature`",
    },
    "distill": {
        **_RUN,
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


def check_extra(extra: Mapping[str, object], kind: str, settings: Collection[str]) -> None:
    """`extra` of a stage names nothing that is decided already.

    Args:
        extra: fields of TRL's configuration class.
        kind: key of `OWNED`.
        settings: names of [stage.trl].

    Raises:
        ConfigError: it does; names the field and what decides it.
    """
    for name in extra:
        decides = f"`{name}` of [stage.trl]" if name in settings else OWNED[kind].get(name)
        if decides is not None:
            raise ConfigError(
                f"`extra` of a {kind} stage cannot set {name!r}: {decides} decides it",
                remedy="take it out of `extra` in [stage.trl]",
            )
