"""SmolLM2-135M itself: the same tokens as transformers, and as plain sampling, however drafted.

The slow tests take their prompts from ``--prompts FILE.jsonl`` where it is given.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import load, loop
from specjax.drafters import DraftModel, NGram, Plain
from specjax.models import Config, DecoderLM, LayerKind, random_weights
from specjax.models.rope import Rope
from specjax.testing.statistics import decode, sampling_values
from specjax.verify import Block, Coupled, Token

NEAR = 1e-4
"""Two logits closer than this may change places between passes of different widths."""

QUESTIONS = (
    "Repeat this sentence three times: a small model drafts and a large one checks.",
    "Write the numbers from one to twenty in words.",
    "Translate to French: the weather is fine and the train is late.",
    "What is the capital of Japan, and what is it known for?",
    "Fix the spelling: Ths sentense has sevral erors in it.",
    "Summarise in one line: rivers carry water from the mountains to the sea.",
    "Give me a JSON object with the fields name, age and city.",
    "Why is the sky blue?",
    "List five animals that live in the sea.",
    "Write a Python function that adds two numbers.",
    "Explain what a hash table is to a child.",
    "Complete: roses are red, violets are",
    "How many days are there in a leap year?",
    "Rewrite in the past tense: I go to school and meet my friends.",
    "Write a haiku about snow.",
    "What is 12 times 12?",
    "Name three rivers in Europe and the countries they flow through.",
    "Write an invitation to a birthday party.",
    "What is the difference between speed and velocity?",
    "Describe how to make tea.",
)


@pytest.fixture(scope="module")
def target():
    try:
        model = load("smollm2-135m-instruct")
    except OSError as error:
        pytest.skip(f"the model cannot be had here: {error}")
    with jax.default_matmul_precision("highest"):
        yield model


@pytest.fixture(scope="module")
def prompts(target, request):
    """Twenty prompts of at most 128 tokens, in the chat template."""
    path = request.config.getoption("--prompts")
    questions = QUESTIONS
    if path is not None:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        questions = [json.loads(line)["turns"][0] for line in lines]
    rows = [target.tokenizer.apply_chat_template([user(q)]) for q in questions]
    rows = [row for row in rows if len(row) <= 128]
    return rows[:: max(1, len(rows) // 20)][:20]


def user(text):
    return {"role": "user", "content": text}


def continuations(state, prompts, num):
    tokens = np.asarray(state.context.tokens)
    return [row[len(p) : len(p) + num] for row, p in zip(tokens, prompts, strict=True)]


def run(target, drafter, verifier, prompts, num, temperature=0.0):
    values = sampling_values(len(prompts), temperature)
    program = loop.Program(target, drafter, verifier)
    return continuations(decode(program, prompts, num, values=values, chunk=32), prompts, num)


def logits_after(target, tokens):
    """The target's logits after a text, from one causal pass."""
    ids = jnp.asarray([tokens], jnp.int32)
    cache = target.init_cache(1, len(tokens))
    count = jnp.asarray([len(tokens)], jnp.int32)
    hidden, _, _ = target.extend(ids, 0 * count, cache, count=count)
    return np.asarray(target.unembed(hidden[:, -1]))[0]


def differences(target, prompts, found, expected):
    """Rows that part from what was expected, where the best two logits are not a near tie."""
    real = []
    for row, (prompt, ours, theirs) in enumerate(zip(prompts, found, expected, strict=True)):
        if (ours == theirs).all():
            continue
        at = int((ours != theirs).argmax())
        second, best = np.sort(logits_after(target, [*prompt, *theirs[:at]]))[-2:]
        print(f"row {row} parts at token {at}: the best two logits differ by {best - second:.1e}")
        if best - second >= NEAR:
            real.append((row, at, float(best - second)))
    return real


def test_a_sample_is_the_same_however_it_is_drafted(target):
    """What CI runs of the tests below: greedy and coupled rows, in parity mode, bitwise."""
    rows = [target.tokenizer.apply_chat_template([user(q)]) for q in QUESTIONS[:3]]
    values = sampling_values(3).replace(temperature=jnp.asarray([0.0, 0.0, 1.0], jnp.float32))
    texts = []
    for drafter in (Plain(4), NGram(4)):
        state = decode(loop.Program(target, drafter, Coupled()), rows, 24, values=values, chunk=32)
        texts.append(np.stack(continuations(state, rows, 24)))
    np.testing.assert_array_equal(*texts)


@pytest.fixture(scope="module")
def theirs(target, prompts):
    """64 greedy tokens of transformers and torch for each prompt, from the same weights."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    from specjax.io.load import open_checkpoint

    checkpoint = open_checkpoint("smollm2-135m-instruct")
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval()
    tensors = {name: torch.tensor(checkpoint.read(name)) for name in checkpoint.names()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    texts = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=64,
            min_new_tokens=64,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        texts.append(out[0, len(prompt) :].numpy())
    return texts


@pytest.mark.slow
def test_plain_greedy_tokens_are_those_of_transformers(target, prompts, theirs):
    assert len(prompts) == 20
    ours = run(target, Plain(), Coupled(), prompts, 64)
    assert differences(target, prompts, ours, theirs) == []


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
@pytest.mark.parametrize("draft_length", range(1, 9))
def test_speculative_greedy_tokens_are_those_of_transformers(
    target, prompts, theirs, draft_length, verifier
):
    ours = run(target, NGram(draft_length), verifier, prompts, 64)
    assert differences(target, prompts, ours, theirs) == []


def random_draft(target):
    config = Config(
        vocab_size=target.vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        layers=(LayerKind(Rope(16)),),
        tied=True,
    )
    return DecoderLM(random_weights(config, jax.random.key(0)), config)


@pytest.mark.slow
@pytest.mark.parametrize("draft_length", [1, 4, 7])
def test_coupled_tokens_are_those_of_plain_sampling(target, prompts, draft_length):
    """Temperature 1, 64 tokens, parity mode: bitwise, for drafters that hit and that miss."""
    plain = run(target, Plain(draft_length), Coupled(), prompts, 64, temperature=1.0)
    for drafter in (
        NGram(draft_length),
        DraftModel(random_draft(target), draft_length),
        DraftModel(target, draft_length),
    ):
        ours = run(target, drafter, Coupled(), prompts, 64, temperature=1.0)
        np.testing.assert_array_equal(np.stack(ours), np.stack(plain))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_drafter_is_accepted_for_200_rounds(target, temperature):
    """From a one-token prompt, too. A near tie between a pass over one and over five is excused."""
    prompts = [[504], target.tokenizer.apply_chat_template([user(QUESTIONS[0])])]
    program = loop.Program(target, DraftModel(target, 4), Coupled())
    values = sampling_values(2, temperature)
    state = decode(program, prompts, 1000, values=values, chunk=32)
    outcomes = np.asarray(state.stats.outcomes).sum(0)
    cut_short = int(outcomes.sum() - outcomes[-1, -1])
    print(f"temperature {temperature}: {cut_short} of {outcomes.sum()} rounds were not fully kept")
    assert cut_short <= 4


@pytest.mark.slow
def test_a_row_alone_equals_the_row_in_a_batch_of_eight(target, prompts):
    """Greedy, ragged; between batch sizes only near ties are excused."""
    batch = prompts[:8]
    together = run(target, NGram(4), Coupled(), batch, 32)
    for row in (0, 3, 7):
        alone = run(target, NGram(4), Coupled(), [batch[row]], 32)
        assert differences(target, [batch[row]], [together[row]], alone) == []
