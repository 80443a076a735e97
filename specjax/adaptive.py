"""Draft lengths that adapt: each row's next draft is as long as its past says will pay."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class Experience:
    """What a row has seen, for each kind of draft C and depth K; older rounds count less.

    ``plain`` are the rounds since the kind was last drafted.
    """

    judged: Float[Array, "B C K"]
    kept: Float[Array, "B C K"]
    plain: Int[Array, "B C"]


@struct.dataclass
class Adaptive:
    """Draft K tokens, where K maximises E(K) / (K c + v(K)), and none where that is below 1.

    E(K) = 1 + the sum over k of the product of the first k acceptance rates (Leviathan et al. 2023,
    theorem 3.8), estimated for each row from its own past rounds. Where it does not pay, the row
    decodes plainly, and tries again so seldom that tries take at most the share ``exploration`` of
    its time. Decisions depend on past rounds alone, so every verifier stays exact.

    Args:
        pass_costs: v, the time of a round's pass over that of a plain one, for drafts of 0, 1, ...
            K tokens: f[K + 1]; or f[R, K + 1], where line r holds for up to ``loads[r]`` rows.
        draft_cost: c, the time of drafting one token over that of a plain pass.
        loads: active rows for each line of ``pass_costs``, ascending; None for one line.
        prior: acceptance rate assumed of what was never tried, for each kind and depth or all.
            None: 0.65 for the last kind, less for those before, of which less is to be expected.
        weight: how many rounds the assumption counts as.
        memory: what a round counts after each later one.
        exploration: share of the time for drafts that are not expected to pay.
    """

    pass_costs: Float[Array, "*R D"]
    draft_cost: Float[Array, ""] | float = 0.0
    loads: Int[Array, " R"] | None = None
    prior: Float[Array, "*C K"] | float | None = None
    weight: float = 1.0
    memory: float = 0.95
    exploration: float = 0.015

    @property
    def rows_independent(self) -> bool:
        """A load is that of all rows together."""
        return self.loads is None

    def validate(self, depth: int) -> None:
        """Refuse costs of other drafts.

        Raises:
            ValueError: ``pass_costs`` has no entry for each length, or ``loads`` none for a line.
        """
        costs = np.asarray(self.pass_costs)
        lines = () if self.loads is None else (len(self.loads),)
        if costs.shape != (*lines, depth + 1):
            raise ValueError(
                f"pass_costs: must be of shape {(*lines, depth + 1)}, one cost for each draft of 0 "
                f"to {depth} tokens, got {costs.shape}"
            )
        if not (np.isfinite(costs) & (costs > 0)).all():
            raise ValueError(f"pass_costs: must be above 0, got {costs.tolist()}")

    def init(self, batch: int, depth: int, num_kinds: int) -> Experience:
        """Begin without any."""
        nothing = jnp.zeros((batch, num_kinds, depth), jnp.float32)
        return Experience(nothing, nothing + 0, jnp.zeros((batch, num_kinds), jnp.int32))

    def rates(self, state: Experience) -> Float[Array, "B C K"]:
        """Acceptance of each depth, given that all before were; unseen depths are as the last."""
        num_kinds, num = state.kept.shape[1:]
        prior = self.prior
        if prior is None:
            prior = jnp.linspace(0.2 if num_kinds > 1 else 0.65, 0.65, num_kinds)[:, None]
        prior = jnp.broadcast_to(jnp.asarray(prior, jnp.float32), state.kept.shape)
        rates, shift = [], jnp.zeros(state.kept.shape[:2], jnp.float32)
        for k in range(num):
            # What was learnt at one depth moves what is assumed of the next.
            assumed = jnp.clip(prior[..., k] + shift, 0.01, 0.99)
            rate = (state.kept[..., k] + self.weight * assumed) / (
                state.judged[..., k] + self.weight
            )
            shift = rate - prior[..., k]
            rates.append(rate)
        return jnp.stack(rates, axis=-1)

    def caps(self, state: Experience, active: Bool[Array, " B"]) -> Int[Array, "B C"]:
        """The length that pays most; of one that does not pay, a trial once in a while."""
        gains = jnp.cumsum(jnp.cumprod(self.rates(state), axis=-1), axis=-1)
        lengths = jnp.arange(1, gains.shape[-1] + 1, dtype=jnp.float32)
        costs = self._costs(active)
        spent = costs[1:] / costs[0] + lengths * self.draft_cost
        best = ((1 + gains) / spent).argmax(-1).astype(jnp.int32)
        tokens = 1 + jnp.take_along_axis(gains, best[..., None], axis=-1)[..., 0]
        # A try waits for what it is expected to lose, in plain rounds; where it gains, not at all.
        waits = (spent[best] - tokens) / self.exploration
        return jnp.where(state.plain.astype(waits.dtype) >= waits, best + 1, 0)

    def _costs(self, active: Bool[Array, " B"]) -> Float[Array, " D"]:
        costs = jnp.asarray(self.pass_costs, jnp.float32)
        if self.loads is None:
            return costs
        line = jnp.searchsorted(self.loads, active.sum(dtype=self.loads.dtype))
        return costs[jnp.minimum(line, len(costs) - 1)]

    def update(
        self,
        state: Experience,
        kind: Int[Array, " B"],
        drafted: Int[Array, " B"],
        num_accepted: Int[Array, " B"],
    ) -> Experience:
        """Note which depths were judged and kept; a round without a draft is one more to wait."""
        here = jnp.arange(state.plain.shape[1], dtype=jnp.int32) == kind[:, None]
        depth = jnp.arange(1, state.kept.shape[-1] + 1, dtype=jnp.int32)
        kept = depth <= num_accepted[:, None]
        judged = depth <= jnp.minimum(num_accepted + 1, drafted)[:, None]
        tried = here & (drafted > 0)[:, None]

        def note(total: Any, new: Any) -> Any:
            fresh = self.memory * total + new[:, None].astype(total.dtype)
            return jnp.where(tried[..., None], fresh, total)

        return Experience(
            judged=note(state.judged, judged),
            kept=note(state.kept, kept),
            plain=jnp.where(tried, 0, state.plain + here.astype(jnp.int32)),
        )
