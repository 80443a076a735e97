"""Tuning ranks drafters by what they cost and bring, and measures a machine once."""

import itertools
import json
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from flax import struct

import specjax
import specjax.tuning.autotune  # the module must not hide the function
from specjax.drafters import Chain, DraftModel, EarlyExit, Lookahead, NGram, Plain, Suffix, first_of
from specjax.testing import TableLM, tiny_lm
from specjax.tuning import costs as tuning_costs
from specjax.tuning import examples, saved
from specjax.tuning.costs import RoundCosts, measure
from specjax.tuning.families import families_of
from specjax.tuning.fingerprint import fingerprint, machine
from specjax.tuning.trials import reads_text_alone
from specjax.types import Draft

NEW = 45
"""Tokens that drafts of 2, 4 and 8, all kept, bring in whole rounds: 15, 9 and 5."""

ROUND = list(range(8)) * 2
"""Tokens 0 to 7 over and over: what a match promises comes."""


def each_pair_once(num):
    """A circle of ``num`` symbols in which each pair stands once (de Bruijn)."""
    walk, left = [0], {a: list(range(num)) for a in range(num)}
    circle = []
    while walk:
        if left[walk[-1]]:
            walk.append(left[walk[-1]].pop())
        else:
            circle.append(walk.pop())
    return circle[:-1]


PAIRS = [8 + symbol for symbol in each_pair_once(8)]
"""Tokens 8 to 15, no token ever followed by the same one twice: what a match promises is wrong."""


def table_lm():
    """Certain of what comes: 0 to 7 in turn, 8 to 15 as in PAIRS, from 16 on one up."""
    following = np.tile((np.arange(128) + 1) % 128, (128, 1))
    following[:, 7] = 0
    for i, pair in enumerate(itertools.pairwise(PAIRS + PAIRS[:1])):
        following[pair] = PAIRS[(i + 2) % len(PAIRS)]
    return TableLM(50.0 * jax.nn.one_hot(jnp.asarray(following), 128))


TARGET = table_lm()


class Clock:
    """Stands for ``time_passes``: a plain pass takes 2 s, and the times are counted."""

    def __init__(self, pass_cost, draft_cost=0.0):
        self.pass_cost, self.draft_cost = pass_cost, draft_cost
        self.asked = []

    def __call__(self, decoder, prompt, widths, repeats, settings):
        drafter = decoder.program.drafter
        self.asked.append((type(drafter).__name__, tuple(widths)))
        once = drafter.depth if drafter.samples else 1
        return 2 * self.draft_cost * once, [2 * self.pass_cost(num) for num in widths]


@pytest.fixture
def clock(monkeypatch):
    def install(*args):
        monkeypatch.setattr(tuning_costs, "time_passes", made := Clock(*args))
        return made

    return install


def tune(drafters, prompts=(ROUND,), **options):
    options = {"max_new_tokens": NEW, "cache": None, **options}
    return specjax.autotune(TARGET, drafters, prompts=list(prompts), **options)


def fixed(tuned):
    return {t.draft_length: t for t in tuned.trials if t.index is not None and not t.adaptive}


def test_cheap_wide_passes_make_long_drafts_win(clock):
    clock(lambda num: 1 + 0.05 * num, 0.5)
    tuned = tune([NGram])
    # 15, 9 and 5 rounds, each a search of half a pass and a pass over 2, 4 and 8 draft nodes.
    expected = {2: NEW / (15 * 1.6), 4: NEW / (9 * 1.7), 8: NEW / (5 * 1.9)}
    assert {k: t.speedup for k, t in fixed(tuned).items()} == pytest.approx(expected)
    assert [fixed(tuned)[k].tokens_per_pass for k in (2, 4, 8)] == [3, 5, 9]
    best = tuned.best
    assert best == tuned.trials[0]
    assert (best.name, best.index, best.draft_length) == ("NGram", 0, 8)
    assert tuned.drafter == NGram(8)
    assert fixed(tuned)[4].draft_cost == pytest.approx(0.5 / 4)
    assert fixed(tuned)[4].pass_cost == pytest.approx(1.2)
    assert fixed(tuned)[4].widths == (0, 4)


