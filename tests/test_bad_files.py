# SPDX-License-Identifier: MIT
"""Files that are damaged, incomplete or of another kind are refused, each with a message that
names the file, the key or tensor, what was found and what was wanted.  Good files in unusual
clothes (shards, alignments, tensors nobody needs) load and give the same logits.
"""

import copy
import math
import random
import struct

import esker
import numpy as np
import pytest
from support import gguf_edit as edit

TOKENS = [1, 2, 3, 400, 5, 6, 7]
PREFIX = "qwen4exp."

# Numbers that a model must give, with the tests' micro model having them all.
NUMBERS = [
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "hyper_connection.count",
    "hyper_connection.low_rank",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "ple.ngram_size",
    "ple.heads_per_ngram",
    "ple.conv_kernel",
    "embedding_length_per_layer_input",
]
FLOATS = ["attention.layer_norm_rms_epsilon", "rope.freq_base"]
ARRAYS = ["ple.layers", "ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes"]


@pytest.fixture(scope="module")
def micro_path(oracle_dir):
    return oracle_dir / "micro-f16.gguf"


@pytest.fixture(scope="module")
def pristine(micro_path):
    return edit.GgufFile.read(micro_path)


@pytest.fixture
def micro(pristine):
    """A copy of the micro model to spoil; its tensors' bytes are shared, the rest is its own."""
    file = copy.copy(pristine)
    file.keys = dict(pristine.keys)
    file.tensors = [copy.copy(t) for t in pristine.tensors]
    return file


@pytest.fixture(scope="module")
def micro_logits(micro_path):
    return logits_of(micro_path)


def logits_of(path):
    with esker.Model(path) as model:
        return model.logits(TOKENS)


def refusal(path, kind=esker.FormatError, named=None):
    """The message with which a file is refused; it must name the file."""
    with pytest.raises(kind) as caught:
        esker.Model(path).close()
    assert isinstance(caught.value, esker.EskerError)
    text = str(caught.value)
    assert str(named or path) in text
    return text


def refusal_of(file, tmp_path):
    return refusal(file.write(tmp_path / "spoilt.gguf"))


# The writer must not be what is tested below.
def test_editor_rewrites_a_file_byte_for_byte(micro_path, pristine):
    assert pristine.to_bytes() == micro_path.read_bytes()


# Files that end too early or are something else.


@pytest.mark.parametrize("size", [4, 8, 23])
def test_file_cut_in_its_header_is_refused(micro_path, tmp_path, size):
    path = tmp_path / "cut.gguf"
    path.write_bytes(micro_path.read_bytes()[:size])
    text = refusal(path)
    assert "the file ends inside its header" in text
    assert f"got {size} bytes, want at least " in text


def test_file_cut_in_its_metadata_is_refused(micro, tmp_path):
    path = tmp_path / "cut.gguf"
    end = len(micro.key_bytes())
    # Some way into the metadata, and one byte before their end.
    for size in (100, end // 2, end - 1):
        path.write_bytes(micro.to_bytes()[:size])
        text = refusal(path)
        assert "the file ends inside its metadata" in text
        assert f"got {size} bytes, want at least " in text
    assert "key tokenizer.ggml.padding_token_id" in text


def test_file_cut_in_its_tensor_table_is_refused(micro, tmp_path):
    path = tmp_path / "cut.gguf"
    size = len(micro.header_bytes()) - 1
    path.write_bytes(micro.to_bytes()[:size])
    text = refusal(path)
    assert "the file ends inside its tensor table" in text
    assert f"got {size} bytes, want at least {size + 1} bytes" in text
    assert f"tensor {micro.tensors[-1].name}" in text


def test_file_cut_in_its_last_tensor_is_refused(micro, tmp_path):
    path = tmp_path / "cut.gguf"
    whole = micro.to_bytes()
    path.write_bytes(whole[:-1])
    text = refusal(path)
    assert "a tensor reaches past the end of the file" in text
    assert f"got {len(whole) - 1} bytes, want at least {len(whole)} bytes" in text
    assert f"tensor {micro.tensors[-1].name}" in text
    assert "hint: " in text


def test_web_page_is_refused(tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("\n<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n")
    text = refusal(path)
    assert 'this is not a GGUF file: got a web page (HTML): "<!DOCTYPE html>' in text
    assert 'want a file that begins with "GGUF"' in text
    assert "hint: the download failed" in text


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"access denied\n", 'got text: "access denied'),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
        (bytes(5000), "got zeros"),
        (b"\x93NUMPY\x01\x00", 'got bytes "\\x93NUMPY\\x01\\x00"'),
    ],
)
def test_other_file_is_refused(tmp_path, content, found):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    text = refusal(path)
    assert "this is not a GGUF file" in text
    assert found in text


