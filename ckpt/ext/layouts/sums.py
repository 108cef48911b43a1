"""The sums and the samples of the tensors of both sides, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.ext.layouts.fibres import Fibres, fibres_of
from ckpt.ext.layouts.proof import Leaf
from ckpt.ext.layouts.samples import ONE, sample_of
from ckpt.ext.layouts.search import dtype_of_search
from ckpt.model.dtypes import DType

AT_ONCE = 2048
"""The tensors that are read at once."""

Progress = Callable[[int], None]


class Sums:
    """The sums of tensors of A, read as each dtype of B, and of tensors of B."""

    def __init__(
        self,
        dtypes: Iterable[DType],
        executor: Executor,
        progress: Progress | None,
    ) -> None:
        self._executor = executor
        self._progress = progress
        self._of_sources: dict[DType, dict[str, Fibres]] = {to: {} for to in dtypes}
        self._of_targets: dict[str, Fibres] = {}
        self._samples: dict[DType, dict[int, int | None]] = {}

    def read_sample(self, leaf: Leaf, dtype: DType) -> int | None:
        """The sample of a tensor, read once. Raises UnreadableError."""
        known = self._samples.setdefault(dtype, {})
        if id(leaf) not in known:
            known[id(leaf)] = sample_of(leaf, dtype)
        return known[id(leaf)]

    def read_sums(self, sources: Sequence[Leaf], targets: Sequence[Leaf]) -> None:
        """Make the fingerprints of tensors that have none.

        A tensor of A is read as each dtype of B that it may have become. Raises
        UnreadableError.
        """
        rows: list[tuple[Leaf, DType, dict[str, Fibres]]] = []
        for leaf in sources:
            for to, known in self._of_sources.items():
                if (
                    leaf.name not in known
                    and dtype_of_search(leaf.dtype, to) is not None
                ):
                    rows.append((leaf, to, known))
        rows += [
            (leaf, leaf.dtype, self._of_targets)
            for leaf in targets
            if leaf.name not in self._of_targets
        ]
        rest = iter(rows)
        # So many at a time: the tasks of 100,000 tensors would all wait in memory.
        while some := list(islice(rest, AT_ONCE)):
            tasks = [
                Task(fibres_of, (leaf.ref, to), leaf.ref.nbytes) for leaf, to, _ in some
            ]
            results = run_each(self._executor, tasks, self._progress)
            for (leaf, _, known), result in zip(some, results, strict=True):
                if isinstance(result, Failed):
                    raise_unreadable(leaf.name, result)
                else:
                    known[leaf.name] = result

    def of_target(self, leaf: Leaf) -> Fibres:
        """The sums of a tensor of B. Raises UnreadableError."""
        if leaf.name not in self._of_targets:
            self.read_sums((), [leaf])
        return self._of_targets[leaf.name]

    def of_source(self, leaf: Leaf) -> Fibres | None:
        """The sums of a tensor of A, read as some dtype. Raises UnreadableError."""
        self.read_sums([leaf], ())
        # Any dtype will do: copies are compared with copies of the same tensor.
        every = [rows.get(leaf.name) for rows in self._of_sources.values()]
        return next((fibres for fibres in every if fibres is not None), None)

    def is_constant(self, target: Leaf) -> bool:
        """Tell whether all elements of a tensor of B are one number. Raises
        UnreadableError.
        """
        sample = self.read_sample(target, target.dtype)
        if sample not in (None, ONE):
            return False
        return self.of_target(target).is_constant

    def is_one_number(self, leaf: Leaf) -> bool:
        """Tell whether all elements of a tensor of A are one number. Raises
        UnreadableError.
        """
        sample = self.read_sample(leaf, leaf.dtype)
        # The sample of a few elements says that it is none, without reading the rest.
        if sample not in (None, ONE):
            return False
        fibres = self.of_source(leaf)
        return fibres is not None and fibres.is_constant

    def of_constant(self, leaf: Leaf, dtype: DType) -> Fibres | None:
        """The sums of a tensor of A that may be one number, read as a dtype.

        It is None for one that is not, as its sample says. Raises UnreadableError.
        """
        if dtype_of_search(leaf.dtype, dtype) is None:
            return None
        sample = self.read_sample(leaf, dtype)
        if sample not in (None, ONE):
            return None
        self.read_sums([leaf], ())
        row = self._of_sources[dtype][leaf.name]
        return row if row.is_constant else None


def raise_unreadable(name: str, failed: Failed) -> None:
    """Raise UnreadableError for a tensor that could not be read."""
    from ckpt.model.errors import UnreadableError
    from ckpt.model.text import show

    raise UnreadableError(f"{show(name, 80)}: {failed.problem}")