def test_costly_passes_make_short_drafts_and_then_none_win(clock):
    clock(lambda num: 1 + num * num / 16)
    # 45 / (15 * 1.25) = 2.4, 45 / (9 * 2) = 2.5, 45 / (5 * 5) = 1.8
    assert max(fixed(tune([NGram])).values(), key=lambda t: t.speedup).draft_length == 4
    clock(lambda num: 1 + 2 * num)
    tuned = tune([NGram])
    assert fixed(tuned)[2].speedup == pytest.approx(0.6)
    assert tuned.drafter is None
    assert tuned.trials[0] == tuned.best
    assert tuned.best.name == "plain"
    assert tuned.decoder().program.drafter.depth == 0


def test_a_drafter_that_never_matches_loses_to_plain_decoding(clock):
    clock(lambda num: 1.0, 0.01)
    tuned = tune([NGram], [range(20, 20 + len(ROUND))])
    # No round has a draft, so passes are plain, but every round searches.
    assert fixed(tuned)[8].speedup == pytest.approx(1 / 1.01)
    assert tuned.drafter is None
    assert tuned.reason.startswith("plain decoding, since no drafter gains 2%: NGram (number 0)")


def test_a_gain_within_the_margin_is_none(clock):
    # 45 / (15 * 2.9) = 1.034
    clock(lambda num: 1 + 0.95 * num)
    assert tune([NGram(2)]).drafter == NGram(2)
    assert tune([NGram(2)], margin=0.1).drafter is None


@pytest.mark.slow
def test_lengths_adapt_where_acceptance_varies(clock):
    clock(lambda num: 1 + 0.1 * num)
    tuned = tune([lambda k: NGram(k, max_ngram=1)], [ROUND, PAIRS], draft_lengths=(2, 8))
    # Of the second prompt no draft is kept: 45 rounds of 1.2 or 1.8 beside the first one's 15 or 5;
    # the last has room for one token and so no draft to judge.
    expected = {2: 90 / (59 * 1.2 + 1), 8: 90 / (49 * 1.8 + 1)}
    assert {k: t.speedup for k, t in fixed(tuned).items()} == pytest.approx(expected)
    assert tuned.best.adaptive
    assert tuned.best.speedup > max(expected.values())
    assert tuned.best.widths == (0, 2, 4, 8)
    policy = tuned.policy
    assert isinstance(policy, specjax.Adaptive)
    costs = [1, 1.2, 1.2, 1.4, 1.4, 1.8, 1.8, 1.8, 1.8]
    assert np.asarray(policy.pass_costs) == pytest.approx(costs)


@pytest.mark.parametrize("temperature", [0.0, 8.0])
def test_the_decoder_brings_what_was_predicted_and_says_what_plain_decoding_says(
    clock, temperature
):
    clock(lambda num: 1 + 0.01 * num)
    prompts = [ROUND, PAIRS]
    tuned = tune([Suffix(4, num_nodes=8)], prompts, temperature=temperature)
    settings = {"max_new_tokens": NEW, "temperature": temperature, "seed": 0}
    result = tuned.decoder().generate(prompts, **settings)
    assert result.tokens == specjax.Decoder(TARGET).generate(prompts, **settings).tokens
    assert result.metrics.mean_acceptance_length == pytest.approx(tuned.best.tokens_per_pass)
    assert tuned.drafter == Suffix(4, num_nodes=8)
    assert (tuned.best.name, tuned.best.num_nodes) == ("Suffix tree", 8)
    assert tuned.decoder(widths=[0, 1]).program.passes == (0, 1, 8)


@pytest.mark.slow
def test_a_model_is_run_and_each_of_its_tokens_costs(clock):
    clock(lambda num: 1.0, 0.1)
    tuned = tune([lambda k: DraftModel(TARGET, k)], draft_lengths=(2, 4))
    expected = {2: NEW / (15 * 1.2), 4: NEW / (9 * 1.4)}
    assert {k: t.speedup for k, t in fixed(tuned).items()} == pytest.approx(expected)
    assert fixed(tuned)[4].draft_cost == pytest.approx(0.1)


def test_what_listens_to_every_pass_is_charged_for_every_pass(clock):
    clock(lambda num: 1 + 0.01 * num)
    drafter = Lookahead(ngram=3, window=2, num_candidates=1)  # 6 nodes
    tuned = tune([drafter], [range(20, 36)])
    assert [t.adaptive for t in tuned.trials] == [False, False]
    trial = fixed(tuned)[2]
    assert trial.widths == (6,)
    assert trial.speedup == pytest.approx(trial.tokens_per_pass / 1.06)