def test_empty_file_is_refused(tmp_path):
    path = tmp_path / "empty.gguf"
    path.touch()
    assert "the file is empty: got 0 bytes" in refusal(path)


def test_missing_file_is_a_read_error(tmp_path):
    text = refusal(tmp_path / "missing.gguf", esker.ReadError)
    assert "cannot open the file: got No such file or directory" in text


def test_folder_is_a_read_error(tmp_path):
    assert "got a directory, want a file" in refusal(tmp_path, esker.ReadError)


def test_big_endian_file_is_refused(micro, tmp_path):
    micro.version = struct.unpack(">I", struct.pack("<I", 3))[0]
    text = refusal_of(micro, tmp_path)
    assert "the file is big-endian: got version 3" in text
    assert "want a little-endian file" in text


@pytest.mark.parametrize("version", [0, 1, 4])
def test_other_version_is_refused(micro, tmp_path, version):
    micro.version = version
    assert f"got version {version}, want version 2 or 3" in refusal_of(micro, tmp_path)


def test_version_2_loads(micro, tmp_path, micro_logits):
    micro.version = 2
    np.testing.assert_array_equal(logits_of(micro.write(tmp_path / "v2.gguf")), micro_logits)


def test_other_architecture_is_named(micro, tmp_path):
    micro.set("general.architecture", edit.STRING, "llama")
    text = refusal_of(micro, tmp_path)
    assert 'another architecture: got "llama", want "qwen4exp"' in text


# Metadata.


@pytest.mark.parametrize("key", NUMBERS + FLOATS + ARRAYS)
def test_missing_key_is_named(micro, tmp_path, key):
    del micro.keys[PREFIX + key]
    text = refusal_of(micro, tmp_path)
    assert f"metadata key {PREFIX}{key} is missing: got no such key, want " in text


@pytest.mark.parametrize("key", NUMBERS + FLOATS + ARRAYS)
def test_key_of_wrong_type_is_named(micro, tmp_path, key):
    micro.set(PREFIX + key, edit.STRING, "4")
    text = refusal_of(micro, tmp_path)
    assert f'metadata key {PREFIX}{key} has the wrong type: got STRING "4", want ' in text


@pytest.mark.parametrize("value", [0, 2**32 - 1])
@pytest.mark.parametrize("key", NUMBERS)
def test_zero_or_huge_number_is_named(micro, tmp_path, key, value):
    micro.set(PREFIX + key, edit.U32, value)
    text = refusal_of(micro, tmp_path)
    assert f"metadata key {PREFIX}{key} is out of range: got UINT32 {value}, want " in text


@pytest.mark.parametrize("key", NUMBERS)
def test_negative_number_is_named(micro, tmp_path, key):
    micro.set(PREFIX + key, edit.I64, -4)
    assert f"metadata key {PREFIX}{key} is out of range: got INT64 -4" in refusal_of(
        micro, tmp_path
    )


@pytest.mark.parametrize("value", [0.0, -1.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("key", FLOATS)
def test_bad_float_is_named(micro, tmp_path, key, value):
    micro.set(PREFIX + key, edit.F32, value)
    text = refusal_of(micro, tmp_path)
    assert f"metadata key {PREFIX}{key} is out of range: got " in text
    assert ", want " in text


@pytest.mark.parametrize(
    "key", ["ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes"]
)
def test_hash_constants_out_of_range_are_named(micro, tmp_path, key):
    count = 3 if key == "ple.layer_multipliers" else 4
    micro.set(PREFIX + key, edit.ARRAY, [2**63] * count, edit.U64)
    text = refusal_of(micro, tmp_path)
    assert f"metadata key {PREFIX}{key} is out of range: got {2**63}" in text
    micro.set(PREFIX + key, edit.ARRAY, [1] * (count - 1), edit.U64)
    text = refusal_of(micro, tmp_path)
    assert f"{PREFIX}{key} has the wrong length: got {count - 1} entries, want {count}" in text


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        ("attention.head_count_kv", 3, "a divisor of attention.head_count, 4"),
        ("attention.value_length", 32, "attention.key_length, 64"),
        ("rope.dimension_count", 31, "an even number"),
        ("rope.dimension_count", 66, "up to attention.key_length, 64"),
        ("attention.indexer.key_length", 16, "at least rope.dimension_count, 32"),
        ("attention.indexer.top_k", 18, "a multiple of"),
        ("ssm.group_count", 2, "a multiple of ssm.group_count, 2"),
        ("ssm.inner_size", 128, "ssm.time_step_rank times ssm.state_size, 192"),
        ("expert_used_count", 7, "at most expert_count, 6"),
        ("embedding_length_per_layer_input", 64, "gives embedding_length, 128"),
        ("nextn_predict_layers", 4, "less than block_count, 4"),
    ],
)
def test_keys_that_do_not_fit_together_are_named(micro, tmp_path, key, value, want):
    micro.set(PREFIX + key, edit.U32, value)
    text = refusal_of(micro, tmp_path)
    assert " does not fit the other keys: got " in text
    assert want in text


