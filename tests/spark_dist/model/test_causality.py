"""No token changes a logit that must not depend on it: shown bit for bit, by changing each token.

Threshold forms differ in the offsets alone: zero is `gaussian`, anything else `calibrated`.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

LENGTH = 16


def influence(decoder, offset, rows, row: int = 0) -> np.ndarray:
    """bool[changed token, logit position] of one row: whether any bit of the logits differs."""
    before = decoder.forward(offset, rows)[0]
    out = []
    for at in range(rows["tokens"].shape[1]):
        tokens = rows["tokens"].copy()
        tokens[row, at] = (tokens[row, at] + 7) % decoder.cfg.vocab_size
        after = decoder.forward(offset, rows | {"tokens": tokens})[0]
        others = np.arange(len(tokens)) != row
        np.testing.assert_array_equal(after[others], before[others])
        out.append((after[row] != before[row]).any(axis=-1))
    return np.array(out)


@pytest.mark.parametrize("threshold", ["plain", "calibrated"])
def test_later_tokens_other_documents_and_padding_change_nothing(decoder, pack, threshold):
    rows = pack([LENGTH], [6, 7], length=LENGTH)
    offset = getattr(decoder, threshold)

    one_document = influence(decoder, offset, rows, 0)
    earlier = np.tril(np.ones_like(one_document), -1)
    assert not one_document[earlier].any()
    assert np.diag(one_document).all()
    # The test can see an influence: of each token on some later one.
    assert np.triu(one_document, 1)[:-1].any(axis=1).all()

    packed = influence(decoder, offset, rows, 1)
    segments = rows["segment_ids"][1]
    assert not packed[earlier & (segments > 0)].any()
    assert not packed[segments[:, None] != segments].any()
    assert np.triu(packed, 1)[6:12].any(axis=1).all()  # within the second document


@pytest.mark.parametrize("attention", ["full", "spark"])
def test_nothing_is_seen_beyond_the_local_window(build, pack, attention):
    decoder = build(attention=attention, attention_pattern=("local",), local_window=4)
    reach = decoder.cfg.num_layers * (decoder.cfg.local_window - 1)
    seen = influence(decoder, decoder.plain, pack([LENGTH], length=LENGTH))
    distance = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
    assert not seen[(distance < 0) | (distance > reach)].any()
    if attention == "full":
        np.testing.assert_array_equal(seen, (distance >= 0) & (distance <= reach))


def test_global_layers_see_the_whole_document(build, pack):
    decoder = build(attention="full", attention_pattern=("global",), local_window=1)
    seen = influence(decoder, decoder.plain, pack([LENGTH], length=LENGTH))
    np.testing.assert_array_equal(seen, np.triu(np.ones((LENGTH, LENGTH), bool)))


def test_padding_is_finite_and_never_counted(decoder, pack):
    cfg = decoder.cfg
    documents = [[LENGTH], [6, 7], []]
    rows = pack(*documents, length=LENGTH)
    logits, statistics = decoder.forward(decoder.calibrated, rows)
    assert np.isfinite(logits).all()
    assert statistics.tokens == LENGTH + 6 + 7

    # Other padding, whatever its tokens and positions: the same statistics.
    other = pack(*documents, length=LENGTH, seed=1)
    real = rows["segment_ids"] > 0
    changed = rows | {
        "tokens": np.where(real, rows["tokens"], other["tokens"]),
        "positions": np.where(real, rows["positions"], np.arange(LENGTH)).astype(np.int32),
    }
    jax.tree.map(
        np.testing.assert_array_equal, decoder.forward(decoder.calibrated, changed)[1], statistics
    )

    # (query, head) rows with more than 2 k visible keys, counted by hand.
    long = {"local": 0, "global": 0}
    for size in (LENGTH, 6, 7):
        for position in range(size):
            long["local"] += min(position + 1, cfg.local_window) > 2 * cfg.attention_k
            long["global"] += position + 1 > 2 * cfg.attention_k
    expected = [cfg.num_heads * long[kind] for kind in cfg.attention_pattern]
    if cfg.attention == "full":
        expected = [0, 0]
    np.testing.assert_array_equal(statistics.attention_rows, expected)

    if cfg.ffn == "gated":
        np.testing.assert_array_equal(statistics.ffn_active, statistics.tokens * cfg.d_ff)

    nothing = decoder.forward(decoder.calibrated, {k: 0 * v for k, v in rows.items()})
    assert np.isfinite(nothing[0]).all()
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), nothing[1])
