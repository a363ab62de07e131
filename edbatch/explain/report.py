"""The report of `Batched.explain`; `table`, `text` and `html` show it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edbatch.explain import html, text
from edbatch.explain.uses import MinibatchUse, TimeSource, TypeUse


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(MinibatchUse):
    """Costs of a minibatch, type by type, and the types that share no batch, and why.

    ``print`` shows it as text, `rich` as tables, a notebook as HTML. Its fields are
    those of `edbatch.explain.MinibatchUse`.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> explanation = batched.explain([1.0, 5.0])
        >>> explanation.instances, explanation.lower_bound, explanation.plan.batches
        (2, 2, 2)
    """

    def with_times(
        self, time_us: Sequence[float] | np.ndarray, source: TimeSource
    ) -> "Explanation":
        """Returns the report with times of its batches.

        Args:
            time_us: Microseconds of each batch; ``[S]``.
            source: Where the times come from.

        Returns:
            A report with these times for its batches, and their sums for its types.
        """
        times = np.asarray(time_us, np.float64)
        sums = np.bincount(self.batches.use, times, len(self.types)).tolist()
        types = tuple(
            replace(each, time_us=own)
            for each, own in zip(self.types, sums, strict=True)
        )
        batches = replace(self.batches, time_us=times)
        return replace(self, types=types, batches=batches, time_source=source)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values.

        Returns:
            The fields, with one dict for each type and batch.
        """
        times = self.batches.time_us
        return {
            "model": self.model,
            "instances": self.instances,
            "nodes": self.plan.nodes,
            "batches": self.plan.batches,
            "lower_bound": self.lower_bound,
            "flops": self.flops,
            "time_us": self.time_us,
            "time_source": self.time_source,
            "loops": self.loops,
            "plan": asdict(self.plan),
            "types": [_type_to_json(each) for each in self.types],
            "apart": [each.to_json() for each in self.apart],
            "batch": [
                {
                    "type": self.types[use].name,
                    "nodes": int(self.batches.nodes[k]),
                    "rows": int(self.batches.rows[k]),
                    "time_us": None if times is None else float(times[k]),
                }
                for k, use in enumerate(self.batches.use.tolist())
            ],
            "compilations": [
                {
                    "function": each.function,
                    "tier": each.tier,
                    "reason": each.reason,
                    "state": each.state,
                    "seconds": each.seconds,
                    "runs": each.runs,
                }
                for each in self.compilations
            ],
        }

    def __str__(self) -> str:
        """Returns the report as text of 80 columns."""
        return text.as_text(self)

    def __repr__(self) -> str:
        """Summary in one line."""
        return (
            f"<Explanation of {self.model}: {self.plan.nodes} nodes of"
            f" {len(self.types)} types in {self.plan.batches} batches>"
        )

    def __rich__(self) -> Any:
        """Returns the report for `rich.print`."""
        return text.as_rich(self)

    def _repr_html_(self) -> str:
        """Returns the report for notebooks."""
        return html.as_html(self)


def _type_to_json(use: TypeUse) -> dict[str, Any]:
    return {
        "type": str(use.type),
        "hoisted": use.hoisted,
        "nodes": use.nodes,
        "batches": use.batches,
        "chain": use.chain,
        "widths": {str(width): count for width, count in use.chunks.items()},
        "rows": use.rows,
        "padding_rows": use.padding_rows,
        "operands": use.operands,
        "operands_in_place": use.in_place,
        "operand_bytes": use.operand_bytes,
        "in_place_bytes": use.in_place_bytes,
        "flops": use.flops,
        "time_us": use.time_us,
    }
