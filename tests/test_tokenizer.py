"""The tokenizer: equal to transformers' on files, and built from GGUF metadata."""

import json

import jax
import jax.numpy as jnp
import pytest
import tokenizers
from flax import struct
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaTokenizer

from specjax.io import Tokenizer
from specjax.io.gguf_tokenizer import merges_from_scores, tokenizer_from_metadata

TEXTS = [
    "The capital of France is Paris.",
    "  two leading spaces, and 12345 digits\n\n\tthen a tab ",
    "It's 7 o'clock; we'll go, they've said.",
    "Ünïcödé, Ελληνικά, русский, עברית, हिन्दी, 中文字符, 日本語",
    "emoji 🤖🏳️‍🌈👩‍👩‍👧‍👦 and a flag 🇫🇷",
    "def f(x):\n    return x ** 2  # squares\n",
    "a literal replacement \ufffd and a null \x00 in between",
    "",
    " ",
]

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [{"role": "user", "content": "Hi, 🤖!"}, {"role": "assistant", "content": "Hello."}]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small byte-level tokenizer as Hugging Face stores it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True},
        "bos_token": "<|im_start|>",
        "add_bos_token": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def sentencepiece():
    """A SentencePiece tokenizer as GGUF stores it: pieces with scores, bytes, special tokens."""
    words = [
        "▁the",
        "▁capital",
        "capital",
        "▁of",
        "he",
        "▁t",
        "▁c",
        "ap",
        "it",
        "al",
        "ap",
        "capit",
    ]
    letters = sorted({c for text in TEXTS[:3] for c in text.replace(" ", "▁")})
    pieces = list(dict.fromkeys([*words, "▁▁", "▁ca", "▁o", *letters]))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259
        + [-float(len(p) < 2) - i for i, p in enumerate(pieces)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_encodes_and_decodes_as_transformers(folder, tokenizer):
    reference = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"]
        assert tokenizer.decode(ids) == text == reference.decode(ids, skip_special_tokens=True)
    assert tokenizer.vocabulary == reference.get_vocab()


def test_renders_chats_as_transformers(folder, tokenizer):
    reference = AutoTokenizer.from_pretrained(folder)
    text = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render_chat(CHAT) == text
    ids = tokenizer.apply_chat_template(CHAT)
    assert ids == reference(text, add_special_tokens=False)["input_ids"]
    assert ids[0] == tokenizer.vocabulary["<|im_start|>"]


def test_special_tokens_do_not_show(tokenizer):
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "a"


def test_stop_ids_come_from_every_file(folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    # 0 is eos_token, 2 the end of turn that the template writes.
    assert Tokenizer.from_folder(tmp_path).stop_ids == (0, 2, 7, 9)


def test_a_template_file_comes_first(folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "Hi, 🤖!<|endoftext|>"


def test_the_default_of_several_templates_is_taken(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    templates = [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "yes"


def test_a_template_cannot_reach_the_interpreter(tokenizer):
    evil = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ValueError, match="chat template refuses"):
        Tokenizer(tokenizer.backend, chat_template=evil).render_chat(CHAT)


def test_chats_that_cannot_be_rendered(tokenizer):
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(tokenizer.backend).apply_chat_template(CHAT)
    with pytest.raises(ValueError, match="messages is empty"):
        tokenizer.apply_chat_template([])
    picky = "{{ raise_exception('only users may speak') }}"
    with pytest.raises(ValueError, match="only users may speak"):
        Tokenizer(tokenizer.backend, chat_template=picky).render_chat(CHAT)


def test_a_broken_file_is_named(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:-9])
    with pytest.raises(ValueError, match=r"tokenizer\.json is corrupt"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer.from_folder(tmp_path)


def test_equal_tokenizers_do_not_retrace(folder, tokenizer):
    @struct.dataclass
    class Model:
        weight: jax.Array
        tokenizer: Tokenizer = struct.field(pytree_node=False)

    traces = []

    @jax.jit
    def call(model):
        traces.append(model)
        return model.weight + 1

    again = Tokenizer.from_folder(folder)
    assert again is not tokenizer
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)
    for one in (tokenizer, again):
        call(Model(jnp.zeros(2, jnp.int32), one))
    assert len(traces) == 1


def test_another_mapping_is_another_tokenizer(folder, tokenizer):
    backend = tokenizer.backend
    assert tokenizer != Tokenizer(backend, chat_template=TEMPLATE + " ")
    assert Tokenizer(backend) != Tokenizer(backend, stop_ids=[1])
    other = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    other.add_tokens(["specjax"])
    assert Tokenizer(other) != Tokenizer(backend)


def gpt2_metadata(folder, **changes):
    """What a GGUF file would say about the small byte-level tokenizer."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    } | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def test_gguf_metadata_make_the_same_byte_level_tokenizer(folder, tokenizer):
    built = tokenizer_from_metadata(gpt2_metadata(folder), "m.gguf")
    for text in TEXTS:
        assert built.encode(text) == tokenizer.encode(text)
        assert built.decode(built.encode(text)) == text
    assert built.apply_chat_template(CHAT) == tokenizer.apply_chat_template(CHAT)
    assert built.vocabulary == tokenizer.vocabulary
    assert built.stop_ids == (2,)


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "Ċ", "Ċ", "x"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ċ", "Ċ", "x"]),
        ("starcoder", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ċ", "Ċ", "x"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "ĊĊ", "x"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "x"]),
    ],
)
def test_pre_tokenizers_cut_words_as_their_models_expect(folder, pre, words):
    built = tokenizer_from_metadata(gpt2_metadata(folder, pre=pre), "m.gguf")
    pieces = built.backend.pre_tokenizer.pre_tokenize_str("It's 12345\n\nx")
    assert [piece for piece, _ in pieces] == words


def test_begin_and_end_are_added_where_the_file_says_so(folder):
    plain = tokenizer_from_metadata(gpt2_metadata(folder, bos_token_id=1), "m.gguf")
    changes = {"bos_token_id": 1, "add_bos_token": True, "add_eos_token": True}
    built = tokenizer_from_metadata(gpt2_metadata(folder, **changes), "m.gguf")
    ids = plain.encode("a")
    assert built.encode("a") == [1, *ids, 2]
    assert built.encode("a", add_special_tokens=False) == ids
    assert built.apply_chat_template(CHAT) == plain.apply_chat_template(CHAT)


def test_unsupported_gguf_tokenizers_are_named(folder):
    with pytest.raises(ValueError, match="unsupported tokenizer model 't5'"):
        tokenizer_from_metadata(gpt2_metadata(folder, model="t5"), "m.gguf")
    with pytest.raises(ValueError, match="unsupported pre-tokenizer 'falcon'"):
        tokenizer_from_metadata(gpt2_metadata(folder, pre="falcon"), "m.gguf")


def test_broken_gguf_tokenizers_are_refused(folder):
    metadata = gpt2_metadata(folder)
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ValueError, match=r"incomplete or corrupt .*tokenizer\.ggml\.merges"):
        tokenizer_from_metadata(metadata, "m.gguf")
    with pytest.raises(ValueError, match="merge 'a Q Q' is not within the vocabulary"):
        tokenizer_from_metadata(gpt2_metadata(folder, merges=["a Q Q"]), "m.gguf")
    with pytest.raises(ValueError, match="incomplete or corrupt .*IndexError"):
        tokenizer_from_metadata(gpt2_metadata(folder, bos_token_id=4000), "m.gguf")


def test_sentencepiece_equals_transformers(sentencepiece):
    built = tokenizer_from_metadata(sentencepiece, "m.gguf")
    tokens, scores = sentencepiece["tokenizer.ggml.tokens"], sentencepiece["tokenizer.ggml.scores"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    reference = LlamaTokenizer(vocabulary, merges_from_scores(vocabulary, scores), legacy=True)
    for text in [*TEXTS, "the capital of", "  the  capital"]:
        ids = built.encode(text, add_special_tokens=False)
        assert built.decode(ids) == text
        # SentencePiece puts its space before a leading one too; transformers' class does not.
        if not text.startswith(" "):
            assert ids == reference(text, add_special_tokens=False)["input_ids"]
    assert built.backend.encode("  the", add_special_tokens=False).tokens == ["▁▁", "▁the"]
    assert built.encode("the")[0] == 1  # SentencePiece models begin with <s>
    assert built.stop_ids == (2,)
