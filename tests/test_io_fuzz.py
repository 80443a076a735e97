"""Hostile headers: every file loads or is refused in words, at once and in about its own memory."""

import contextlib
import json
import os
import resource
import struct
import tracemalloc
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specjax.io.gguf import GGUFCheckpoint
from specjax.io.gguf_families import FAMILIES
from specjax.io.safetensors import SafetensorsCheckpoint

SPARE = 1 << 29
"""Bytes of address space that a test may take on top of what the process has."""

FEW = settings(
    max_examples=150,
    deadline=timedelta(seconds=1),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MANY = settings(FEW, max_examples=2_000)

U32, F32, STRING, ARRAY, U64 = 4, 6, 8, 9, 10
HUGE = (2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1, 10**12, 10**18)
COUNTS = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1), st.sampled_from(HUGE))


@pytest.fixture(autouse=True)
def _limited_memory():
    """Let an allocation of much more than there is fail at once, in Python and below it."""
    with contextlib.ExitStack() as stack:
        if (status := Path("/proc/self/statm")).exists():
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            taken = int(status.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
        yield


def peak_of(action):
    """Return the most bytes that Python objects and arrays took while ``action`` ran."""
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError, OSError):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_loads_or_is_refused(use, size):
    assert peak_of(use) < 2**20 + 64 * size


def text(value, length=None):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value) if length is None else length) + value


def array(kind, items, count=None):
    count = len(items) if count is None else count
    return struct.pack("<IQ", kind, count) + b"".join(items)


def gguf_file(pairs, tensors, num_pairs=None, num_tensors=None):
    """Lay out a file; ``pairs`` are {key: (type, bytes)}, ``tensors`` entries of the table."""
    count = [len(tensors) if num_tensors is None else num_tensors]
    count += [len(pairs) if num_pairs is None else num_pairs]
    header = b"GGUF" + struct.pack("<IQQ", 3, *count)
    for key, (kind, value) in pairs.items():
        header += text(key) + struct.pack("<I", kind) + value
    for name, dims, kind, offset in tensors:
        header += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        header += struct.pack("<IQ", kind, offset)
    return header + bytes(-len(header) % 32) + bytes(range(256)) * 12


def valid_parts(architecture="llama", vocabulary="gpt2"):
    """The metadata and tensors of a file that loads."""
    numbers = {"block_count": 1, "context_length": 32, "embedding_length": 8}
    numbers |= {"feed_forward_length": 8, "expert_used_count": 1, "expert_feed_forward_length": 8}
    numbers |= {"attention.head_count": 2, "attention.head_count_kv": 1}
    numbers |= {"attention.sliding_window": 4, "rope.dimension_count": 4}
    pairs = {"general.architecture": (STRING, text(architecture))}
    pairs |= {f"{architecture}.{k}": (U32, struct.pack("<I", v)) for k, v in numbers.items()}
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        pairs[f"{architecture}.attention.{name}"] = (F32, struct.pack("<f", 1e-5))
    tokens = ["<unk>", "<s>", "a", "b", "ab", "Ġ", "Ġa"]
    pairs |= {
        "tokenizer.ggml.model": (STRING, text(vocabulary)),
        "tokenizer.ggml.pre": (STRING, text("llama-bpe")),
        "tokenizer.ggml.tokens": (ARRAY, array(STRING, [text(x) for x in tokens])),
        "tokenizer.ggml.scores": (ARRAY, array(F32, [struct.pack("<f", -i) for i in range(7)])),
        "tokenizer.ggml.token_type": (ARRAY, array(U32, [struct.pack("<I", 1)] * 7)),
        "tokenizer.ggml.merges": (ARRAY, array(STRING, [text("a b"), text("Ġ a")])),
        "tokenizer.ggml.bos_token_id": (U32, struct.pack("<I", 1)),
        "tokenizer.chat_template": (STRING, text("{{ messages }}")),
    }
    tensors = [
        ("token_embd.weight", (8, 7), 0, 0),
        ("output_norm.weight", (8,), 0, 224),
        ("blk.0.attn_q.weight", (8, 8), 1, 256),
        ("blk.0.ffn_up.weight", (32, 8), 2, 384),
        ("blk.0.attn_qkv.weight", (8, 12), 0, 544),
    ]
    return pairs, tensors