def test_only_what_reads_text_alone_is_replayed():
    @struct.dataclass
    class Peeks(Chain):
        """Asks the target, which of a recording would be to look the answer up."""

        draft_length: int = struct.field(pytree_node=False, default=1)

        def propose(self, target, cache, state, context, draw, *, width):
            hidden, *_ = target.extend(
                context.newest(), context.length - 1, cache, count=context.length * 0 + 1
            )
            tokens = target.unembed(hidden).argmax(-1).astype(jnp.int32)
            return Draft(tokens, tokens * 0, tokens >= 0), state, cache

    model = tiny_lm(jax.random.key(0))
    assert reads_text_alone(first_of(NGram(2), Suffix(4, num_nodes=6)))
    for drafter in (Peeks(), Lookahead(), EarlyExit(1), DraftModel(model), first_of(Peeks())):
        assert not reads_text_alone(drafter)


def test_passes_are_timed_once_for_all_whose_layers_they_run(clock):
    asked = clock(lambda num: 1 + num, 0.25).asked
    target = tiny_lm(jax.random.key(0))
    drafters = [NGram, lambda k: Suffix(k, num_nodes=3 * k), EarlyExit(1, 5)]
    families = families_of(target, drafters, (2, 4))
    found = measure(target, families, [1, 2, 3], 1, {"max_new_tokens": 8})
    assert asked == [("Suffix", (0, 2, 4, 6, 8, 12)), ("NGram", (0,)), ("EarlyExit", (0, 2, 4, 5))]
    assert found[0].passes == found[1].passes == {n: 1 + n for n in (0, 2, 4, 6, 8, 12)}
    assert [cost.per_token for cost in found] == [False, False, True]
    assert [cost.draft for cost in found] == pytest.approx([0.25] * 3)
    assert RoundCosts.from_dict(json.loads(json.dumps(found[2].to_dict()))) == found[2]


def test_real_passes_are_timed_without_being_told_how():
    target = tiny_lm(jax.random.key(0))
    tuned = specjax.autotune(
        target, [NGram(2)], prompts=[[5, 6, 5, 6]], max_new_tokens=8, repeats=1, cache=None
    )
    (cost,) = tuned.costs
    assert cost.passes.keys() == {0, 2}
    assert cost.passes[0] == 1
    assert all(math.isfinite(t.speedup) and t.speedup > 0 for t in tuned.trials)


def test_a_result_is_measured_once_and_then_read(clock, tmp_path, monkeypatch):
    asked = clock(lambda num: 1 + 0.1 * num).asked
    options = {"prompts": [ROUND, PAIRS], "cache": tmp_path}
    drafter = NGram(8, max_ngram=1)
    first = tune([drafter], **options)
    assert len(asked) == 1
    monkeypatch.setattr("specjax.tuning.trials.replay", None)  # nor is anything decoded
    again = tune([drafter], **options)
    assert len(asked) == 1
    assert again.to_dict() == first.to_dict()
    assert (again.drafter, again.widths) == (first.drafter, first.widths)
    assert np.array_equal(again.policy.pass_costs, first.policy.pass_costs)
    assert tune([drafter], **options, margin=0.9).drafter is None  # the margin is not measured
    assert len(asked) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', "foreign", "no best"])
def test_a_file_that_is_not_right_is_measured_again(clock, tmp_path, caplog, content):
    asked = clock(lambda num: 1 + 0.1 * num).asked
    first = tune([NGram(2)], cache=tmp_path)
    (path,) = tmp_path.iterdir()
    right = path.read_text()
    if content == "foreign":
        content = json.dumps(json.loads(right) | {"key": "0" * 64})
    if content == "no best":
        content = right.replace('"index": 0', '"index": 7')
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        again = tune([NGram(2)], cache=tmp_path)
    assert str(path) in caplog.text
    assert len(asked) == 2
    assert again.to_dict() == first.to_dict()
    assert path.read_text() == right
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_that_cannot_be_written_loses_nothing(tmp_path, caplog, monkeypatch, clock):
    clock(lambda num: 1.1)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specjax.tuning.saved.tempfile.NamedTemporaryFile", full)
    with caplog.at_level(logging.WARNING):
        assert tune([NGram(2)], cache=tmp_path / "new").drafter == NGram(2)
    assert "the result is not kept" in caplog.text


