"""What a compiled program sends between devices, read from its HLO text.

    text = jax.jit(step).lower(*arguments).compile().as_text()
    for c in parse_collectives(text):
        print(c.kind, c.element_type, c.shape, c.bytes, len(c.replica_groups))

For a program that is only lowered: `lowered.as_text(dialect="hlo")`; what the partitioner will add
is not in it. XLA may merge collectives, so an operation can carry several arrays.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)

_TYPE = r"\w+\[[^\]]*\](?:\{[^}]*\})?"
_OPERATION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|" + _TYPE + r") "
    r"(?P<opcode>[a-z][\w\-]*)\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_SORTS = re.compile(
    r"\b(?:sort|topk|top-k)\("  # HLO operations
    r"|custom_call_target=\"[^\"]*(?:TopK|topk|top_k|PartialReduce|[Ss]ort)[^\"]*\""
    r"|\bstablehlo\.sort\b|\bchlo\.top_k\b|@(?:\w*\.)?(?:ApproxTopK|TopK|topk)\b"
)


@dataclass(frozen=True)
class Collective:
    """One communication: what each participating device holds of its result.

    `arrays`: (element type, shape) of each result. `replica_groups`: devices that take part
    together, () for all in one group; for a permutation the (source, target) pairs.
    `is_async`: split in a start and a done, reported once.
    """

    kind: str
    name: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    replica_groups: tuple[tuple[int, ...], ...]
    is_async: bool

    @property
    def element_type(self) -> str:
        """Element type of the largest result, as HLO spells it: "f32", "bf16", ..."""
        return self._largest[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the largest result."""
        return self._largest[1]

    @property
    def elements(self) -> int:
        """Elements of all results."""
        return sum(math.prod(shape) for _, shape in self.arrays)

    @property
    def bytes(self) -> int:
        """Bytes of all results."""
        return sum(-(-math.prod(shape) * _bits(kind) // 8) for kind, shape in self.arrays)

    @property
    def _largest(self) -> tuple[str, tuple[int, ...]]:
        return max(self.arrays, key=lambda array: math.prod(array[1]) * _bits(array[0]))


def parse_collectives(hlo_text: str) -> list[Collective]:
    """The collectives of an HLO module, in the order of the text.

    Raises ValueError for text that is not HLO, or a form of replica groups that is not known.
    """
    if not hlo_text.lstrip().startswith("HloModule"):
        raise ValueError(
            "not the text of an HLO module; use compiled.as_text() or "
            'lowered.as_text(dialect="hlo")'
        )
    operations, computation = [], ""
    for line in hlo_text.splitlines():
        if operation := _OPERATION.match(line):
            operations.append((operation, computation))
        elif opened := _COMPUTATION.match(line):
            computation = opened[1]

    results: dict[str, str] = {}  # type that the done of a start gives, by the start's name
    wrapped: set[str] = set()  # computations that run asynchronously
    for operation, _ in operations:
        if operation["opcode"].endswith("-done"):
            for operand in re.findall(r"[\w.\-]+", operation["rest"]):
                results[operand] = operation["type"]
        elif operation["opcode"] == "async-start":
            wrapped.update(re.findall(r"calls=%?([\w.\-]+)", operation["rest"]))

    found = []
    for operation, computation in operations:
        name, result, opcode, rest = operation.groups("")
        kind = opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        starts = opcode != kind
        # A start returns its operands too; the type of its done is the result alone.
        if starts and name in results:
            result = results[name]
        arrays = tuple(
            (element, tuple(int(re.sub(r"\D", "", n)) for n in sizes.split(",") if n))
            for element, sizes in _ARRAY.findall(result)
        )
        groups = _groups(rest)
        found.append(Collective(kind, name, arrays, groups, starts or computation in wrapped))
    return found


def contains_sort_or_top_k(hlo_text: str) -> bool:
    """Whether a program sorts or selects a top-k anywhere: HLO or StableHLO text.

    Finds sort operations and the custom calls that `jax.lax.top_k` and `approx_max_k` become.
    Names in metadata do not count.
    """
    return bool(_SORTS.search(re.sub(r"metadata=\{[^}]*\}|\bloc\(.*\)", "", hlo_text)))


def _bits(element_type: str) -> int:
    """Bits of an element: the first number in the type's name; a predicate takes a byte."""
    digits = re.search(r"\d+", element_type)
    return int(digits[0]) if digits else {"pred": 8}.get(element_type, 0)


def _groups(rest: str) -> tuple[tuple[int, ...], ...]:
    """Replica groups in any of their spellings: listed, by an iota, by the axes of a mesh."""
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}", rest)
    if listed:
        return tuple(
            tuple(int(n) for n in group.split(",") if n)
            for group in re.findall(r"\{([\d,]*)\}", listed[1])
        )
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        groups, dims, order = (_integers(part or "") for part in iota.groups())
        devices = np.arange(math.prod(dims)).reshape(dims)
        return _as_tuples(devices.transpose(order or None).reshape(groups))
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", rest)
    if mesh:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        inside = mesh[2].replace("'", "").replace(" ", "").split(",")
        if set(inside) <= set(sizes):
            names = list(sizes)
            devices = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
            outside = [names.index(name) for name in names if name not in inside]
            order = outside + [names.index(name) for name in inside]
            count = math.prod(sizes[name] for name in inside)
            return _as_tuples(devices.transpose(order).reshape(-1, count))
    if "replica_groups=" in rest:
        spelled = rest[rest.index("replica_groups=") :][:80]
        raise ValueError(f"replica groups in a form that is not known: {spelled}")
    return ()


def _integers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _as_tuples(groups: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(device) for device in group) for group in groups)
