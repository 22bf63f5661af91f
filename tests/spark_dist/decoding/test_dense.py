"""Generation through the cache against the full forward pass; ends, draws and rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.decoding.dense import generate_tokens
from spark_dist.model import forward

WIDTH, NEW = 12, 8
NEVER = -1


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, size).tolist() for size in (WIDTH, 5, 1)]


@pytest.fixture(scope="module")
def generate(model, weights):
    """generate(prompts, eos_id=, temperature=, seed=, new=) -> list of token lists."""

    def run(prompts, *, eos_id=NEVER, temperature=0.0, seed=0, new=NEW):
        tokens = np.zeros((len(prompts), WIDTH), np.int32)
        real = np.zeros(tokens.shape, bool)
        for row, ids in enumerate(prompts):
            tokens[row, WIDTH - len(ids) :] = ids
            real[row, WIDTH - len(ids) :] = True
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(
            jnp.arange(len(prompts))
        )
        out = generate_tokens(
            weights["params"],
            weights["ffn_offset"],
            jnp.asarray(tokens),
            jnp.asarray(real),
            keys,
            jnp.float32(temperature),
            cfg=model,
            max_tokens=new,
            eos_id=eos_id,
        )
        assert out.shape == (len(prompts), new)
        return np.asarray(out).tolist()

    return run


def test_greedy_equals_the_likeliest_token_of_the_full_forward_pass(
    model, weights, prompts, generate
):
    generated = generate(prompts)
    length = WIDTH + NEW
    tokens, segments = np.zeros((3, length), np.int32), np.zeros((3, length), np.int32)
    for row, (prompt, new) in enumerate(zip(prompts, generated, strict=True)):
        text = prompt + new
        tokens[row, : len(text)], segments[row, : len(text)] = text, 1
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    run = jax.jit(lambda w, *rows: forward(w["params"], model, w["ffn_offset"], *rows)[0])
    best = np.asarray(run(weights, tokens, positions, segments)).argmax(-1)
    for row, (prompt, new) in enumerate(zip(prompts, generated, strict=True)):
        start = len(prompt) - 1
        assert best[row, start : start + NEW].tolist() == new
    assert all(len(set(new)) > NEW // 2 for new in generated)  # no mere repetition


def test_rows_do_not_see_each_other(prompts, generate):
    for temperature in (0.0, 1.0):
        together = generate(prompts, temperature=temperature)
        first = generate([prompts[0], prompts[0], prompts[0]], temperature=temperature)
        assert together[0] == first[0]
    together = generate(prompts)
    for row, prompt in enumerate(prompts):
        assert generate([prompt] * 3)[0] == together[row]


def test_eos_ends_its_row_alone(prompts, generate):
    free = generate(prompts)
    eos = free[1][3]
    ended = generate(prompts, eos_id=eos)
    for before, after in zip(free, ended, strict=True):
        cut = before.index(eos) if eos in before else NEW
        assert after == before[:cut] + [eos] * (NEW - cut)
    assert ended[1][free[1].index(eos) :] == [eos] * (NEW - free[1].index(eos))


def test_draws_follow_the_seed_and_the_temperature(prompts, generate):
    warm = generate(prompts, temperature=1.0, seed=5)
    assert warm == generate(prompts, temperature=1.0, seed=5)
    assert warm != generate(prompts, temperature=1.0, seed=6)
    assert generate(prompts, temperature=1e-4, seed=5) == generate(prompts)
    alike = generate([prompts[0]] * 3, temperature=1.0)
    assert len({tuple(row) for row in alike}) == 3  # each row has a stream of its own


def test_draws_have_the_softmax_probabilities(model, weights, generate):
    """Chi-square of 600 first tokens against the model's own distribution over likely tokens."""
    prompt, rows, temperature = [72, 101], 200, 2.0
    tokens, positions, ones = np.array([[prompt], [[0, 1]], [[1, 1]]], np.int32)
    run = jax.jit(lambda w, *rows: forward(w["params"], model, w["ffn_offset"], *rows)[0])
    logits = run(weights, tokens, positions, ones)
    expected = np.asarray(jax.nn.softmax(logits[0, -1] / temperature), float)
    drawn = np.concatenate(
        [
            np.asarray(generate([prompt] * rows, temperature=temperature, seed=s, new=1))[:, 0]
            for s in range(3)
        ]
    )
    likely = np.argsort(expected)[-5:]
    counts = np.array(
        [*((drawn == token).sum() for token in likely), (~np.isin(drawn, likely)).sum()], float
    )
    share = np.array([*expected[likely], 1 - expected[likely].sum()])
    chi_square = ((counts - 600 * share) ** 2 / (600 * share)).sum()
    assert chi_square < 25.7  # the 99.99th percentile at 5 degrees of freedom
