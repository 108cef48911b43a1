"""The result of `ckpt.open`: a checkpoint as a mapping of names to tensors, each read
when it is asked for.

`ckpt.inspect` gives a report without tensor data, `ckpt.diff` a comparison.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ckpt.bytes.source import underlying_file
from ckpt.evidence.wrappers import unwrapping_rule
from ckpt.hooks import load_hook
from ckpt.model import checkpoint as contents
from ckpt.model.errors import CkptError, UnsupportedError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef, parts_of, unwrap_dtensor
from ckpt.model.text import Json, and_more, counted_noun, show, show_names, size_text
from ckpt.surface.api.handle import Handle
from ckpt.surface.api.reference import MissingNameError as MissingNameError
from ckpt.surface.api.reference import Ref as Ref
from ckpt.surface.api.reference import show_key, unfit
from ckpt.surface.api.sections import Section, Shard

if TYPE_CHECKING:
    from ckpt.commands.rewriting.report import Coverage
    from ckpt.evidence import sections as evidence
    from ckpt.evidence.survey import Survey

R = TypeVar("R")


class SectionSummary(NamedTuple):
    """A part of a checkpoint: its dotted name, its kind (`model`, `optimizer` …), and
    its tensors with their bytes.
    """

    name: str
    kind: str
    tensor_count: int
    nbytes: int

    def __repr__(self) -> str:
        return (
            f"<ckpt.SectionSummary {show(self.name) or '(the root)'}: {self.kind}, "
            f"{counted_noun(self.tensor_count, 'tensor')}, {size_text(self.nbytes)}>"
        )


class Values(Mapping[str, Json], Generic[R]):
    """The values that are not tensors: dotted names -> plain values, in file order.

    A call gives the tensors, as `Mapping.values` does.
    """

    def __init__(self, checkpoint: contents.Checkpoint, tensors: ValuesView[R]) -> None:
        self._checkpoint = checkpoint
        self._tensors = tensors
        self._rows = {row.name: row for row in checkpoint.values}

    def __call__(self) -> ValuesView[R]:
        return self._tensors

    def __getitem__(self, name: str) -> Json:
        from ckpt.tree.find import find_nodes, node_at
        from ckpt.tree.view import look

        matches = find_nodes(self._checkpoint.root, name, Limits())
        # A tensor is no value, and its text would be taken for one.
        if matches and look(matches[0][1]).kind != "tensor":
            return _plain_value(matches[0][1])
        if name not in self._rows:
            raise MissingNameError(
                name, "value", self._rows, partial(self._elsewhere, name)
            )
        # Marked, as a second one of its name.
        return _plain_value(node_at(self._checkpoint.root, self._rows[name].path))

    def _elsewhere(self, name: str) -> str | None:
        """Return the expression for the tensor of a name, if there is one."""
        is_tensor = any(entry.name == name for entry in self._checkpoint.tensors)
        return f"a tensor: c[{show_key(name)}]" if is_tensor else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        names = f": {show_names(list(self), 4, 40)}" if len(self) else ""
        return f"<{counted_noun(len(self), 'value')}{names}>"


def _plain_value(node: Node) -> Json:
    """A node as plain Python: scalars exactly, all else as `ckpt get --json` has it."""
    from ckpt.tree.json import plain
    from ckpt.tree.view import look

    view = look(node)
    if view.kind == "scalar" and (
        view.value is None or isinstance(view.value, (bool, int, float))
    ):
        return view.value
    return plain(node)


class Shown(Mapping[str, R]):
    """The members that an open checkpoint and a report share: path, values,
    sections.
    """

    checkpoint: contents.Checkpoint

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def format(self) -> str:
        """`torch-zip`, `torch-legacy`, `safetensors`, `sharded`, `folder`,
        `torchscript`, `pt2` and others.
        """
        return self.checkpoint.format

    @property
    def values(self) -> Values[R]:  # a mapping that can be called, as the method
        """The values that are not tensors: dotted names -> plain values.

        `values()` gives the tensors, as of any mapping.
        """
        return Values(self.checkpoint, ValuesView(self))

    def value(self, name: str) -> Json:
        """Return a value by its dotted name: a scalar exactly, all else as `ckpt get
        --json` has it.

        A tensor is not a value. Raises UsageError when it is not there.
        """
        try:
            return self.values[name]
        except MissingNameError as error:
            raise UsageError(
                f"no value {show(name, 80)}", path=self.path, hint=error.hint
            ) from None

    def elsewhere(self, name: str) -> str | None:
        """Return the expression for a value or a section of a name that no tensor has,
        for an open checkpoint `c`.
        """
        if any(row.name == name for row in self.checkpoint.values):
            return f"a value: c.values[{show_key(name)}]"
        is_section = any(
            row.name == name and row.tensors for row in self._open_sections()
        )
        return f"a section: c.section({show_key(name)})" if is_section else None

    def _open_sections(self) -> Sequence[evidence.Section]:
        """The sections, none of a file that was closed before it was asked for them."""
        try:
            return self.survey.sections
        except CkptError:
            return ()

    @property
    def survey(self) -> Survey:
        """The survey of the checkpoint."""
        raise NotImplementedError

    def _sizes(self) -> str:
        """The name of the file, and how many tensors of it these are with how many
        bytes.
        """
        entries = self.checkpoint.tensors
        if len(self) < len(entries):  # of a report, some were selected
            entries = [entry for entry in entries if entry.name in self]
        nbytes = sum(entry.tensor.nbytes for entry in entries)
        name = os.path.basename(os.path.abspath(self.path))
        return f"{show(name)}: {counted_noun(len(self), 'tensor')}, {size_text(nbytes)}"


class Checkpoint(Shown[Ref]):
    """An open checkpoint: dotted names -> tensors, in file order. A context manager:
    leaving it closes the file.

    A name that is not there raises KeyError with the names most like it. Two are equal
    that were opened from the same unchanged file. Pickling one notes how to open the
    file again. `checkpoint` is all that was read.
    """

    def __init__(
        self,
        checkpoint: contents.Checkpoint | Handle,
        limits: Limits | None = None,
        *,
        plugins: bool = False,
    ) -> None:
        self._handle = (
            checkpoint if isinstance(checkpoint, Handle) else Handle(checkpoint)
        )
        self.checkpoint = self._handle.checkpoint
        self.limits = limits or Limits()
        self.plugins = plugins

    @property
    def has_path(self) -> bool:
        """Tell whether it was opened by its path, and not from bytes or a file
        object.
        """
        return self.rooted is not None

    @property
    def rooted(self) -> str | None:
        """The path from the root, or the URL, that it was opened by, or None."""
        recipe = self._handle.recipe
        if recipe is not None and isinstance(recipe.given, str):
            return recipe.given
        return None

    def __getitem__(self, name: str) -> Ref:
        self.check_open()
        indices = self._handle.indices
        # The text of the error is made when it is shown: `in` raises and drops it.
        if name not in indices:
            raise MissingNameError(
                name, "tensor", indices, partial(self.elsewhere, name)
            )
        return Ref(self._handle, indices[name])

    def __iter__(self) -> Iterator[str]:
        self.check_open()
        return iter(self._handle.indices)

    def __len__(self) -> int:
        self.check_open()
        return len(self._handle.indices)

    @property
    def values(self) -> Values[Ref]:
        self.check_open()
        return super().values

    # --- parts ------------------------------------------------------------------------

    @property
    def sections(self) -> tuple[Section, ...]:
        """The parts of the checkpoint: its models, optimizers, schedulers …"""
        return tuple(Section(self._handle, section) for section in self.survey.sections)

    def section(self, name: str) -> Section:
        """Return the part with this name, whose tensors have the names inside of it.
        Raises UsageError with the names.
        """
        return Section(self._handle, self.survey.section(name))

    def shards(self) -> Iterator[Shard]:
        """Yield the tensors of each file, file by file. A tensor in several files comes
        with the first of them.
        """
        self.check_open()
        # The names of each file, by the id of its source, in the order of the files.
        files: dict[int, dict[str, int]] = {
            id(source): {} for source in self.checkpoint.sources
        }
        # A tensor without bytes goes with the one before it.
        file: dict[str, int] = next(iter(files.values()), {})
        for name, index in self._handle.indices.items():
            file = files.get(_file_of(self.checkpoint.tensors[index].tensor), file)
            file[name] = index
        for source in self.checkpoint.sources:
            self.check_open()
            indices = files[id(source)]
            if indices:
                nbytes = sum(
                    self.checkpoint.tensors[index].tensor.nbytes
                    for index in indices.values()
                )
                yield Shard(
                    self._handle, _file_name(source.name, self.path), nbytes, indices
                )

    @property
    def survey(self) -> Survey:
        """The survey of the checkpoint, which is made once."""
        self.check_open()
        return self._handle.survey

    # --- weights ----------------------------------------------------------------------

    def dequantized(self) -> Checkpoint:
        """Return the checkpoint with its quantised weights as floats under their own
        names, decoded when they are read.

        It reads the same file, which this checkpoint closes. Raises CkptError.
        """
        self.check_open()
        plain, _ = load_hook("quantised").plain_checkpoint(self.checkpoint, self.limits)
        return Checkpoint(plain, self.limits, plugins=self.plugins)

    def state_dict(
        self, section: str | None = None, *, strip: bool = False
    ) -> dict[str, Any]:
        """Return the weights of a section, or of the only model, as torch tensors on
        the CPU by their names inside of it.

        Tensors that share memory in the file share it here. `strip` takes the prefixes
        of wrappers off the names. A file without a model gives all its tensors. Raises
        UsageError for several models and for names that would become one,
        UnsupportedError for tensors that are not plain.
        """
        self.check_open()
        load_hook("torch").require_torch()
        memory = load_hook("live memory")
        chosen = self._choose_section(section)
        names = chosen.names()
        if strip:
            names = _strip_names(names, self.path)
        odd = [
            f"{show(row.name, 60)} is {why}"
            for row in chosen.entries
            if (why := unfit(row)) is not None
        ]
        if odd:
            text = (
                f"{counted_noun(len(odd), 'tensor')} without plain values: "
                f"{and_more(odd, 4)}"
            )
            raise UnsupportedError(text, path=self.path)
        # All are checked before the first byte is read.
        refs: dict[str, TensorRef] = {}
        with about(self.path):
            for name, entry in zip(names, chosen.entries, strict=True):
                ref = unwrap_dtensor(entry.tensor)
                assert isinstance(ref, TensorRef)
                memory.dtype_of(ref)
                refs[name] = ref
        weights: dict[str, Any] = self._handle.read(
            lambda sources: memory.tensors(refs, sources)
        )
        return weights

    def load_into(
        self,
        model: Any,
        *,
        strict: bool = False,
        section: str | None = None,
        sub: Sequence[str] = (),
        align: bool = True,
        on_mismatch: Literal["keep", "slice", "error"] = "keep",
        by_shape: bool = False,
        fuse: bool = False,
        split: bool = False,
        count_sliced: bool = False,
        ignore_layout: bool = False,
        min_coverage: float | None = None,
    ) -> Coverage:
        """Load the weights into a live torch.nn.Module as far as they fit. Return the
        plan that was carried out.

        The keywords are the options of `ckpt warmstart`. With `strict` every tensor of
        the model is loaded and no tensor is left over. An error leaves the model as it
        was, unless the file changes between the check and the copy. Raises LossError
        where less fits than was asked for, UsageError.
        """
        filling = load_hook("live warm start")
        load: Callable[..., Coverage] = filling.load
        survey = self.survey
        filling.refuse_other(model)
        return self._handle.read(
            lambda _: load(
                survey,
                model,
                strict=strict,
                section=section,
                sub=sub,
                align=align,
                on_mismatch=on_mismatch,
                by_shape=by_shape,
                fuse=fuse,
                split=split,
                count_sliced=count_sliced,
                ignore_layout=ignore_layout,
                min_coverage=min_coverage,
                limits=self.limits,
            )
        )

    def _choose_section(self, name: str | None) -> evidence.Section:
        """The named section, the only model, or all tensors of a file without one.
        Raises UsageError.
        """
        models = self.survey.candidates
        if name is None and len(models) > 1:
            words = and_more(
                [f"section={show(model.name, 60)!r}" for model in models], 8, ", or "
            )
            raise UsageError(f"holds {len(models)} models", path=self.path, hint=words)
        return self.survey.model_or_all(name)

    # --- the file ---------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise CkptError once it is closed."""
        self._handle.check_open()

    def check_unchanged(self) -> None:
        """Raise CkptError when a file has changed since it was opened, or is closed."""
        self.check_open()
        self.checkpoint.check_unchanged()

    def close(self) -> None:
        """Close the file. What was read stays, and everything else raises CkptError."""
        self._handle.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Checkpoint):
            return self._handle == other._handle
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._handle)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen_checkpoint, (self._handle, self.limits, self.plugins)

    def __repr__(self) -> str:
        if self._handle.is_closed:
            return (
                "<ckpt.Checkpoint "
                f"{show(os.path.basename(os.path.abspath(self.path)))}: closed>"
            )
        return f"<ckpt.Checkpoint {self._sizes()}>"

    def _repr_html_(self) -> str | None:
        """Return the lines of `ckpt inspect` as HTML, or None when it is closed or
        cannot be read any more.
        """
        if self._handle.is_closed:
            return None
        # Named as text: only a notebook loads what it shows.
        html: str | None = import_module(
            "ckpt.commands.inspect.notebook"
        ).html_checkpoint(self.survey)
        return html


