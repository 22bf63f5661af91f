"""Bad input: one line that names field, value and fix, the right exit code, nothing written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spine

from spark_dist.config import ModelConfig
from spark_dist.run_directory import WEIGHTS, RunDirectory, check_weights

Call = Callable[..., Any]


@pytest.fixture
def train(call: Call, corpus_file: Path, tmp_path: Path) -> Call:
    """train(options): expects a refusal, and that no run directory came to be."""

    def run(*args: str | Path, corpus: str | Path = corpus_file) -> Any:
        said = call(
            "train", *spine.SMALL, "--data.corpus", corpus, "--run-dir", tmp_path / "run", *args
        )
        assert said.out == ""
        assert not (tmp_path / "run").exists()
        return said

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps, its corpus `words.txt` beside it; copied by those who write."""
    folder = tmp_path_factory.mktemp("made")
    corpus = spine.write_corpus(folder / "words.txt")
    done = spine.command(
        "train", *spine.SMALL, "--data.corpus", corpus, "--run-dir", folder / "run",
        "--trainer.steps", "2", "--logging.trackers",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_unknown_command(call):
    call("tarin").refused("unknown command 'tarin'", "train, evaluate")


def test_no_command_prints_the_usage(call):
    said = call()
    assert (said.code, said.err) == (2, "")
    assert "usage: spark-dist" in said.out


def test_interrupted(call, monkeypatch):
    def interrupt(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spark_dist.cli.train.plan", interrupt)
    call("train").refused("interrupted", code=1)


def test_unknown_option(train):
    train("--trainer.stepz", "3").refused("unknown option", "--trainer.stepz", "--trainer.steps?")


def test_unknown_preset(call):
    call("train", "tini").refused("unknown preset 'tini'", "tiny, tiny-dense")


@pytest.mark.parametrize("field", ["trainer.steps", "model.d-ff", "trainer.global-batch-size"])
def test_negative_size(train, field):
    train(f"--{field}", "-3").refused(f"{field.replace('-', '_')}=-3", "greater than 0")


def test_k_above_the_width(train):
    train("--model.ffn-k", "97").refused("model.ffn_k=97", "model.d_ff=96", "lower ffn_k")


def test_not_a_number(train):
    train("--trainer.steps", "many").refused("--trainer.steps", "'many'", "--help")


def test_learning_rate_that_is_no_number(train):
    train("--optimizer.learning-rate", "nan").refused("optimizer.learning_rate=nan")


def test_sequence_longer_than_the_corpus(train):
    train("--data.sequence-length", "99999").refused("data.sequence_length=99999", "use at most")


def test_batch_not_divisible_by_hosts(train):
    said = train("--trainer.global-batch-size", "9", "--launcher", "ray", "--hosts", "2")
    said.refused("trainer.global_batch_size=9", "hosts=2", "use 8 or 10")


def test_hosts_without_ray(train):
    train("--hosts", "2").refused("hosts=2", "--launcher ray")


def test_batch_not_divisible_by_devices(train):
    said = train("--devices-per-host", "3")
    said.refused("trainer.global_batch_size=8", "the 3 devices", "use 6 or 9")


def test_batch_not_divisible_by_micro_batches(train):
    said = train("--trainer.grad-accumulation", "3")
    said.refused("trainer.global_batch_size=8", "grad_accumulation=3", "use 6 or 9")


def test_mesh_that_does_not_fit(train):
    said = train("--mesh.data", "2", "--mesh.fsdp", "2")
    said.refused("mesh.data=2 mesh.fsdp=2", "1 hosts x 1 devices", "--devices-per-host")


def test_tensor_axis_over_hosts(train):
    said = train("--launcher", "ray", "--hosts", "2", "--mesh.tensor", "2")
    said.refused("mesh.tensor=2", "1 devices of a host", "--devices-per-host")


@pytest.mark.parametrize("steps", ["30:20", "0:3", "5:531"])
def test_profile_out_of_range(train, steps):
    train("--profile", steps).refused(f"profile={steps}", "FIRST:LAST")


def test_profile_that_is_no_range(train):
    train("--profile", "twenty").refused("profile='twenty'")


def test_tracker_that_is_not_installed(train, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    train("--logging.trackers", "wandb").refused("logging.trackers=wandb", "pip install")


# -- data ------------------------------------------------------------------------------------


def test_missing_data_file(train, tmp_path):
    train(corpus=tmp_path / "none.txt").refused("data.corpus=", "none.txt", "does not exist")


def test_empty_data_file(train, tmp_path):
    (tmp_path / "empty.txt").touch()
    train(corpus=tmp_path / "empty.txt").refused("empty.txt", "empty file", "remove it")


def test_data_file_that_is_not_utf8(train, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    train(corpus=tmp_path / "latin.txt").refused("latin.txt", "not UTF-8 at byte 3", "convert")


def test_tokenizer_larger_than_the_model(train):
    train("--model.vocab-size", "100").refused("model.vocab_size=100", "--model.vocab-size 259")


def test_missing_tokenizer(train, tmp_path):
    train("--data.tokenizer", tmp_path / "no.model").refused("data.tokenizer=", "no.model")


# -- the run directory -----------------------------------------------------------------------


def test_run_directory_that_is_not_empty(call, corpus_file, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    before = spine.tree_of(tmp_path)
    said = call("train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", tmp_path)
    said.refused(f"run_dir={tmp_path}", "not empty", "--resume", "--run-dir")
    assert spine.tree_of(tmp_path) == before


def test_run_directory_below_a_file(call, corpus_file, tmp_path):
    (tmp_path / "file").write_text("mine")
    said = call(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", tmp_path / "file" / "run"
    )
    said.refused("run_dir=", f"{tmp_path / 'file'} is a file", "name another --run-dir")
    assert (tmp_path / "file").read_text() == "mine"


def test_run_directory_that_cannot_be_written(call, corpus_file, tmp_path, monkeypatch):
    if os.geteuid() == 0:  # to root every folder is writable
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    else:
        tmp_path.chmod(0o500)
    said = call("train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", tmp_path / "run")
    said.refused("run_dir=", f"{tmp_path} is not writable", "name another --run-dir")
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_beside_the_devices_leaves_nothing(call, corpus_file, tmp_path, monkeypatch):
    """What only the hosts can see is refused by them, and cleared away by the launch."""
    monkeypatch.setattr("spark_dist.launch.check_mesh", lambda config: None)
    said = call(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", tmp_path / "run",
        "--mesh.data", "2", "--mesh.fsdp", "2", "--json",
    )  # fmt: skip
    said.refused("mesh.data=2 mesh.fsdp=2", "there are 1", "-1")
    assert json.loads(said.out)["exit"] == 2
    assert not (tmp_path / "run").exists()


def test_no_cluster_at_the_address(call, corpus_file, tmp_path):
    said = call(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", tmp_path / "run",
        "--launcher", "ray", "--address", "127.0.0.1:1",
    )  # fmt: skip
    said.refused("address=127.0.0.1:1", "nothing answers", "start Ray", code=1)
    assert not (tmp_path / "run").exists()


# -- --resume and --init-from ----------------------------------------------------------------


def test_resume_of_nothing(call, tmp_path):
    said = call("train", "--resume", "--run-dir", tmp_path / "none")
    said.refused("run_dir=", "none", "config.json", "spark-dist train")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.d-ff", "128"], ["model.d_ff=128 (saved 96)", "--init-from"]),
        (["--data.seed", "7"], ["data.seed=7 (saved 0)"]),
        (["--optimizer.learning-rate", "1"], ["optimizer.learning_rate=1.0 (saved 0.01)"]),
        (["--trainer.seed", "7"], ["trainer.seed=7 (saved 0)"]),
        (["--init-from", "runs/x"], ["init_from=", "runs/x", "(saved None)"]),
    ],
)
def test_resume_with_other_settings(call, made, options, words):
    before = spine.tree_of(made)
    said = call("train", "--resume", "--run-dir", made, "--trainer.steps", "4", *options)
    said.refused("--resume with other settings", *words)
    assert spine.tree_of(made) == before


def test_resume_with_another_preset(call, made):
    said = call("train", "small", "--resume", "--run-dir", made)
    said.refused("'tiny', not 'small'", "leave the preset out")


def test_resume_with_other_bytes_in_the_corpus(call, made, tmp_path):
    """The path is the same; the digest in the saved cursor tells."""
    shutil.copytree(made.parent, tmp_path / "copy")
    corpus = tmp_path / "copy" / "words.txt"
    config = tmp_path / "copy" / "run" / "config.json"
    config.write_text(config.read_text().replace(str(made.parent), str(corpus.parent)))
    corpus.write_text(corpus.read_text().replace("king", "ring"))
    before = spine.tree_of(tmp_path)
    said = call("train", "--resume", "--run-dir", config.parent, "--trainer.steps", "4")
    said.refused("data.corpus digest (saved ", "now ", "start a new run")
    assert spine.tree_of(tmp_path) == before


def test_resume_without_the_corpus(call, made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace("words.txt", "gone.txt"))
    said = call("train", "--resume", "--run-dir", tmp_path / "run", "--trainer.steps", "4")
    said.refused("gone.txt", "does not exist")


def test_resume_of_an_unreadable_configuration(call, tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"d_ff": -1}}')
    call("train", "--resume", "--run-dir", tmp_path).refused("config.json", "model.d_ff=-1")


def test_resume_of_another_format(call, made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "2" / "json" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    said = call("train", "--resume", "--run-dir", tmp_path / "run", "--trainer.steps", "4")
    said.refused("step=2", "format_version=99", "reads 1")


def test_weights_of_something_that_is_no_run(train, tmp_path):
    train("--init-from", tmp_path).refused(f"{tmp_path}", "no committed checkpoint")
    train("--init-from", tmp_path / "none").refused("none", "no such folder")


def test_weights_of_another_geometry(train, made):
    said = train("--init-from", made, "--model.d-ff", "128")
    said.refused("init_from=", "model.d_ff=128 (there 96)", "model options")


def test_every_field_that_shapes_the_weights_is_compared(made):
    """Against the shapes themselves: another shape is refused, the same shape is not."""
    import jax

    from spark_dist.model import parameter_shapes

    saved = RunDirectory(made).saved_config().model
    other = {
        "vocab_size": 300, "num_layers": 3, "d_model": 64, "num_heads": 4, "num_kv_heads": 1,
        "head_dim": 20, "d_ff": 128, "ffn": "gated", "ffn_predictor_dim": 8, "ffn_k": 9,
        "ffn_threshold": "gaussian", "ffn_selection": "top_k", "attention": "full",
        "attention_predictor_dim": 4, "attention_k": 9, "local_window": 9,
        "attention_pattern": ("global",), "attention_soft_cap": None, "final_soft_cap": None,
        "rope_base": 99.0, "query_scale": 1.0, "norm_eps": 1e-3,
    }  # fmt: skip
    assert set(other) == set(ModelConfig.model_fields)
    assert set(WEIGHTS) < set(other)
    for name, value in other.items():
        model = ModelConfig(**{**saved.model_dump(), name: value})
        same = jax.tree.map(lambda x: x.shape, parameter_shapes(model)) == jax.tree.map(
            lambda x: x.shape, parameter_shapes(saved)
        )
        if same:
            check_weights(made, model)
            continue
        with pytest.raises(Exception, match=rf"model\.{name}="):
            check_weights(made, model)


# -- the other commands ----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_checkpoint_that_is_not_there(call, made, tmp_path, command):
    call(command, tmp_path / "none").refused("none", "no such folder")
    call(command, tmp_path).refused("no committed checkpoint")
    call(command, made, "--step", "7").refused("step=7", "[2]")
    call(command, made / "checkpoints" / "2", "--step", "1").refused("step=1", "is step 2")
    call(command).refused("--help")


def test_evaluation_files_that_are_not_there(call, made):
    call("evaluate", made, "--validation", "none.txt").refused("none.txt", "does not exist")


def test_generate_with_settings_that_make_no_sense(call, made):
    call("generate", made, "--temperature", "-1").refused("temperature=-1.0", "0 (greedy)")
    call("generate", made, "--max-tokens", "0").refused("max_tokens=0")


def test_report_of_nothing(call, tmp_path):
    call("report", tmp_path).refused("config.json", "spark-dist train")


@pytest.mark.parametrize("command", ["data", "bench"])
def test_unknown_action(call, command):
    call(command, "prepair").refused("'prepair'", "choose from")


def test_the_process_says_it_too(tmp_path):
    """Across the process boundary: standard error, standard output, exit code."""
    done = spine.command("train", "--model.ffn-k", "700", "--run-dir", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("spark-dist: error: model.ffn_k=700")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