def use_gguf(path):
    """Do with a file all that loading does."""
    checkpoint = GGUFCheckpoint(path)
    for name in checkpoint.names():
        with contextlib.suppress(ValueError):
            assert checkpoint.read(name).shape == checkpoint.shape(name)
    tokenizer = checkpoint.tokenizer()
    if tokenizer is not None:
        tokenizer.decode(tokenizer.encode("a b ab"))


def mostly(usual, *others):
    """Draw from ``usual`` in three cases of four."""
    return st.integers(0, 3).flatmap(lambda i: usual if i else st.one_of(*others))


KINDS = mostly(
    st.sampled_from([0, U32, 5, F32, 7, STRING, ARRAY, U64, 12]),
    st.sampled_from([13, 99, 2**31, 2**32 - 1]),
)
LIE = mostly(st.none(), COUNTS)
"""A length that is not the true one, if any."""
FLOATS = st.sampled_from([0.0, -1.0, 1.0, 4.0, 1e30, 1e-30, float("inf"), float("nan")])


@st.composite
def values(draw):
    """A metadata value of any type, with a length that may be a lie."""
    kind = draw(KINDS)
    if kind == STRING:
        known = ["linear", "yarn", "llama", "gpt2", "gemma2", "mixtral", "gpt-2", "<s>", "\ud55c"]
        content = draw(mostly(st.sampled_from([x.encode() for x in known]), st.binary(max_size=12)))
        return kind, text(content, draw(LIE))
    if kind == ARRAY:
        of = draw(KINDS)
        items = draw(st.lists(st.sampled_from(["", "a", "b", "ab", "▁▁ ", "a b", "$B", "<0x00>"])))
        return kind, array(of, [text(x) if of == STRING else b"\x01" * 8 for x in items], draw(LIE))
    if kind == F32:
        return kind, struct.pack("<f", draw(FLOATS))
    size = {0: 1, 7: 1, U64: 8, 12: 8}.get(kind, 4)
    return kind, struct.pack("<Q", draw(COUNTS))[:size]


ODD_KEYS = [
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
    *("rope.freq_base", "expert_count", "attention.key_length", "vocab_size"),
    *("attention.sliding_window_pattern", "rope.scaling.attn_factor", "final_logit_softcapping"),
]
ODD_NAMES = [
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    *("blk.0.ffn_up_exps.weight", "output.weight", "blk.0.attn_k.bias", "token_embd.weight"),
]


@st.composite
def gguf_files(draw):
    """A valid file with numbers, types, lengths or bytes replaced."""
    architecture = draw(st.sampled_from(sorted(FAMILIES.keys() - {"mixtral"})))
    pairs, tensors = valid_parts(architecture, draw(st.sampled_from(["gpt2", "llama"])))
    odd = [*sorted(pairs), *(f"{architecture}.{key}" for key in ODD_KEYS)]
    odd += ["general.alignment", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_space_prefix"]
    for key in draw(st.lists(st.sampled_from(odd), max_size=2)):
        pairs[key] = draw(values())
    for index in draw(st.lists(st.integers(0, len(tensors) - 1), max_size=2)):
        name, dims, kind, offset = tensors[index]
        tensors[index] = (
            draw(st.one_of(st.just(name), st.sampled_from(ODD_NAMES))),
            draw(mostly(st.just(dims), st.lists(COUNTS, min_size=1, max_size=5).map(tuple))),
            draw(mostly(st.just(kind), st.integers(0, 42))),
            draw(mostly(st.just(offset), COUNTS)),
        )
    counts = (draw(LIE), draw(LIE)) if draw(st.integers(0, 7)) == 0 else ()
    content = gguf_file(pairs, tensors, *counts)
    return draw(mostly(st.just(content), damaged(content)))


@st.composite
def damaged(draw, content):
    """Bytes, of which a few are replaced or left out, or the end is cut off."""
    content = bytearray(content)
    if draw(st.booleans()):
        return bytes(content[: draw(st.integers(0, len(content)))])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content) - 1))
        edits = st.one_of(st.binary(max_size=8), COUNTS.map(struct.Struct("<Q").pack))
        new = draw(edits)
        content[at : at + draw(st.sampled_from([len(new), draw(st.integers(0, 16))]))] = new
    return bytes(content)


