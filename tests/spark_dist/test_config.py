"""Configuration: refused values name field, value and fix; what may change at a resume."""

from __future__ import annotations

import pickle

import pytest

from spark_dist.config import MeshConfig, ModelConfig, OptimizerConfig, RunConfig, TrainerConfig
from spark_dist.errors import UserError
from spark_dist.preset_table import presets
from spark_dist.run_directory import check_resume


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrainerConfig(steps=-5), ["trainer.steps=-5", "greater than 0"]),
        (lambda: ModelConfig(ffn_k=9999), ["model.ffn_k=9999", "model.d_ff=648", "lower"]),
        (lambda: ModelConfig(num_kv_heads=3), ["model.num_kv_heads=3", "model.num_heads=4"]),
        (lambda: ModelConfig(head_dim=41), ["model.head_dim=41", "even"]),
        (lambda: ModelConfig(ffn_predictor_dim=160), ["model.ffn_predictor_dim=160", "d_model"]),
        (lambda: ModelConfig(attention_predictor_dim=40), ["model.attention_predictor_dim=40"]),
        (lambda: ModelConfig(attention_pattern=()), ["model.attention_pattern", "empty"]),
        (lambda: ModelConfig(d_modle=3), ["model.d_modle"]),
        (lambda: OptimizerConfig(learning_rate=float("nan")), ["optimizer.learning_rate=nan"]),
        (lambda: RunConfig(profile="30:20"), ["profile=30:20", "FIRST:LAST"]),
        (lambda: MeshConfig(data=-1, fsdp=-1), ["more than one -1"]),
        (lambda: MeshConfig(tensor=0), ["mesh.tensor=0"]),
        (
            lambda: RunConfig(launcher="ray", hosts=5),
            ["trainer.global_batch_size=12", "hosts=5", "10 or 15"],
        ),
        (lambda: RunConfig(hosts=2), ["hosts=2", "--launcher ray"]),
        (lambda: RunConfig(model={"d_ff": -1}), ["model.d_ff=-1"]),
    ],
)
def test_refused_in_one_line(make, words):
    with pytest.raises(UserError) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_round_trips_through_json_and_pickle():
    for config in presets().values():
        resolved = config.resolved()
        assert RunConfig.model_validate_json(resolved.model_dump_json()) == resolved
        assert pickle.loads(pickle.dumps(resolved)) == resolved


def test_resolved_fixes_the_schedule_and_the_folder():
    config = presets()["tiny"].resolved()
    assert config.optimizer.schedule_steps == config.trainer.steps == 530
    assert config.run_dir == "runs/tiny"


def change(config: RunConfig, section: str, **values) -> RunConfig:
    part = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: part})


def test_resume_keeps_the_schedule_of_the_first_start():
    saved = presets()["tiny"].resolved()
    wanted = change(change(saved, "trainer", steps=900), "optimizer", schedule_steps=None)
    assert check_resume(saved, wanted).optimizer.schedule_steps == 530
    asked = change(wanted, "optimizer", schedule_steps=900)
    assert check_resume(saved, asked).optimizer.schedule_steps == 900


@pytest.mark.parametrize(
    ("section", "values", "name"),
    [
        ("model", {"d_ff": 700}, "model.d_ff=700 (saved 648)"),
        ("data", {"seed": 3}, "data.seed=3 (saved 0)"),
        ("trainer", {"global_batch_size": 24}, "trainer.global_batch_size=24 (saved 12)"),
        ("optimizer", {"learning_rate": 1.0}, "optimizer.learning_rate=1.0 (saved 0.004)"),
    ],
)
def test_resume_refuses_what_changes_the_result(section, values, name):
    saved = presets()["tiny"].resolved()
    with pytest.raises(UserError, match="--resume") as caught:
        check_resume(saved, change(saved, section, **values))
    assert name in str(caught.value)


def test_resume_allows_what_does_not():
    saved = presets()["tiny"].resolved()
    wanted = change(change(saved, "trainer", log_every=1, checkpoint_every=7), "mesh", data=1)
    wanted = wanted.model_copy(update={"launcher": "ray", "hosts": 4})
    assert check_resume(saved, wanted).hosts == 4
