"""Peers decode the very weights that we do: same tokens, drafted or not, and exactly so many."""

import sys

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization

import specjax
from specjax.bench.peers import PEERS, Peer, load_peer
from specjax.bench.peers.float32_gguf import write_float32
from specjax.io.gguf import GGUFCheckpoint
from specjax.io.load import from_checkpoint, open_checkpoint

WIDTH, INNER, HEADS, KV_HEADS, VOCAB, LAYERS = 32, 64, 4, 2, 96, 2
PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5]
NUM = 60


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A random llama in a GGUF file, some of it in eight bits, as a checkpoint."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(256)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([chr(ord("!") + i) for i in range(VOCAB - 2)] + ["Ġ", "Ġ!"])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    writer.add_token_merges(["Ġ !"])
    writer.add_eos_token_id(3)
    for name, (kind, shape) in tensors().items():
        values = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
        values = values if len(shape) > 1 else 1 + values / 8
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path)


def tensors():
    """Name: type and shape of what a llama has."""
    kv_width = WIDTH // HEADS * KV_HEADS
    whole, eighth, half = Quantization.F32, Quantization.Q8_0, Quantization.F16
    layer = {
        "attn_norm": (whole, (WIDTH,)),
        "attn_q": (eighth, (WIDTH, WIDTH)),
        "attn_k": (eighth, (kv_width, WIDTH)),
        "attn_v": (half, (kv_width, WIDTH)),
        "attn_output": (eighth, (WIDTH, WIDTH)),
        "ffn_norm": (whole, (WIDTH,)),
        "ffn_gate": (eighth, (INNER, WIDTH)),
        "ffn_up": (Quantization.Q4_0, (INNER, WIDTH)),
        "ffn_down": (Quantization.BF16, (WIDTH, INNER)),
    }
    top = {"token_embd": (eighth, (VOCAB, WIDTH)), "output_norm": (whole, (WIDTH,))}
    top["output"] = (half, (VOCAB, WIDTH))
    layers = {f"blk.{i}.{name}": entry for i in range(LAYERS) for name, entry in layer.items()}
    return {f"{name}.weight": entry for name, entry in (top | layers).items()}


@pytest.fixture(scope="module")
def ours(small):
    return greedy(from_checkpoint(small), PROMPT, NUM)


def greedy(target, prompt, num):
    result = specjax.Decoder(target).generate(prompt, max_new_tokens=num, stop_token_ids=[])
    return result.tokens[0]


def load(name, checkpoint, **settings):
    pytest.importorskip(PEERS[name][1])
    return load_peer(name, checkpoint, num_threads=1, **settings)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_decodes_our_tokens_drafted_or_not(name, small, ours):
    peer = load(name, small, max_length=128)
    assert isinstance(peer, Peer)
    assert peer.name == name
    for draft_length in (None, 1, 4, 40, None):
        assert peer.generate(PROMPT, NUM, draft_length) == ours


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_decodes_exactly_so_many_tokens_whatever_they_are(name, small, ours):
    peer = load(name, small, max_length=128)
    assert len(set(ours[:NUM])) > 4
    for num in (1, 2, 7):
        for draft_length in (None, 4):
            assert peer.generate(PROMPT, num, draft_length) == ours[:num]


@pytest.mark.parametrize("name", PEERS)
def test_a_stop_token_neither_ends_an_answer_nor_is_kept_out(name, small, ours, monkeypatch):
    """The model says that a token which comes early and again is the one to end with."""
    stop = max(ours[:10], key=ours.count)
    monkeypatch.setitem(small.config, "eos_token_id", stop)
    peer = load(name, small, max_length=128)
    for draft_length in (None, 4):
        assert peer.generate(PROMPT, NUM, draft_length) == ours


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_runs_on_as_many_threads_as_asked(name, num_threads, small):
    library = pytest.importorskip(PEERS[name][1])
    peer = load_peer(name, small, num_threads=num_threads)
    peer.generate(PROMPT, 2, None)
    if name == "transformers":
        found = {library.get_num_threads()}
    else:
        asked = (library.llama_n_threads, library.llama_n_threads_batch)
        found = {number(peer._llama.ctx) for number in asked}
    assert found == {num_threads}


def test_llama_cpp_refuses_what_does_not_fit_into_its_cache(small, ours):
    peer = load("llama-cpp", small, max_length=len(PROMPT) + 5)
    assert peer.generate(PROMPT, 5, 4) == ours[:5]
    with pytest.raises(ValueError, match=r"^prompt: 11 tokens and 6 new .* max_length 16"):
        peer.generate(PROMPT, 6, None)


def test_llama_cpp_wants_a_gguf_file():
    from specjax.bench.peers import llama_cpp_peer

    with pytest.raises(ValueError, match="^--peer llama-cpp: reads GGUF files only; give"):
        llama_cpp_peer.load(object(), num_threads=1, max_length=8)


@pytest.mark.parametrize("name", PEERS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(name, small, monkeypatch):
    _, package, extra = PEERS[name]
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"^--peer {name}: {package} cannot .*pip install 'specjax\[{extra}\]'"
    with pytest.raises(ValueError, match=message):
        load_peer(name, small, num_threads=1)


def test_wrong_arguments_are_refused(small):
    with pytest.raises(ValueError, match=r"^--peer: there is no 'vllm'; known are transformers, l"):
        load_peer("vllm", small, num_threads=1)
    with pytest.raises(ValueError, match="^num_threads: must be positive, got 0"):
        load_peer("transformers", small, num_threads=0)


def test_a_file_in_float32_holds_the_same_model(small, tmp_path):
    path = tmp_path / "float32.gguf"
    write_float32(small.path, path)
    again = GGUFCheckpoint(path)
    kinds = {tensor.tensor_type for tensor in gguf.GGUFReader(path).tensors}
    assert kinds == {Quantization.F32}
    assert again.config == small.config
    assert again.tokenizer() == small.tokenizer()
    assert again.metadata.keys() == small.metadata.keys()
    assert list(again.names()) == list(small.names())
    for name in small.names():
        np.testing.assert_array_equal(again.read(name), small.read(name).astype(np.float32))


NEAR = 1e-4
"""Two tokens whose log-probabilities are this close may change places in another program."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_decodes_the_tokens_of_a_real_model(name):
    try:
        checkpoint = open_checkpoint("smollm2-135m-instruct")
    except OSError as error:
        pytest.skip(f"the model cannot be had here: {error}")
    peer = load(name, checkpoint)
    target = from_checkpoint(checkpoint)
    decoder = specjax.Decoder(target)
    chats = [[{"role": "user", "content": text}] for text in ("Repeat: one two one two.", "Hi")]
    for prompt in decoder.encode(chats):
        ours = greedy(target, prompt, 64)
        for draft_length in (None, 4):
            theirs = peer.generate(prompt, 64, draft_length)
            assert len(theirs) == 64
            if theirs != ours:
                at = next(
                    i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]
                )
                mine, other = (decoder.score(prompt, x[: at + 1])[-1] for x in (ours, theirs))
                assert abs(mine - other) < NEAR