def check_gguf(path, content):
    path.write_bytes(content)
    assert_loads_or_is_refused(lambda: use_gguf(path), len(content))


@FEW
@given(content=gguf_files())
def test_a_hostile_gguf_file_loads_or_is_refused(tmp_path, content):
    check_gguf(tmp_path / "m.gguf", content)


@pytest.mark.slow
@MANY
@given(content=gguf_files())
def test_two_thousand_hostile_gguf_files_load_or_are_refused(tmp_path, content):
    check_gguf(tmp_path / "m.gguf", content)


@st.composite
def safetensors_files(draw):
    """A valid file with its header's numbers, names or bytes replaced."""
    entries = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    odd = st.one_of(COUNTS, st.integers(-5, 5), st.none(), st.sampled_from(["", "F32"]), FLOATS)
    small = st.lists(st.one_of(st.integers(0, 24), COUNTS), max_size=3)
    fields = {
        "dtype": st.sampled_from(["F32", "F64", "I64", "F8_E4M3", "F4", "BOOL", "C64", "X"]),
        "shape": st.one_of(small, st.permutations([2, 3]), st.just([2, 2, 1])),
        "data_offsets": small,
        "more": odd,
    }
    for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=2)):
        field = draw(st.sampled_from(sorted(fields)))
        value = draw(mostly(fields[field], odd, st.lists(odd, max_size=6)))
        entries.setdefault(name, dict(entries["a"]))[field] = value
    header = json.dumps(entries).encode()
    header = draw(mostly(st.just(header), st.just(b"[" * 5000), damaged(header)))
    length = draw(mostly(st.just(len(header)), COUNTS))
    content = struct.pack("<Q", length) + header + bytes(range(32))
    return draw(mostly(st.just(content), damaged(content)))


def use_safetensors(folder):
    checkpoint = SafetensorsCheckpoint(folder)
    for name in checkpoint.names():
        with contextlib.suppress(ValueError):
            assert checkpoint.read(name).shape == checkpoint.shape(name)
            checkpoint.read(name, (slice(1, 2),))


def check_safetensors(folder, content):
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    assert_loads_or_is_refused(lambda: use_safetensors(folder), len(content))


@FEW
@given(content=safetensors_files())
def test_a_hostile_safetensors_file_loads_or_is_refused(tmp_path, content):
    check_safetensors(tmp_path, content)


@pytest.mark.slow
@MANY
@given(content=safetensors_files())
def test_two_thousand_hostile_safetensors_files_load_or_are_refused(tmp_path, content):
    check_safetensors(tmp_path, content)


@pytest.mark.parametrize("number", [2**63 - 1, 10**12])
def test_a_huge_number_anywhere_in_the_header_is_harmless(number, tmp_path):
    content = gguf_file(*valid_parts(vocabulary="llama"))
    header = content.index(bytes(range(256)))
    for at in range(8, header, 9):
        damage = struct.pack("<Q", number)
        check_gguf(tmp_path / "m.gguf", content[:at] + damage + content[at + 8 :])


@pytest.mark.parametrize("kind", [0, U64, STRING])
def test_an_array_longer_than_the_file_is_refused(kind, tmp_path):
    pairs, tensors = valid_parts()
    pairs["x"] = (ARRAY, array(kind, [text("ab")], 2**63 - 1))
    (tmp_path / "m.gguf").write_bytes(gguf_file(pairs, tensors))
    with pytest.raises(ValueError, match=r"truncated or corrupt, .* \(byte [0-9]* is wanted of"):
        GGUFCheckpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3", "smollm3"])
def test_more_layers_than_tensors_are_refused(architecture, tmp_path):
    pairs, tensors = valid_parts(architecture)
    pairs[f"{architecture}.block_count"] = (U64, struct.pack("<Q", 10**12))
    (tmp_path / "m.gguf").write_bytes(gguf_file(pairs, tensors))
    with pytest.raises(ValueError, match="asks for 1000000000000 layers"):
        GGUFCheckpoint(tmp_path / "m.gguf")