def test_results_lie_where_models_do(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert saved.path_of(True, "a" * 64).parent == tmp_path / "specjax" / "autotune"
    assert saved.path_of(None, "a") is saved.path_of(False, "a") is None


def test_a_fingerprint_is_of_all_that_counts_and_of_nothing_else():
    def of(target, drafter):
        return fingerprint(machine=machine(target), target=target, drafters=[{2: drafter}])

    base = tiny_lm(jax.random.key(0))
    same = of(tiny_lm(jax.random.key(0)), NGram(2))
    assert of(base, NGram(2)) == same
    tokenizer = byte_tokenizer(["<e>"], [], "abc")
    assert of(base.replace(tokenizer=tokenizer), NGram(2)) == of(
        base.replace(tokenizer=byte_tokenizer(["<e>"], [], "abc")), NGram(2)
    )
    half = base.replace(weights=jax.tree.map(lambda x: x.astype(jnp.bfloat16), base.weights))
    others = [
        of(tiny_lm(jax.random.key(1)), NGram(2)),
        of(half, NGram(2)),
        of(tiny_lm(jax.random.key(0), hidden_size=16), NGram(2)),
        of(base, NGram(2, min_ngram=2)),
        of(base, Suffix(2)),
        of(base, DraftModel(base, 2)),
        of(base, DraftModel(tiny_lm(jax.random.key(1)), 2)),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_a_table_shows_every_candidate_and_the_verdict(clock):
    clock(lambda num: 1 + 0.05 * num)
    header, *rows, verdict = str(tune([NGram], draft_lengths=(2, 4))).splitlines()
    assert header.split()[:4] == ["drafter", "#", "K", "nodes"]
    assert len(rows) == 4
    assert rows[-1].split() == ["plain", "0", "0", "0", "1.00", "0.000", "1.00", "1.00"]
    assert verdict.startswith("NGram (number 0), ")
    assert verdict.endswith("4.17 times as fast as plain decoding")


def test_without_drafters_those_that_need_no_training_are_tried():
    families = families_of(TARGET, None, (4, 2, 4))
    assert [family.name for family in families] == ["NGram", "Suffix", "Suffix tree"]
    assert [[*family.members] for family in families] == [[2, 4]] * 3


def test_without_prompts_texts_of_our_own_are_decoded():
    text = "".join(examples.TEXTS)
    tokenizer = byte_tokenizer(["<e>"], [], "".join(sorted(set(text))))
    target = tiny_lm(jax.random.key(0)).replace(tokenizer=tokenizer)
    assert examples.default_prompts(target) == list(examples.TEXTS)
    tokenizer.chat_template = "{{ messages }}"
    assert [chat[0]["content"] for chat in examples.default_prompts(target)] == [*examples.TEXTS]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafters": []}, "drafters: is empty"),
        ({"drafters": [NGram(2), 3]}, "drafters: number 1 must be a drafter"),
        ({"drafters": [Plain()]}, "drafters: number 0 drafts nothing"),
        ({"drafters": [EarlyExit(3)]}, "drafters: number 0 cannot be used: num_layers: "),
        ({"draft_lengths": (4, 0)}, "draft_lengths: must be ints of at least 1"),
        ({"draft_lengths": ()}, "draft_lengths: "),
        ({"prompts": None}, "prompts: the target has no tokenizer"),
        ({"prompts": []}, "prompts: is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens: must be an int of at least 1"),
        ({"temperature": -1.0}, "temperature: must be at least 0"),
        ({"repeats": 0}, "repeats: must be"),
        ({"margin": 1.5}, "margin: must be"),
        ({"cache": __file__}, "cache: .* is a file"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_measured(clock, changes, message):
    asked = clock(lambda num: 1.0).asked
    arguments = {"drafters": [NGram(2)], "prompts": [[1, 2]], "cache": None} | changes
    with pytest.raises(ValueError, match=f"^{message}"):
        specjax.autotune(TARGET, **arguments)
    assert not asked