def _reopen_checkpoint(handle: Handle, limits: Limits, plugins: bool) -> Checkpoint:
    """A checkpoint that was pickled."""
    return Checkpoint(handle, limits, plugins=plugins)


def _file_of(tensor: Tensor) -> int:
    """The id of the file with the bytes of a tensor, or of the first of several; 0
    without any.
    """
    # The first part that has bytes decides.
    for part in parts_of(tensor):
        place = part.storage.place
        source = None if place is None else place.first_source()
        if source is not None:
            return id(underlying_file(source, 0)[0])
    return 0


def _file_name(name: str, path: str) -> str:
    """The name of a file below the folder of its checkpoint."""
    folder = path if name.startswith(f"{path.rstrip('/')}/") else os.path.dirname(path)
    return name.removeprefix(f"{folder.rstrip('/')}/") if folder else name


def _strip_names(names: Sequence[str], path: str) -> list[str]:
    """The names without the prefixes of wrappers. Raises UsageError where two become
    one.
    """
    # The new name of each tensor -> the old one.
    taken: dict[str, str] = {}
    rule = unwrapping_rule(names)
    for name in names:
        new = rule(name)
        if taken.setdefault(new, name) != name:
            both = f"{show(taken[new], 60)} and {show(name, 60)}"
            raise UsageError(f"strip=True makes one name of {both}", path=path)
    return list(taken)


def section_summaries(survey: Survey) -> tuple[SectionSummary, ...]:
    return tuple(
        SectionSummary(row.name, row.kind, row.tensors, row.nbytes)
        for row in survey.sections
    )
