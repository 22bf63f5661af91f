"""Cached decoding equals the full forward pass, however the tokens come."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from spark_dist.model import empty_cache

LENGTH = 12


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def in_pieces(decoder, offset, rows, pieces: list[int]):
    """Logits of all tokens, decoded `pieces` tokens at a time; some slots stay empty."""
    cache = empty_cache(decoder.cfg, len(rows["tokens"]), LENGTH + 3)
    out, start = [], 0
    for size in pieces:
        part = {name: array[:, start : start + size] for name, array in rows.items()}
        logits, cache = decoder.decode(offset, **part, cache=cache)
        out.append(np.asarray(logits))
        start += size
        assert cache.length == start
    return np.concatenate(out, axis=1)


@pytest.mark.parametrize("pieces", [[LENGTH], [4] * 3, [1] * LENGTH], ids=["whole", "4", "1"])
def test_equals_the_forward_pass(decoder, pack, pieces):
    rows = pack([LENGTH], [5, 4], [3], length=LENGTH)
    real = rows["segment_ids"] > 0
    for offset in (decoder.plain, decoder.calibrated):
        expected = decoder.forward(offset, rows)[0]
        got = in_pieces(decoder, offset, rows, pieces)
        assert_close(got[real], expected[real])
        assert np.isfinite(got).all()


def left_padded(rows, lengths):
    """Each row's first tokens, moved to the right end."""
    out = {name: np.zeros_like(array) for name, array in rows.items()}
    for row, size in enumerate(lengths):
        for name in out:
            out[name][row, LENGTH - size :] = rows[name][row, :size]
    return out


def test_left_padded_rows_of_different_lengths(decoder, pack):
    lengths = [LENGTH, 7, 1]
    rows = pack(*[[n] for n in lengths], length=LENGTH)
    expected = decoder.forward(decoder.calibrated, rows)[0]
    got = in_pieces(decoder, decoder.calibrated, left_padded(rows, lengths), [4] * 3)
    for row, size in enumerate(lengths):
        assert_close(got[row, LENGTH - size :], expected[row, :size])


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("attention", ["full", "spark"])
def test_other_numbers_of_key_value_heads(build, pack, attention, kv_heads):
    decoder = build(attention=attention, num_kv_heads=kv_heads)
    rows = pack([LENGTH], length=LENGTH)
    assert empty_cache(decoder.cfg, 1, 5).k.shape == (2, 1, 5, kv_heads, 8)
    expected = decoder.forward(decoder.calibrated, rows)[0]
    got = in_pieces(decoder, decoder.calibrated, rows, [4] * 3)
    assert_close(got, expected)


@pytest.mark.parametrize("attention", ["full", "spark"])
def test_sharing_a_key_value_head_equals_repeating_it(build, pack, attention):
    """Query heads g, g+1 of a group use key/value head g // 2: the order Gemma's weights have."""
    shared, repeated = (build(attention=attention, num_kv_heads=n) for n in (2, 4))
    layers = dict(shared.params["layers"])
    layers["attention"] = {
        name: array.repeat(2, axis=2) if name in "kv" else array
        for name, array in layers["attention"].items()
    }
    rows = pack([LENGTH], length=LENGTH)
    expected = shared.forward(shared.plain, rows)[0]
    got = repeated.forward(shared.plain, rows, shared.params | {"layers": layers})[0]
    assert_close(got, expected)


def test_cache_in_bfloat16(build, pack):
    decoder = build()
    rows = pack([LENGTH], length=LENGTH)
    cache = empty_cache(decoder.cfg, 1, LENGTH, jax.numpy.bfloat16)
    logits, cache = decoder.decode(decoder.plain, **rows, cache=cache)
    assert (cache.k.dtype, logits.dtype) == ("bfloat16", "float32")
    assert np.isfinite(logits).all()
