"""Gradients of large parameters, from tapes.

The backward pass records on tapes the inputs of each weight-gradient site and the
cotangents of its outputs, with one row per batch row (`weight_gradient_sites`). A
parameter's cotangent is one contraction over them.

Tapes have room for all rows that the program's bucket allows. The contraction of a
product goes over blocks of rows and stops after the rows in use. The contraction of a
table, whose cotangent is as large as the table, runs once, over all rows.

The parameters here are those of the cell's run-time partition: the packed arrays.

If cells compute in half precision, the rows of a table are summed in the dtype of the
parameter, or in float32. Products of a block of rows are rounded, and summed in
float32.

Gain (docs/results-training.md, "Value and gradient"): value and gradient of 64 trees at
hidden size 128 take 3.06 times as long as the forward pass; *exact*, which adds up the
weights' gradients batch by batch, 5.42 times.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.rows import first_true, keep_rows, slice_rows, take_rows, zero_unless
from edbatch.cell.stacks import Stacks
from edbatch.cell.summation import sum_dtype, zeros_for_sum
from edbatch.cell.tapes import TAPE_BLOCK, Tapes
from edbatch.cell.weight_gradient_sites import Sites, Values


class Constant(Protocol):
    """Computes the values that depend on parameters only."""

    def __call__(self, packed: Sequence[Array], /, *, wide: bool = False) -> Values:
        """Computes the values; if `wide`, without casts to half precision."""


# Rows per iteration of a product's contraction: most rows are contracted in large
# blocks, the rest in smaller and smaller ones. Blocks of 32 after those of 128 save 4 %
# of the gradient of 64 trees at hidden size 128, 1 % at 256.
_BLOCKS = (1024, TAPE_BLOCK, 32)

# Minimum number of rows of a block of one family member.
_LEAST_BLOCK = 8


class Contraction:
    """Contracts the tapes of a cell's weight-gradient sites.

    Args:
        sites: The sites.
        constant: Computes the values that depend on parameters only.
    """

    def __init__(self, sites: Sites, constant: Constant) -> None:
        self._sites = sites
        self._constant = constant

    def contract(
        self,
        packed: Sequence[Array],
        inputs: Tapes,
        outputs_bar: Tapes,
        mask: Array | None,
        used: Array | None,
        left_out: Collection[int] = (),
    ) -> dict[int, Array]:
        """Computes the cotangents of the parameters from the tapes.

        Args:
            packed: The parameters.
            inputs: The inputs of each site; zero in rows not in use.
            outputs_bar: The cotangents of each site's outputs, likewise.
            mask: Which rows are in use, as initialized by `Sites.new_mask`.
            used: The number of rows in use, a scalar; None to contract all at once,
                without a loop whose number of iterations the host does not know.
            left_out: Sites that are not contracted.

        Returns:
            Cotangents of parameters by position, without the part from direct reads.
        """
        found: dict[int, Array] = {}
        if mask is not None:
            others = [k for k in self._sites.others if k not in left_out]
            found = self._contract_others(packed, others, inputs, outputs_bar, mask)
        products = self._sites.products
        if not products:
            return found
        if used is None:
            every = dict(enumerate(inputs))
            more = self._pull(packed, products, every, outputs_bar)
        else:
            more = self._contract_blocks(packed, inputs, outputs_bar, used)
        return _summed(found, more)

    def _contract_others(
        self,
        packed: Sequence[Array],
        others: Sequence[int],
        inputs: Tapes,
        outputs_bar: Tapes,
        mask: Array,
    ) -> dict[int, Array]:
        """The cotangents from sites that are not products.

        An equation may have no derivative at zero, so rows not in use repeat the first
        row in use.
        """
        own = keep_rows(mask, first_true(mask), {k: inputs[k] for k in others})
        bars = self._pull(packed, others, own, outputs_bar)
        return {k: jnp.where(mask.any(), bar, 0) for k, bar in bars.items()}

    def _contract_blocks(
        self, packed: Sequence[Array], inputs: Tapes, outputs_bar: Tapes, used: Array
    ) -> dict[int, Array]:
        """The cotangents from products, block by block of the rows in use."""
        products = self._sites.products
        sums = {k: zeros_for_sum(packed[k]) for k in self._sites.parameters(products)}
        done = jnp.int32(0)
        rows = len(jax.tree.leaves(inputs)[0])
        for size in _block_sizes(rows):
            end = used // size if size > _BLOCKS[-1] else -(-used // size)

            def add(
                block: Array, sums: dict[int, Array], size: int = size
            ) -> dict[int, Array]:
                part = partial(slice_rows, first=block * size, width=size)
                own, bars = jax.tree.map(part, (inputs, outputs_bar))
                more = self._pull(packed, products, dict(enumerate(own)), bars)
                return {k: sums[k] + more[k].astype(sums[k].dtype) for k in sums}

            sums = lax.fori_loop(done // size, end, add, sums)
            done = end * size
        return sums

    def contract_members(
        self,
        packed: Stacks,
        inputs: Tapes,
        outputs_bar: Tapes,
        owner: Array,
        members: int,
    ) -> dict[int, Array]:
        """Computes the cotangents of the parameters of a family from the tapes.

        Rows are sorted by member. Blocks of rows of one member are contracted and added
        to its cotangent. Incomplete blocks repeat the member's last row.

        Args:
            packed: The parameters.
            inputs: As for `contract`.
            outputs_bar: As for `contract`.
            owner: The member of each row; the number of members in rows not in use.
            members: The number of members.

        Returns:
            As `contract`; arrays are stacked like the parameters.
        """
        if len(self._sites) == 0:
            return {}
        chosen = range(len(self._sites))
        positions = self._sites.parameters(chosen)
        sums = Stacks(
            [zeros_for_sum(packed.arrays[k]) for k in positions],
            [packed.stacked[k] for k in positions],
        )
        blocks = _MemberBlocks.of(owner, members)

        def add(block: Array, found: list[Array]) -> list[Array]:
            member, rows, is_own = blocks.read(block)
            own, bars = jax.tree.map(
                lambda tape: take_rows(tape, rows), (inputs, outputs_bar)
            )
            bars = zero_unless(is_own, bars)
            one = packed.take(member)
            more = self._pull(one, chosen, dict(enumerate(own)), bars)
            return Stacks(found, sums.stacked).add(member, [more[k] for k in positions])

        found = lax.fori_loop(0, blocks.last[-1], add, sums.arrays)
        return dict(zip(positions, found, strict=True))

    def _pull(
        self,
        packed: Sequence[Array],
        chosen: Sequence[int],
        inputs: dict[int, list[Array]],
        outputs_bar: Tapes,
    ) -> dict[int, Array]:
        """Contracts the tapes of some sites."""
        found: dict[int, Array] = {}
        for wide in (False, True):
            own = [k for k in chosen if self._sites[k].sums_in_half == wide]
            if not own:
                continue
            arrays = [_widened(each) for each in packed] if wide else packed
            values = partial(self._constant, wide=wide)
            more = self._pull_alike(arrays, values, own, inputs, outputs_bar)
            found = _summed(found, more)
        return found

    def _pull_alike(
        self,
        packed: Sequence[Array],
        constant: Callable[[Sequence[Array]], Values],
        chosen: Sequence[int],
        inputs: dict[int, list[Array]],
        outputs_bar: Tapes,
    ) -> dict[int, Array]:
        """Contracts the tapes of sites whose sums have the dtypes of `packed`."""
        positions = self._sites.parameters(chosen)

        def run(arrays: list[Array]) -> list[list[Array]]:
            own = list(packed)
            for k, array in zip(positions, arrays, strict=True):
                own[k] = array
            values = constant(own)
            return [
                jax.vmap(partial(self._sites[k].run_from_tape, values))(inputs[k])
                for k in chosen
            ]

        outputs, pull = jax.vjp(run, [packed[k] for k in positions])
        bars = [outputs_bar[k] for k in chosen]
        bars = jax.tree.map(lambda bar, own: bar.astype(own.dtype), bars, outputs)
        (found,) = pull(bars)
        return dict(zip(positions, found, strict=True))


class _MemberBlocks(NamedTuple):
    """Rows of tapes in blocks, each with rows of one member of a family.

    Attributes:
        order: The rows, sorted by member; ``[rows] int32``.
        end: End of each member's rows in `order`; ``[members] int32``.
        rows: The number of rows of each member, likewise.
        blocks: The number of blocks of each member, likewise.
        last: The total number of blocks of each member and all members before it,
            likewise.
        width: Rows of a block.
    """

    order: Array
    end: Array
    rows: Array
    blocks: Array
    last: Array
    width: int

    @classmethod
    def of(cls, owner: Array, members: int) -> "_MemberBlocks":
        """Makes blocks from each row's owner; rows owned by `members` are left out."""
        order = jnp.argsort(owner).astype(jnp.int32)
        count = jnp.zeros(members + 1, jnp.int32).at[owner].add(1)[:members]
        end = jnp.cumsum(count, dtype=jnp.int32)
        width = _member_block(len(owner), members)
        blocks = -(-count // width)
        last = jnp.cumsum(blocks, dtype=jnp.int32)
        return cls(order, end, count, blocks, last, width)

    def read(self, block: Array) -> tuple[Array, Array, Array]:
        """Returns the member of a block, its rows, and which of these are its own.

        The other entries repeat the member's last row.
        """
        member = (self.last <= block).sum(dtype=jnp.int32)
        number = block - self.last[member] + self.blocks[member]
        end = self.end[member]
        place = end - self.rows[member] + number * self.width
        place += jnp.arange(self.width, dtype=jnp.int32)
        return member, self.order[jnp.minimum(place, end - 1)], place < end


def _summed(found: dict[int, Array], more: dict[int, Array]) -> dict[int, Array]:
    """Adds the cotangents from two groups of sites, in the wider of their dtypes."""
    both = {}
    for k in found.keys() & more.keys():
        dtype = jnp.promote_types(found[k].dtype, more[k].dtype)
        both[k] = found[k].astype(dtype) + more[k].astype(dtype)
    return found | more | both


def _widened(array: Any) -> Any:
    """An array in the dtype in which its cotangents are summed; None for None."""
    return None if array is None else array.astype(sum_dtype(array.dtype))


def _block_sizes(rows: int) -> list[int]:
    """Block sizes of a contraction over tapes with this many rows, largest first.

    No block is a whole tape: XLA would move its product out of the loop and compute it
    even if the loop has no iterations.
    """
    return [each // 2 if each == rows else each for each in _BLOCKS if each <= rows]


def _member_block(rows: int, members: int) -> int:
    """Rows of a block of one member: about its mean share, at most `TAPE_BLOCK`."""
    mean = max(1, rows // members)
    return min(TAPE_BLOCK, max(_LEAST_BLOCK, 1 << (mean - 1).bit_length()))