def test_key_that_stands_twice_is_refused(micro, tmp_path):
    raw = micro.to_bytes()
    # The second key takes the first one's place in the table of contents: same length of name.
    spoilt = raw.replace(b"expert_used_count", b"expert_used_counT", 1)
    spoilt = spoilt.replace(b"ssm.group_count", b"ssm.conv_kernel", 1)
    path = tmp_path / "twice.gguf"
    path.write_bytes(spoilt)
    assert "a metadata key stands twice" in refusal(path)


@pytest.mark.parametrize("value", [0, 12, 2**31])
def test_bad_alignment_is_refused(micro, tmp_path, value):
    micro.set("general.alignment", edit.U32, value)
    text = refusal_of(micro, tmp_path)
    assert (
        f"metadata key general.alignment cannot be used: got UINT32 {value}, want a power" in text
    )


def test_array_of_arrays_is_refused(micro, tmp_path):
    micro.keys["nested"] = (edit.ARRAY, struct.pack("<IQ", edit.ARRAY, 1) + bytes(12))
    text = refusal_of(micro, tmp_path)
    assert "a metadata array holds arrays" in text
    assert "key nested" in text


# Tensors.


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_hc_up.weight", "blk.0.attn_qkv.weight", "blk.1.ple_conv1d.weight",
     "blk.2.ffn_up_exps.weight", "blk.3.attn_q.weight", "blk.3.indexer.k_norm.weight"],
)  # fmt: skip
def test_missing_tensor_is_named(micro, tmp_path, name):
    micro.tensors = [t for t in micro.tensors if t.name != name]
    assert f"tensor {name} is missing: got no such tensor, want [" in refusal_of(micro, tmp_path)


def test_missing_table_hints_at_its_option(micro, tmp_path):
    micro.tensors = [t for t in micro.tensors if t.name != "per_layer_token_embd.weight"]
    text = refusal_of(micro, tmp_path)
    assert "tensor per_layer_token_embd.weight (the n-gram table) is missing" in text
    assert "--ngram-table" in text


@pytest.mark.parametrize(
    ("name", "got", "want"),
    [
        ("blk.0.attn_qkv.weight", [128, 319], "[128, 320]"),
        ("blk.1.ffn_down_exps.weight", [32, 128, 5], "[32, 128, 6]"),
        ("blk.3.attn_q.weight", [512, 128], "[128, 512]"),
        ("output_hc_norm.weight", [511], "[512]"),
        ("token_embd.weight", [64, 512], "[128, 512]"),
    ],
)
def test_tensor_of_wrong_shape_is_named(micro, tmp_path, name, got, want):
    tensor = micro.tensor(name)
    tensor.data = tensor.data[: len(tensor.data) * math.prod(got) // math.prod(tensor.dims)]
    tensor.dims = got
    text = refusal_of(micro, tmp_path)
    assert f"tensor {name} has the wrong shape: got {got}, want {want}" in text


def test_unknown_type_of_a_needed_tensor_is_named(micro, tmp_path):
    micro.tensor("blk.2.attn_gate.weight").type = 99
    text = refusal_of(micro, tmp_path)
    assert "tensor blk.2.attn_gate.weight has a type that Esker cannot decode" in text
    assert "got unknown type 99, want " in text


def test_unknown_type_of_an_unneeded_tensor_loads(micro, tmp_path, micro_logits):
    micro.tensors.insert(3, edit.Tensor("extra.weight", [32, 2], 99, bytes(64)))
    np.testing.assert_array_equal(logits_of(micro.write(tmp_path / "m.gguf")), micro_logits)


@pytest.mark.parametrize(
    ("name", "value", "index"),
    [
        ("output_hc_norm.weight", math.nan, 511),
        ("blk.0.ssm_norm.weight", math.inf, 7),
        ("blk.2.ssm_a", -math.inf, 0),
        ("blk.2.ssm_conv1d.weight", math.nan, 1279),
    ],
)
def test_values_that_are_not_numbers_are_refused(micro, tmp_path, name, value, index):
    tensor = micro.tensor(name)
    values = np.frombuffer(tensor.data, np.float32).copy()
    values[index] = value
    tensor.data = values.tobytes()
    text = refusal_of(micro, tmp_path)
    assert f"tensor {name} holds a value that is not a number: got " in text
    assert f"in element {index}, want finite numbers" in text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: setattr(t, "offset", 7), "a tensor's data is not aligned: got offset 7, want"),
        (lambda t: setattr(t, "offset", 0), "two tensors overlap"),
        (lambda t: setattr(t, "offset", 1 << 40), "a tensor reaches past the end of the file"),
        (lambda t: setattr(t, "dims", [1, 1, 1, 1, 1]), "got 5, want 1 to 4"),
        (lambda t: setattr(t, "dims", [2**32, 2**32]), "a tensor is impossibly large"),
        (lambda t: setattr(t, "name", "output.weight"), "a tensor stands twice: output.weight"),
        (lambda t: setattr(t, "type", 12), "rows are not whole blocks: got Q4_K rows of 128"),
    ],
)
def test_bad_tensor_table_is_refused(micro, tmp_path, spoil, message):
    spoil(micro.tensor("blk.0.attn_qkv.weight"))
    text = refusal_of(micro, tmp_path)
    assert message in text
    assert "hint: " in text


