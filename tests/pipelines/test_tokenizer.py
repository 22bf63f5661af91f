"""Every kind of tokenizer file, trained here, behind the one interface."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from spark_dist.pipelines import DataError, load_tokenizer
from spark_dist.pipelines.embedded import shakespeare

SAMPLE = "Shall I compare thee\n\n  to a  summer's day? — naïve 诗歌 🎭\n"


def test_byte_ids_are_fixed() -> None:
    byte = load_tokenizer("byte")
    assert (byte.vocab_size, byte.pad_id, byte.bos_id, byte.eos_id) == (259, 256, 257, 258)
    assert byte.encode("aé").tolist() == [0x61, 0xC3, 0xA9]
    assert byte.encode(SAMPLE).dtype == np.int32
    assert byte.decode([258, *byte.encode(SAMPLE), 256, 257]) == SAMPLE
    assert byte.decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"
    assert byte.token_bytes.sum() == 256
    assert byte.fingerprint == "byte"


@pytest.mark.parametrize("fixture", ["exact_sentencepiece_file", "json_file"])
def test_exact_files_round_trip_and_count_bytes(fixture, request) -> None:
    tokenizer = load_tokenizer(request.getfixturevalue(fixture))
    for text in (SAMPLE, shakespeare()["hamlet"][:5000], "</s><|endoftext|><0x41>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.token_bytes[ids].sum() == len(text.encode("utf-8"))
        assert tokenizer.eos_id not in ids
    assert tokenizer.token_bytes.shape == (tokenizer.vocab_size,)
    assert tokenizer.token_bytes.dtype == np.int32
    assert tokenizer.token_bytes[[tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id]].sum() == 0
    assert tokenizer.pad_id != tokenizer.eos_id


def test_a_normalising_model_loads(sentencepiece_file) -> None:
    tokenizer = load_tokenizer(sentencepiece_file)
    assert tokenizer.vocab_size == 600
    assert tokenizer.pad_id == tokenizer.eos_id == 2  # the file has no pad
    assert tokenizer.decode(tokenizer.encode("a  b")) == "a b"


def test_truncation_and_padding_of_the_file_are_off(json_file) -> None:
    tokenizer = load_tokenizer(json_file)
    assert len(tokenizer.encode("a")) == 1
    assert len(tokenizer.encode("a b " * 100)) > 16


def test_fingerprints_tell_files_apart(
    sentencepiece_file, exact_sentencepiece_file, json_file, tmp_path
) -> None:
    names = ["byte", sentencepiece_file, exact_sentencepiece_file, json_file]
    assert len({load_tokenizer(name).fingerprint for name in names}) == 4
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes(Path(json_file).read_bytes())
    assert load_tokenizer(str(copy)).fingerprint == load_tokenizer(json_file).fingerprint


def test_bytes_of_a_metaspace_file(tmp_path) -> None:
    vocab = {"<unk>": 0, "</s>": 1, "\u2581a": 2, "b": 3, "<0xC3>": 4, "é": 5}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    model.add_special_tokens(["<unk>", "</s>"])
    model.save(str(tmp_path / "meta.json"))
    tokenizer = load_tokenizer(str(tmp_path / "meta.json"))
    assert tokenizer.token_bytes.tolist() == [0, 0, 2, 1, 1, 2]
    assert tokenizer.eos_id == tokenizer.bos_id == tokenizer.pad_id == 1


def test_bad_files_are_refused(tmp_path, json_file) -> None:
    with pytest.raises(DataError, match=r"data.tokenizer='gpt2' is unknown; use byte"):
        load_tokenizer("gpt2")
    with pytest.raises(DataError, match=r"nowhere.model.*No such file"):
        load_tokenizer(str(tmp_path / "nowhere.model"))
    for name in ("bad.model", "bad.json", "empty.json", "empty.model"):
        (tmp_path / name).write_bytes(b"" if "empty" in name else b"\x01garbage")
        with pytest.raises(DataError, match=rf"{name}.*(not a|no eos)"):
            load_tokenizer(str(tmp_path / name))
    content = json.loads(Path(json_file).read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["content"] = token["content"].replace("endoftext", "other")
    content["model"]["vocab"]["<|other|>"] = content["model"]["vocab"].pop("<|endoftext|>")
    (tmp_path / "no_eos.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=r"no_eos.json.*end-of-text token; add"):
        load_tokenizer(str(tmp_path / "no_eos.json"))
