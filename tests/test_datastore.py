"""Stores of texts: their order, what is found in them, and their files."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from safetensors.numpy import load_file, save_file

from specjax import datastore
from specjax.cli import main
from specjax.io import datastore as files
from specjax.types import Context

LONGEST, K, R, L = 4, 3, 5, 12


def documents(vocab_size, num, seed):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, vocab_size, n) for n in draw.integers(0, 30, num)]


@pytest.mark.parametrize("sorted_length", [1, 2, 3, 8, 11, 64])
def test_suffixes_are_sorted_by_so_many_tokens_and_equal_ones_keep_their_places(sorted_length):
    tokens = np.asarray(datastore.build(documents(2, 9, 0), vocab_size=2).tokens)

    def begin(place):
        return [*tokens[place : place + sorted_length].tolist(), *[-1] * sorted_length][
            :sorted_length
        ]

    expected = sorted(range(len(tokens)), key=lambda place: (begin(place), place))
    assert datastore.suffix_order(tokens, sorted_length).tolist() == expected


@jax.jit
def look_up(store, tokens, length):
    """For m = 1..LONGEST: what follows the last m tokens at R places, and at how many in all."""
    low, high = store.find(Context(tokens, length), LONGEST)
    matched = jnp.broadcast_to(jnp.arange(1, LONGEST + 1, dtype=jnp.int32), low.shape)
    return store.continuations(low, high, matched, R, K)


def followers(tokens, pattern):
    """What follows each place of a pattern, as far as its document goes."""
    size = len(pattern)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size)
    for place in np.flatnonzero((windows == pattern).all(1)):
        after = tokens[place + size : place + size + K].tolist()
        yield after[: after.index(-1)] if -1 in after else after


def agrees(store, rows, lengths):
    """Compare the lookup of some rows with a search through all tokens; count what was found."""
    stored, num = np.asarray(store.tokens), 0
    found = look_up(store, jnp.asarray(rows), jnp.asarray(lengths, jnp.int32))
    for row, length, *of_row in zip(rows, lengths, *map(np.asarray, found), strict=True):
        for m, (tokens, valid, count) in enumerate(zip(*of_row, strict=True), 1):
            every = list(followers(stored, row[length - m : length])) if m <= length else []
            assert count == len(every)
            some = [t[v].tolist() for t, v in zip(tokens, valid, strict=True)]
            some = some[: min(count, R)]
            assert not valid[min(count, R) :].any()
            if count <= R:
                assert sorted(some) == sorted(every)
            else:  # an even sample: each token as often as in all, to within a place or so
                for token in {e[0] if e else -1 for e in every}:
                    share = sum((e[0] if e else -1) == token for e in every) * R / count
                    drawn = sum((s[0] if s else -1) == token for s in some)
                    assert abs(drawn - share) < 1.5
            num += count > 0
    return num


def padded(documents, size=720):
    """A store of one shape, so that one program serves all; what pads it are borders."""
    tokens = np.asarray(datastore.build(documents, vocab_size=30).tokens)
    tokens = np.pad(tokens, (0, size - tokens.size), constant_values=-1)
    order = datastore.suffix_order(tokens, 16)
    return datastore.Datastore(jnp.asarray(tokens), jnp.asarray(order), 30)


@pytest.mark.parametrize("vocab_size", [2, 4, 30])
def test_what_is_found_is_what_a_search_finds(vocab_size):
    store = padded(documents(vocab_size, 24, vocab_size))
    tokens = np.asarray(store.tokens)
    draw = np.random.default_rng(vocab_size)
    rows = draw.integers(0, vocab_size, (60, L)).astype(np.int32)
    for row in rows[:30]:  # half of them end as something does that is stored
        at = draw.integers(0, 250)
        row[:] = np.maximum(tokens[at : at + L], 0)
    assert agrees(store, rows, draw.integers(1, L + 1, 60)) > 60


def test_nothing_follows_the_stores_last_place():
    rows, lengths = np.zeros((60, L), np.int32), np.full(60, 2, np.int32)
    rows[0, :2] = 0, 3
    tokens, valid, count = look_up(padded([[3, 0, 3]]), jnp.asarray(rows), jnp.asarray(lengths))
    assert count[0].tolist() == [2, 1, 0, 0]
    assert valid[0].sum(-1).tolist() == [[0, 2, 0, 0, 0], [0] * R, [0] * R, [0] * R]
    assert tokens[0, 0, 1].tolist() == [0, 3, 0]


@pytest.mark.parametrize(
    ("documents", "arguments", "named"),
    [
        ([], {}, "documents: there is no token"),
        ([[]], {}, "documents: there is no token"),
        ([[1], [1, 5]], {}, "documents: document 1 has token id 5, outside the vocabulary of 5"),
        ([[-1]], {}, "documents: document 0 has token id -1"),
        ([np.asarray([0.5])], {}, "documents: document 0 must be a sequence of token ids"),
        ([np.asarray([[1]])], {}, "documents: document 0 must be a sequence of token ids"),
        ([[1]], {"sorted_length": 0}, "sorted_length: must be"),
        ([[1]], {"sorted_length": True}, "sorted_length: must be"),
    ],
)
def test_a_store_that_cannot_be_built_is_refused_by_argument(documents, arguments, named):
    with pytest.raises(ValueError, match=named):
        datastore.build(documents, vocab_size=5, **arguments)


def test_a_match_longer_than_the_store_is_sorted_by_is_refused():
    store = datastore.build([[1, 2]], vocab_size=3, sorted_length=2)
    with pytest.raises(ValueError, match="longest: the store is sorted by 2 tokens, got 3"):
        store.find(Context(jnp.asarray([[0, 1, 2]]), jnp.asarray([3])), 3)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer([], [], "abcdefgh \n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One file of each kind."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text("abc\nab")
    (folder / "b.jsonl").write_text('{"text": "de"}\n\n{"turns": ["fg", "h"]}\n')
    np.save(folder / "c.npy", np.asarray([0, 1, -1, 2], np.int64))
    return folder


def built(folder, tokenizer):
    paths = [folder / name for name in ("a.txt", "b.jsonl", "c.npy")]
    return files.build_datastore(files.read_documents(paths), tokenizer=tokenizer)


def test_files_become_documents(folder, tokenizer):
    ids = [tokenizer.encode(text) for text in ("abc\nab", "de", "fg", "h")]
    expected = [x for document in [*ids, [0, 1], [2]] for x in [*document, -1]]
    store = built(folder, tokenizer)
    assert store.tokens.tolist() == expected
    assert store.vocab_size == len(tokenizer.vocabulary)
    assert store.fingerprint == datastore.fingerprint_of(tokenizer.vocabulary)


def test_a_store_is_read_as_it_was_written(folder, tokenizer, tmp_path):
    store = built(folder, tokenizer)
    files.save_datastore(store, tmp_path / "s.safetensors", sources=["a.txt"])
    found = files.load_datastore(tmp_path / "s.safetensors", tokenizer=tokenizer)
    jax.tree.map(np.testing.assert_array_equal, found, store)
    assert jax.tree.structure(found) == jax.tree.structure(store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.safetensors"]


def test_the_file_says_what_is_in_it(folder, tokenizer, tmp_path):
    store = built(folder, tokenizer)
    path = tmp_path / "s.safetensors"
    files.save_datastore(store, path, sources=["a.txt", "c.npy"])
    assert files.describe_datastore(path) == {
        "format_version": 1,
        "vocab_size": 10,
        "fingerprint": store.fingerprint,
        "sorted_length": 16,
        "num_tokens": 6 + 2 + 2 + 1 + 2 + 1,
        "num_documents": 6,
        "sources": ["a.txt", "c.npy"],
    }


def test_ids_without_a_tokenizer_need_the_size_of_the_vocabulary(tokenizer):
    store = files.build_datastore([[1, 2]], vocab_size=7)
    assert (store.vocab_size, store.fingerprint) == (7, None)
    with pytest.raises(ValueError, match="vocab_size: is needed where there is no tokenizer"):
        files.build_datastore([[1, 2]])
    with pytest.raises(ValueError, match="tokenizer: is needed, since document 1 is text"):
        files.build_datastore([[1, 2], "ab"], vocab_size=7)
    with pytest.raises(ValueError, match="vocab_size: 3 is less than the tokenizer's 10"):
        files.build_datastore(["ab"], tokenizer=tokenizer, vocab_size=3)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("x.pdf", b"%PDF", "x.pdf is none of .txt, .jsonl and .npy"),
        ("x.txt", b"\xff\xfe", "x.txt is not UTF-8"),
        ("x.jsonl", b'{"text": "a"}\n{', "x.jsonl, line 2: is not a JSON object"),
        ("x.jsonl", b'{"words": "a"}', "x.jsonl, line 1: has neither a text nor turns"),
        ("x.jsonl", b'{"turns": "a"}', "x.jsonl, line 1: turns must be a list of texts"),
        ("x.jsonl", b'{"text": 1}', "x.jsonl, line 1: text must be a string"),
        ("x.npy", b"no", "x.npy is not an array"),
    ],
)
def test_a_file_that_holds_no_documents_is_named(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"files: .*{named}"):
        list(files.read_documents([tmp_path / name]))


def test_arrays_of_floats_and_missing_files_are_named(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"files: .*x.npy must hold whole numbers in one row"):
        list(files.read_documents([tmp_path / "x.npy"]))
    with pytest.raises(FileNotFoundError, match=r"files: .*none.txt does not exist"):
        list(files.read_documents([tmp_path / "none.txt"]))


def spoil(path, tensors=None, **metadata):
    """Write the file again with other tensors or metadata."""
    about = {**files.read_metadata(path), **metadata}
    save_file({**load_file(path), **(tensors or {})}, path, metadata=about)


@pytest.mark.parametrize(
    ("tensors", "metadata", "named"),
    [
        (None, {"format_version": "2"}, "has format version 2, this specjax reads 1"),
        (None, {"vocab_size": "x"}, "its metadata is incomplete or corrupt"),
        (None, {"vocab_size": "2"}, "its tensors do not go together"),
        ({"order": np.zeros(3, np.int32)}, {}, "its tensors do not go together"),
        ({"tokens": np.zeros(14, np.float32)}, {}, "its tensors do not go together"),
    ],
)
def test_a_spoilt_store_is_refused(folder, tokenizer, tmp_path, tensors, metadata, named):
    path = tmp_path / "s.safetensors"
    files.save_datastore(built(folder, tokenizer), path)
    spoil(path, tensors, **metadata)
    with pytest.raises(ValueError, match=f"path: .*{named}"):
        files.load_datastore(path)


def test_what_is_no_store_is_refused(folder, tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path: .*none does not exist; specjax datastore"):
        files.load_datastore(tmp_path / "none")
    (tmp_path / "x").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"path: .*x is truncated or no store"):
        files.load_datastore(tmp_path / "x")
    save_file({"tokens": np.zeros(3, np.int32)}, tmp_path / "y")
    with pytest.raises(ValueError, match=r"path: .*y is no store"):
        files.load_datastore(tmp_path / "y")


def test_a_store_of_another_vocabulary_is_refused(folder, tokenizer, tmp_path):
    files.save_datastore(built(folder, tokenizer), tmp_path / "s")
    other = byte_tokenizer([], [], "hgfedcba \n")
    with pytest.raises(ValueError, match="store: it was built with another token map"):
        files.load_datastore(tmp_path / "s", tokenizer=other)


@pytest.fixture
def run(folder, tokenizer, tmp_path, capsys):
    """Run ``specjax datastore build`` and return its status and both outputs."""
    (tmp_path / "model").mkdir()
    tokenizer.save(tmp_path / "model")

    def call(*args, names=("a.txt", "b.jsonl", "c.npy"), out=tmp_path / "s"):
        paths = [str(folder / name) for name in names]
        model = ["--tokenizer", str(tmp_path / "model")]
        status = main(["datastore", "build", str(out), *paths, *model, *args])
        return status, *capsys.readouterr()

    return call


def test_the_command_builds_a_store(run, folder, tokenizer, tmp_path):
    status, out, err = run()
    assert (status, out) == (0, "")
    assert err.splitlines()[-1].startswith("wrote 14 tokens of 6 documents, ")
    found = files.load_datastore(tmp_path / "s", tokenizer=tokenizer)
    jax.tree.map(np.testing.assert_array_equal, found, built(folder, tokenizer))
    assert files.describe_datastore(tmp_path / "s")["sources"] == ["a.txt", "b.jsonl", "c.npy"]


def test_the_command_answers_in_json(run, tmp_path):
    status, out, err = run("--json", "--sorted-length", "4")
    answer = json.loads(out)
    assert status == 0
    assert out.count("\n") == 1
    assert "wrote" not in err
    assert answer.pop("seconds") > 0
    assert answer.pop("bytes") == (tmp_path / "s").stat().st_size
    about = files.describe_datastore(tmp_path / "s")
    assert about["sorted_length"] == 4
    assert answer == {"file": str(tmp_path / "s"), **about}


def test_the_command_names_a_bad_argument(run, tmp_path):
    for args, where, status, named in [
        ((), {"names": ["none.txt"]}, 1, "none.txt does not exist"),
        (("--sorted-length", "0"), {}, 2, "sorted_length: must be"),
        (("--tokenizer", "nothing"), {}, 2, "no model 'nothing'"),
        ((), {"out": tmp_path}, 2, f"path: {tmp_path} is a folder"),
    ]:
        found, out, err = run(*args, **where)
        assert (found, out) == (status, "")
        assert named in err.splitlines()[-1]
        assert err.splitlines()[-1].startswith("error: ")


def test_a_disk_that_gives_out_leaves_no_file(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["specjax.io.datastore"], "save_file", fail)
    status, out, _ = run()
    assert (status, out) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_ten_million_tokens_are_sorted_and_found():
    draw, vocab_size, size = np.random.default_rng(0), 49_152, 10_000_000
    phrases = [draw.zipf(1.3, n) % vocab_size for n in draw.integers(3, 40, 20_000)]
    chosen = np.minimum(draw.zipf(1.2, size // 10), len(phrases)) - 1
    tokens = np.concatenate([[*phrases[i], *draw.zipf(1.2, 3) % vocab_size] for i in chosen])[:size]
    store = datastore.build(np.split(tokens, range(1000, size, 1000)), vocab_size=vocab_size)
    assert store.tokens.shape[0] == size + size // 1000
    stored = np.asarray(store.tokens)
    rows = np.asarray([tokens[at : at + L] for at in draw.integers(0, size - L, 60)], np.int32)
    found = look_up(store, jnp.asarray(rows), jnp.full(60, L, jnp.int32))
    for row, *of_row in list(zip(rows, *map(np.asarray, found), strict=True))[:8]:
        for m, (after, valid, count) in enumerate(zip(*of_row, strict=True), 1):
            places = places_of(stored, row[L - m :])
            assert count == len(places) > 0
            every = np.append(stored, [-1] * K)[places[:, None] + m + np.arange(K)]
            every[(every == -1).cumsum(1) > 0] = -1
            some = np.where(valid, after, -1)[: min(count, R)]
            assert (some[:, None] == every).all(2).any(1).all()


def places_of(tokens, pattern):
    """Where a pattern stands, token by token."""
    size = len(tokens) - len(pattern) + 1
    here = np.ones(size, bool)
    for ahead, token in enumerate(pattern):
        here &= tokens[ahead : ahead + size] == token
    return np.flatnonzero(here)