def test_the_file_that_is_damaged_here_loads(tmp_path):
    path = tmp_path / "m.gguf"
    for architecture in ("llama", "gpt2"):
        path.write_bytes(gguf_file(*valid_parts(architecture, architecture)))
        checkpoint = GGUFCheckpoint(path)
        for name in checkpoint.names():
            assert checkpoint.read(name).shape == checkpoint.shape(name)
        assert checkpoint.tokenizer() is not None


@pytest.mark.parametrize("kind", [0, 4, STRING])
def test_a_large_array_costs_what_it_weighs(kind, tmp_path):
    path = tmp_path / "m.gguf"
    count = 2**20 // {0: 1, 4: 4, STRING: 16}[kind]
    item = text("12345678") if kind == STRING else bytes({0: 1, 4: 4}[kind])
    pairs, tensors = valid_parts()
    path.write_bytes(gguf_file(pairs | {"x": (ARRAY, array(kind, [item] * count))}, tensors))
    assert peak_of(lambda: GGUFCheckpoint(path)) < 2**18 + 8 * 2**20
    assert GGUFCheckpoint(path).metadata["x"] is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("w", (2**40, 2**40), 0, 0), "'w' ends at byte .* of 3072"),
        (("w", (2**63, 2), 0, 0), "'w' ends at byte"),
        (("w", (8,), 0, 2**63), "'w' ends at byte"),
        (("w", (33, 2), 2, 0), "'w' has rows of 33, no multiple of the 32 values of a Q4_0 block"),
        (("w", (1,) * 5, 0, 0), "'w' has 5 axes"),
        (("w", (8, 0), 0, 0), r"'w' of shape \(0, 8\) is empty"),
        (("w", (8,), 99, 0), "'w' has unsupported quantisation 99"),
        (("output_norm.weight", (8,), 0, 0), "'model.norm.weight' is there twice"),
        (("w", (700,), 0, 0), "its tensors overlap"),
        (("blk.0.ffn_up_exps.weight", (8, 8, 3), 0, 0), r"\(3, 8, 8\) is no stack of 2 experts"),
    ],
)
def test_a_tensor_that_cannot_be_is_named(entry, message, tmp_path):
    path = tmp_path / "m.gguf"
    pairs, tensors = valid_parts()
    pairs["llama.expert_count"] = (U32, struct.pack("<I", 2))
    path.write_bytes(gguf_file(pairs, [*tensors, entry]))
    with pytest.raises(ValueError, match=message):
        GGUFCheckpoint(path)


def test_arrays_in_arrays_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    nested = b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(5000))
    pairs, tensors = valid_parts()
    path.write_bytes(gguf_file(pairs | {"x": (ARRAY, nested)}, tensors))
    with pytest.raises(ValueError, match="an array in an array"):
        GGUFCheckpoint(path)


def test_a_token_as_long_as_the_file_is_refused(tmp_path):
    pairs, tensors = valid_parts(vocabulary="llama")
    tokens = [text(token) for token in ["<unk>", "<s>", "a" * 100_000]]
    pairs["tokenizer.ggml.tokens"] = (ARRAY, array(STRING, tokens))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file(pairs, tensors))
    with pytest.raises(ValueError, match="a token of 100000 characters"):
        GGUFCheckpoint(path).tokenizer()


@pytest.mark.parametrize("vocabulary", ["llama", "gpt2"])
@pytest.mark.parametrize("token", ["$B", "$A:1", "a:b", "", "<0xZZ>", "▁"])
def test_a_first_token_of_any_text_is_one_token(token, vocabulary, tmp_path):
    pairs, tensors = valid_parts(vocabulary=vocabulary)
    tokens = [text(each) for each in ["<unk>", token, "a", "b", "ab", "Ġ", "Ġa"]]
    pairs["tokenizer.ggml.tokens"] = (ARRAY, array(STRING, tokens))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file(pairs, tensors))
    assert GGUFCheckpoint(path).tokenizer().encode("ab")[0] == 1
