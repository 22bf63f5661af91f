"""Text in, text out: prompts of every length, ends of text, weights from a checkpoint."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from spark_dist.checkpoints import CheckpointStore
from spark_dist.config import RunConfig
from spark_dist.decoding import Generator, continue_text
from spark_dist.decoding.generator import PROMPT_MULTIPLE
from spark_dist.errors import UserError
from spark_dist.pipelines import load_tokenizer
from spark_dist.run_directory import RunDirectory

# With the end-of-text token that opens a document: one below, exactly, and one above a multiple.
PROMPTS = ["", "To be", "x" * (PROMPT_MULTIPLE - 2), "y" * (PROMPT_MULTIPLE - 1), "Zoë"]


@pytest.fixture(scope="module")
def run(model, weights):
    def continued(prompts, params=None, **settings):
        settings = {"max_tokens": 10, "temperature": 0.0, "seed": 0} | settings
        return continue_text(
            model,
            params or weights["params"],
            weights["ffn_offset"],
            load_tokenizer("byte"),
            prompts,
            **settings,
        )

    return continued


def test_a_batch_equals_one_prompt_at_a_time(run):
    together = run(PROMPTS)
    assert [g.prompt for g in together] == PROMPTS
    assert [run([prompt])[0] for prompt in PROMPTS] == together
    for found in together:
        assert len(set(found.tokens)) > 2  # no mere repetition
        assert found.text == load_tokenizer("byte").decode(found.tokens)


def test_the_end_of_text_is_not_part_of_the_text(run, weights):
    """Weights that answer end of text with end of text, and anything else with byte 0."""
    params = jax.tree.map(jnp.zeros_like, weights["params"])
    table = params["embedding"]["table"].at[load_tokenizer("byte").eos_id].set(1.0)
    answers = run(["", "a", "b", "c", PROMPTS[3]], params | {"embedding": {"table": table}})
    ended, endless = answers[:2]
    assert (ended.text, ended.tokens) == ("", ())
    assert (endless.text, endless.tokens) == ("\0" * 10, (0,) * 10)


@pytest.fixture(scope="module")
def saved(model, weights, tmp_path_factory) -> RunDirectory:
    """A run with step 3 committed, as training saves it."""
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    config = RunConfig(model=model)
    directory.write_config(config)
    store = CheckpointStore(directory, keep=1)
    store.save(3, weights | {"step": jnp.int32(3)}, cursor={}, config=config)
    store.wait()
    store.close()
    return directory


def test_generator_takes_weights_from_a_checkpoint(run, saved):
    generator = Generator(saved.root)
    assert generator.step == 3
    expected = run(PROMPTS)
    assert generator.generate(PROMPTS, max_tokens=10) == expected
    assert generator.generate("To be", max_tokens=10) == [expected[1]]
    assert generator.generate([]) == []
    warm = generator.generate("To be", max_tokens=10, temperature=1.0, seed=4)
    assert warm == run(["To be"], temperature=1.0, seed=4)
    assert Generator(saved.checkpoints / "3").generate("To be", max_tokens=10) == [expected[1]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"temperature": -1.0}, "temperature=-1.0 must be 0"),
        ({"temperature": float("nan")}, "temperature=nan must be 0"),
        ({"temperature": float("inf")}, "temperature=inf must be 0"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"seed": 2**64}, "seed=18446744073709551616 must be"),
    ],
)
def test_bad_settings_are_refused(saved, settings, words):
    with pytest.raises(UserError, match=words):
        Generator(saved.root).generate("a", **settings)


def test_a_prompt_that_is_not_unicode_is_refused(saved):
    with pytest.raises(UserError, match=r"prompts\[1\]: a lone surrogate '\\udcff' at character 2"):
        Generator(saved.root).generate(["fine", "ab\udcff"])


def test_no_checkpoint_is_a_user_error(tmp_path, saved):
    with pytest.raises(UserError, match="no committed checkpoint"):
        Generator(tmp_path)
    with pytest.raises(UserError, match=r"step=4: not among the committed steps \[3\]"):
        Generator(saved.root, step=4)
