"""A plan: what was asked, what it takes of memory and time, what speculation brings; as JSON."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

from specjax.models import Config
from specjax.plan import predict
from specjax.plan.facts import Facts
from specjax.plan.memory import Memory, largest_batch, memory_of, target_shard
from specjax.plan.predict import Gain, Timed
from specjax.plan.setup import Setup


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a setup before it runs. ``compiled`` is None where nothing was compiled."""

    setup: Setup
    compiled: Facts | None = None

    @cached_property
    def memory(self) -> Memory:
        """Bytes of one device, by what they are of; ``working`` is whatever else is needed."""
        estimate = memory_of(self.setup)
        if self.compiled is None:
            return estimate
        known = estimate.total - estimate.working
        return dataclasses.replace(estimate, working=max(self.compiled.required - known, 0))

    @property
    def required(self) -> float:
        """Bytes that a device needs: the compiler's figure where there is one."""
        return self.compiled.required if self.compiled else self.memory.total

    @property
    def available(self) -> float:
        """Bytes that a device has."""
        return self.compiled.available if self.compiled else self.setup.machine.chip.memory

    @property
    def fits(self) -> bool:
        """Whether the program fits: as the compiler says, or as estimated."""
        return self.compiled.fits if self.compiled else self.memory.total <= self.available

    @cached_property
    def by_draft_length(self) -> list[float]:
        """Bytes of scratch slots and draft probabilities, for each of ``LENGTHS``."""
        lengths = predict.LENGTHS
        return [memory_of(self.setup.but(draft_length=k)).by_draft_length for k in lengths]

    @cached_property
    def largest(self) -> dict[str, int]:
        """The most rows that fit, with the draft model or drafter and without."""
        needed, estimate = self.memory.working, memory_of(self.setup).working
        found = {"share": min(needed / estimate, 1.0), "beyond": max(needed - estimate, 0.0)}
        alone = self.setup.but(drafter=None, draft_length=0, placement="sharded")
        return {
            "speculative": largest_batch(self.setup, **found),
            "plain": largest_batch(alone, **found),
        }

    @cached_property
    def passes(self) -> dict[str, Timed]:
        """What each kind of pass costs one device."""
        setup = self.setup
        found = {"plain step": predict.target_pass(setup, 1)}
        if setup.drafter is not None:
            found["draft step"] = predict.draft_pass(setup)
        if setup.draft_length:
            found["verification"] = predict.target_pass(setup, setup.draft_length + 1)
        found["prefill"] = predict.prefill(setup)
        if setup.drafter is not None:
            found["draft prefill"] = predict.catching_up(setup)
        return found

    @cached_property
    def gains(self) -> list[Gain]:
        """What speculation brings for each acceptance rate."""
        return predict.gains(self.setup)

    @cached_property
    def expert_bytes(self) -> dict[str, float] | None:
        """Bytes of experts that a pass reads on one device; None for a dense target."""
        if self.setup.target.experts is None:
            return None
        shard = target_shard(self.setup)
        names = [name for name in ("plain step", "verification") if name in self.passes]
        read = {name: self.passes[name].cost.experts for name in names}
        return {**read, "all": shard.in_experts * shard.itemsize}

    @cached_property
    def exchanges(self) -> dict[str, Any]:
        """Exchanges between devices: a layer's and a whole pass's, and those that were compiled."""
        in_layers = target_shard(self.setup).sums_in_layers
        whole = None if self.compiled is None else self.compiled.whole
        return {
            "per_layer": in_layers / self.setup.target.num_layers,
            "per_pass": self.passes["plain step"].cost.exchanges,
            "compiled": None if whole is None else whole.exchanges,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON. Bytes and seconds are of one device."""
        setup, chip = self.setup, self.setup.machine.chip
        memory = dataclasses.asdict(self.memory)
        return {
            "fits": self.fits,
            "basis": "compiled" if self.compiled else "estimated",
            "setup": setup_dict(setup),
            "chip": {
                "name": chip.name,
                "memory": chip.memory,
                "bandwidth": chip.bandwidth,
                "operations": chip.peak(setup.dtype),
                "ridge": chip.ridge(setup.dtype),
                "link_bandwidth": chip.link_bandwidth,
                "source": chip.source,
            },
            "memory": {
                **memory,
                "required": self.required,
                "available": self.available,
                "spare": self.available - self.required,
                "by_draft_length": self.by_draft_length,
            },
            "largest_batch": self.largest,
            "passes": {name: self.pass_dict(one) for name, one in self.passes.items()},
            "time_to_first_token": predict.first_token(setup),
            "exchanges": self.exchanges,
            "expert_bytes": self.expert_bytes,
            "draft_lengths": list(predict.LENGTHS),
            "costs": [dataclasses.asdict(one) for one in predict.round_costs(setup)],
            "speedup": [gain_dict(gain) for gain in self.gains],
            "compiled": None if self.compiled is None else self.compiled.details,
        }

    def pass_dict(self, one: Timed) -> dict[str, Any]:
        """Bytes, operations and seconds of a pass, and what they are bound by."""
        return {
            **dataclasses.asdict(one.cost),
            "bytes": one.cost.bytes,
            "intensity": one.cost.intensity,
            "bound": one.bound,
            "seconds": one.seconds,
        }


def setup_dict(setup: Setup) -> dict[str, Any]:
    """What was asked, with every default filled in."""
    same = ("draft_length", "batch", "context", "dtype", "placement", "chunk")
    return {
        "topology": setup.topology if isinstance(setup.topology, str) else None,
        "target": model_dict(setup.target),
        "drafter": None if setup.drafter is None else model_dict(setup.drafter),
        **{name: getattr(setup, name) for name in same},
        "prompt": setup.prompt_length,
        "capacity": setup.capacity,
        "mesh": list(setup.mesh_shape),
    }


def model_dict(config: Config) -> dict[str, Any]:
    """The shape of a model, in short."""
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    return {name: getattr(config, name) for name in names}


def gain_dict(gain: Gain) -> dict[str, Any]:
    """What speculation brings at one acceptance rate."""
    return {
        "acceptance_rate": gain.rate,
        "ceiling": predict.ceiling(gain.rate),
        "speedups": list(gain.speedups),
        "best_draft_length": gain.best_length,
        "best_speedup": gain.best,
        "pays_from_batch": gain.pays_from,
        "stops_paying_at_batch": gain.stops_at,
    }