# Shards.


def shards_of(micro, count=3):
    return edit.split(micro, count, random.Random(5))


def test_missing_shard_is_named(micro, tmp_path):
    paths = edit.write_shards(tmp_path, shards_of(micro))
    paths[1].unlink()
    text = refusal(paths[0], named=tmp_path)
    assert f"shards of the model are missing: {paths[1].name}: got 2 shards, want 3" in text


def test_empty_shard_is_named(micro, tmp_path):
    paths = edit.write_shards(tmp_path, shards_of(micro))
    paths[2].write_bytes(b"")
    assert "the file is empty" in refusal(paths[0], named=paths[2])


def test_cut_shard_is_named(micro, tmp_path):
    paths = edit.write_shards(tmp_path, shards_of(micro))
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    assert "past the end of the file" in refusal(paths[0], named=paths[1])


def test_swapped_shards_are_refused(micro, tmp_path):
    first, second, third = shards_of(micro)
    paths = edit.write_shards(tmp_path, [first, third, second])
    text = refusal(paths[0], named=paths[1])
    assert f"name and content disagree: got {paths[1].name}, want NAME-00003-of-00003" in text


def test_renamed_shard_is_refused(micro, tmp_path):
    paths = edit.write_shards(tmp_path, shards_of(micro))
    path = paths[1].rename(tmp_path / "part.gguf")
    assert "got part.gguf, want NAME-00002-of-00003.gguf" in refusal(path)


def test_shard_of_another_split_is_refused(micro, tmp_path):
    shards = shards_of(micro)
    other = copy.copy(micro)
    other.tensors = micro.tensors[:50]
    shards[1] = shards_of(other)[1]
    paths = edit.write_shards(tmp_path, shards)
    text = refusal(paths[0], named=paths[1])
    assert "belongs to another model: got split.tensors.count INT32 50, want INT32 113" in text


def test_shard_of_another_architecture_is_refused(micro, tmp_path):
    shards = shards_of(micro)
    shards[2].set("general.architecture", edit.STRING, "llama")
    paths = edit.write_shards(tmp_path, shards)
    text = refusal(paths[0], named=paths[2])
    assert 'got general.architecture STRING "llama", want STRING "qwen4exp"' in text


def test_shard_with_other_tensors_is_refused(micro, tmp_path):
    shards = shards_of(micro)
    shards[1] = copy.copy(shards[1])
    shards[1].tensors = shards[0].tensors[: len(shards[1].tensors)]
    paths = edit.write_shards(tmp_path, shards)
    assert "a tensor stands twice" in refusal(paths[0], named=paths[1])


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_shards_give_the_logits_of_the_single_file(micro, tmp_path, micro_logits, count, alignment):
    micro.set_alignment(alignment)
    paths = edit.write_shards(tmp_path, edit.split(micro, count, random.Random(count * alignment)))
    for path in {paths[0], paths[-1]}:
        np.testing.assert_array_equal(logits_of(path), micro_logits)
