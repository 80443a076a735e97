"""What a compiled program does, read from its text: loops, copies, exchanges between devices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
"""What devices exchange in; each may be split into a start and a done."""

GATHERS = ("all-gather", "all-to-all", "ragged-all-to-all", "collective-permute")
"""The exchanges that bring a device what another one holds."""

FAST = 1
"""The memory space next to the arithmetic (VMEM): what is brought there or back is no copy."""

HOST = 5
"""The memory space of the host."""

_HOST = ("infeed", "outfeed", "send", "recv")
_HOST_TARGET = re.compile(r"callback|host|infeed|outfeed", re.IGNORECASE)
_MOVES_IN_PLACE = ("scatter", "dynamic-update-slice")
_BITS = re.compile(r"[a-z]+?(\d+)")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^{}]*)\})?")
_LINE = re.compile(r"\s+(?:ROOT )?%?(\S+) = (.*?) ([a-z][\w-]*)\((.*)$")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?.*\{$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations|called_computations|"
    r"true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_NAME = re.compile(r"%?([\w.\-]+)")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array: dtype, sizes, the order of its axes in memory, and the memory space.

    ``order`` names the axes from the fastest to the slowest; space 0 is the main memory.
    """

    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...] = ()
    space: int = 0

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        bits = _BITS.match(self.dtype)
        return math.prod(self.sizes) * max(int(bits[1]) if bits else 8, 8) // 8

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        """The same for arrays that hold the same in another order of axes."""
        return self.dtype, tuple(sorted(size for size in self.sizes if size > 1))

    @property
    def walk(self) -> tuple[int, ...]:
        """The sizes that memory runs through, from the fastest axis to the slowest."""
        return tuple(self.sizes[axis] for axis in self.order if self.sizes[axis] > 1)


def shapes(text: str) -> tuple[Shape, ...]:
    """Every array in the type of a result.

    >>> shapes("(f32[2,3]{1,0:T(8,128)S(1)}, u32[])")
    (Shape(dtype='f32', sizes=(2, 3), order=(1, 0), space=1),
     Shape(dtype='u32', sizes=(), order=(), space=0))
    """
    found = []
    for dtype, sizes, layout in _ARRAY.findall(text):
        space = re.search(r"S\((\d+)\)", layout)
        order = _numbers(layout.partition(":")[0])
        found.append(Shape(dtype, _numbers(sizes), order, int(space[1]) if space else 0))
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation. ``scope`` is the path of named scopes that it came from.

    ``target`` is what a custom call calls.
    """

    name: str
    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    scope: str
    target: str = ""

    def __str__(self) -> str:
        results = ", ".join(f"{x.dtype}[{','.join(map(str, x.sizes))}]" for x in self.results)
        return f"{self.opcode} {self.name} of {results} ({self.scope or 'no scope'})"

    @property
    def base(self) -> str:
        """The operation: that of a start, "" for the done that ends it."""
        return "" if self.opcode.endswith("-done") else self.opcode.removesuffix("-start")

    def within(self, scope: str) -> bool:
        """Whether it came from a named scope."""
        return scope in self.scope.split("/")


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program: the instructions of each computation, by name."""

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    def everything(self, names: Iterable[str] | None = None) -> Iterator[Instruction]:
        """All instructions of some computations, by default of all."""
        for name in self.computations if names is None else names:
            yield from self.computations[name]

    @cached_property
    def fused(self) -> frozenset[str]:
        """Computations that run as one operation: what is in them is not stored."""
        roots = [one.called for one in self.everything() if one.opcode == "fusion"]
        return self.below(name for called in roots for name in called)

    @cached_property
    def looped(self) -> frozenset[str]:
        """Computations that run inside a loop."""
        roots = [one.called for one in self.everything() if one.opcode == "while"]
        return self.below(name for called in roots for name in called)

    @cached_property
    def rounds(self) -> frozenset[str]:
        """Computations of the outermost loop that verifies drafts; empty where there is none."""
        for one in self.computations[self.entry]:
            if one.opcode == "while":
                inside = self.below(one.called)
                if any(each.within("verify") for each in self.everything(inside)):
                    return inside
        return frozenset()

    def below(self, names: Iterable[str]) -> frozenset[str]:
        """These computations, and all that they call."""
        found, left = set(), list(names)
        while left:
            name = left.pop()
            if name not in found and name in self.computations:
                found.add(name)
                left += [n for one in self.computations[name] for n in one.called]
        return frozenset(found)


