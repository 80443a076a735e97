"""A plan as text: short tables, with units."""

from __future__ import annotations

from specjax.columns import table
from specjax.models import Config
from specjax.plan import predict
from specjax.plan.chips import Chip
from specjax.plan.predict import Gain
from specjax.plan.report import Plan
from specjax.plan.setup import Setup

MEMORY_NAMES = {
    "weights": "target weights",
    "cache": "target cache",
    "draft_weights": "draft weights",
    "draft_cache": "draft cache",
    "scratch": "target cache beyond the context",
    "draft_scratch": "draft cache beyond the context",
    "draft_probs": "draft probabilities",
    "working": "working memory",
}


def lines(plan: Plan) -> list[str]:
    """The whole report."""
    parts = [_question(plan), _memory(plan), _passes(plan), _speedups(plan)]
    return [line for part in parts for line in (*part, "")][:-1]


def gigabytes(size: float) -> str:
    """Bytes in GB, to the MB, or to the kB where that would be nothing.

    >>> gigabytes(8_989_458_432), gigabytes(24_576)
    ('8.989 GB', '0.000025 GB')
    """
    return f"{size / 1e9:.3f} GB" if abs(size) >= 1e6 or not size else f"{size / 1e9:.6f} GB"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits.

    >>> duration(0.01294), duration(0.000042), duration(2.5)
    ('12.94 ms', '0.042 ms', '2.50 s')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e3:.3f} ms"


def _question(plan: Plan) -> list[str]:
    setup = plan.setup
    data, model = setup.mesh_shape
    return [
        f"target   {_model(setup.target)}",
        f"drafter  {_drafter(setup)}",
        f"on       {setup.machine.num_devices} x {_chip(setup)}, mesh {data} x {model} "
        f"(data x model)",
        f"rows     {setup.batch}, of {setup.context} tokens, {setup.prompt_length} of them prompt; "
        f"{setup.dtype}",
        f"basis    {_basis(plan)}",
    ]


def _basis(plan: Plan) -> str:
    if plan.compiled is not None:
        seconds = f" in {plan.compiled.whole.seconds:.0f} s" if plan.compiled.whole else ""
        return f"compiled for this topology{seconds}; times are predicted"
    if plan.setup.machine.is_tpu:
        return "predicted, not compiled"
    return "predicted; only for TPUs can programs be compiled without having one"


def _model(config: Config) -> str:
    sparse = config.experts
    experts = f", {sparse.num_chosen} of {sparse.num} experts" if sparse else ""
    return (
        f"{config.num_layers} layers of {config.hidden_size}, {config.num_kv_heads} key heads, "
        f"{config.vocab_size} tokens{experts}"
    )


def _drafter(setup: Setup) -> str:
    if setup.drafter is None:
        return f"n-gram, K = {setup.draft_length}" if setup.draft_length else "none"
    return f"{_model(setup.drafter)}, {setup.placement}, K = {setup.draft_length}"


def _chip(setup: Setup) -> str:
    chip: Chip = setup.machine.chip
    return (
        f"{chip.name} ({chip.memory / 1e9:.1f} GB at {chip.bandwidth / 1e9:.0f} GB/s, "
        f"{chip.peak(setup.dtype) / 1e12:.0f} TFLOP/s; {chip.source})"
    )


def _memory(plan: Plan) -> list[str]:
    kind = "compiled" if plan.compiled else "estimated"
    rows = [
        [f"{what} ({kind})" if name == "working" else what, gigabytes(size)]
        for name, what in MEMORY_NAMES.items()
        if (size := getattr(plan.memory, name)) or name == "working"
    ]
    spare = plan.available - plan.required
    verdict = f"fits, with {gigabytes(spare)} to spare" if plan.fits else "does NOT fit: "
    if not plan.fits:
        verdict += f"{gigabytes(-spare)} too much"
    largest = plan.largest
    return [
        "memory per device",
        *table([*rows, ["required", gigabytes(plan.required)],
                ["available", gigabytes(plan.available)]]),
        verdict,
        f"grows with K: {gigabytes(plan.by_draft_length[0])} at K = 1, "
        f"{gigabytes(plan.by_draft_length[-1])} at K = {predict.LENGTHS[-1]}",
        f"largest batch: {largest['speculative']} rows, {largest['plain']} without drafter",
    ]  # fmt: skip


def _passes(plan: Plan) -> list[str]:
    ridge = plan.setup.machine.chip.ridge(plan.setup.dtype)
    head = ["pass", "GB", "of cache", "Gop", "op/byte", "time", "bound by"]
    rows = [
        [
            name,
            f"{one.cost.bytes / 1e9:.3f}",
            f"{one.cost.cache / 1e9:.3f}",
            f"{one.cost.operations / 1e9:.1f}",
            f"{one.cost.intensity:.1f}",
            duration(one.seconds),
            one.bound,
        ]
        for name, one in plan.passes.items()
    ]
    found = [
        f"a device's work, caches full (the chip's ridge is at {ridge:.0f} op/byte)",
        *table([head, *rows]),
        f"time to first token: {duration(predict.first_token(plan.setup))}",
    ]
    if plan.expert_bytes is not None:
        *read, held = plan.expert_bytes.items()
        parts = ", ".join(f"{gigabytes(size)} a {name}" for name, size in read)
        found.append(f"experts read: {parts}, of {gigabytes(held[1])}")
    if plan.setup.machine.num_devices > 1:
        found += _exchanges(plan)
    return found


def _exchanges(plan: Plan) -> list[str]:
    found = plan.exchanges
    lines = [
        f"exchanges between devices: {found['per_layer']:.1f} a layer, "
        f"{found['per_pass']:.0f} a pass of the target"
    ]
    for part, kinds in (found["compiled"] or {}).items():
        if kinds:
            counts = ", ".join(f"{num} {kind}" for kind, num in kinds.items())
            each = sum(kinds.values()) / plan.setup.target.num_layers
            layers = f" ({each:.1f} a layer)" if part == "verify" else ""
            lines.append(f"  compiled, {part}: {counts}{layers}")
    return lines


def _speedups(plan: Plan) -> list[str]:
    head = ["acceptance", *(f"K={k}" for k in predict.LENGTHS), "ceiling", "best K", "pays for"]
    rows = [
        [
            f"{gain.rate:.1f}",
            *(f"{x:.2f}" for x in gain.speedups),
            f"{predict.ceiling(gain.rate):.1f}",
            str(gain.best_length or "none"),
            pays_for(gain),
        ]
        for gain in plan.gains
    ]
    costs = predict.round_costs(plan.setup, [max(plan.setup.draft_length, 1)])[0]
    free = "" if plan.setup.drafter else ", of drafts that cost nothing"
    return [
        f"expected speedup over plain decoding{free}",
        *table([head, *rows]),
        f"at K = {costs.draft_length} a draft token costs {costs.draft_cost:.3f} plain steps, "
        f"a verification {costs.pass_cost:.3f}",
        f"times are at the chip's peaks, a machine's are longer; rows: up to {predict.MOST_ROWS}",
    ]


def pays_for(gain: Gain) -> str:
    """For how many rows the best draft length pays.

    >>> [pays_for(Gain(0.8, (), *rows)) for rows in [(1, None), (1, 40), (6, None), (None, None)]]
    ['any rows', '1-39 rows', '6+ rows', 'no rows']
    """
    if gain.pays_from is None:
        return "no rows"
    if gain.stops_at is not None:
        return f"{gain.pays_from}-{gain.stops_at - 1} rows"
    return "any rows" if gain.pays_from == 1 else f"{gain.pays_from}+ rows"