def parse(text: str) -> Module:
    """Read the text of a compiled program.

    Raises:
        ValueError: it has no entry.
    """
    computations: dict[str, tuple[Instruction, ...]] = {}
    name, entry, lines = None, None, []
    for line in text.splitlines():
        if name is None:
            header = _HEADER.match(line) if line[:1] not in (" ", "", "}") else None
            if header and not line.startswith("HloModule"):
                name, lines = header[2], []
                entry = name if header[1] else entry
        elif line.startswith("}"):
            computations[name], name = tuple(lines), None
        elif found := _LINE.match(line):
            lines.append(_instruction(*found.groups()))
    if entry is None:
        raise ValueError("text: has no ENTRY; give Compiled.as_text()")
    return Module(computations, entry)


def _instruction(name: str, type_: str, opcode: str, rest: str) -> Instruction:
    arguments, _, attributes = rest.partition("), ")
    called = [n for group in _CALLED.findall(attributes) for n in _NAME.findall(group)]
    scope = re.search(r'op_name="([^"]*)"', attributes)
    target = re.search(r'custom_call_target="([^"]*)"', attributes)
    return Instruction(
        name,
        opcode,
        shapes(type_),
        tuple(_OPERAND.findall(arguments)),
        tuple(called),
        scope[1] if scope else "",
        target[1] if target else "",
    )


def collectives(module: Module, scope: str) -> Counter[str]:
    """How many exchanges of each kind one turn of a scope does."""
    names = [
        one.base for one in module.everything() if one.base in COLLECTIVES and one.within(scope)
    ]
    return Counter(names)


def gathers(module: Module, of: Iterable[Shape]) -> list[Instruction]:
    """Exchanges that bring a device what others hold of arrays like these."""
    kinds, found = {shape.kind for shape in of}, []
    for computation in module.computations.values():
        results = {one.name: one.results for one in computation}
        for one in computation:
            if one.base in GATHERS:
                given = [s for name in one.operands for s in results.get(name, ())]
                found += [one] if any(s.kind in kinds for s in (*given, *one.results)) else []
    return found


def copies(module: Module, of: Iterable[Shape]) -> list[Instruction]:
    """What writes a whole array like these anew from another: copies, fusions not in place.

    Skipped are the zeros that an array begins with, and what is brought to fast memory or back
    as it is; a copy into another order of axes counts wherever it goes.
    """
    kinds, found = {shape.kind for shape in of}, []
    for name in module.computations.keys() - module.fused:
        by_name = {one.name: one for one in module.computations[name]}
        for one in by_name.values():
            given = [by_name[operand] for operand in one.operands if operand in by_name]
            read = [s for x in given if not _is_fresh(x, by_name, kinds) for s in x.results]
            read = [shape for shape in read if shape.kind in kinds]
            written = [shape for shape in one.results if shape.kind in kinds]
            if read and written and _writes_anew(module, one):
                turned = len({shape.walk for shape in (*read, *written)}) > 1
                if turned or all(shape.space != FAST for shape in (*read, *written)):
                    found.append(one)
    return found


def _is_fresh(one: Instruction, by_name: Mapping[str, Instruction], kinds: set) -> bool:
    """Whether it makes an array out of nothing, as zeros are."""
    given = [s for name in one.operands if name in by_name for s in by_name[name].results]
    return one.opcode in ("broadcast", "fusion") and all(s.kind not in kinds for s in given)


def _writes_anew(module: Module, one: Instruction) -> bool:
    if one.opcode == "fusion":
        inside = module.everything(module.below(one.called))
        return all(x.opcode not in _MOVES_IN_PLACE for x in inside)
    return one.base in ("copy", "transpose", "select")


def host_calls(module: Module) -> list[Instruction]:
    """What a loop waits for the host for."""
    return [
        one
        for one in module.everything(module.looped)
        if one.base in _HOST
        or _HOST_TARGET.search(one.target)
        or any(shape.space == HOST for shape in one.results)
    ]


def block_bytes(module: Module, of: Iterable[Shape], scope: str) -> int:
    """Bytes that one turn of the loops in a scope reads of arrays like these, block by block."""
    kinds, total = {shape.kind for shape in of}, 0
    for name in module.looped:
        computation = module.computations[name]
        results = {one.name: one.results for one in computation}
        for one in computation:
            if one.opcode == "dynamic-slice" and one.within(scope) and one.operands:
                sliced = results.get(one.operands[0], ())
                total += one.results[0].bytes if any(s.kind in kinds for s in sliced) else 0
    return total
