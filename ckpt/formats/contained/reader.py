"""Reading a library's archive that holds checkpoints: each member where it lies, as a part under its name."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint, Notice
from ckpt.checkpoint import Member as Part
from ckpt.formats.common.merge import merged
from ckpt.formats.common.pickled import Contents, checkpoint
from ckpt.formats.contained import FORMAT
from ckpt.formats.contained.layouts import layout_of
from ckpt.formats.contained.values import json_value, pickles_inside, text_value
from ckpt.formats.probe import Probe
from ckpt.limits import Limits
from ckpt.nodes import Dict
from ckpt.rows import replace


def read(probe: Probe, limits: Limits) -> Checkpoint:
    layout = layout_of(probe, limits)
    traits = FORMAT.traits._replace(label=layout.label, load=layout.load, has_checksums=layout.has_checksums)
    root = Dict()
    parts: list[Part] = []
    notices: list[Notice] = []
    try:
        for key, member in layout.parts.items():
            member.admit(limits, probe.budget)
            opened = probe.open(member, f"{probe.mark}{key}:")
            parts.append(Part(member.member, key, opened, is_model=not parts))  # the model comes first
        for key, member in layout.jsons.items():
            value, pickles = json_value(member.read(limits, probe.budget), member.member, probe.budget)
            root.set([key], [value])
            notices += pickles_inside(probe, member.member, pickles)
        for key, member in layout.texts.items():
            root.set([key], [text_value(member.read(limits, probe.budget), member.member)])
        contents = Contents(notices, None, probe.mark, probe.budget)
        values = checkpoint(probe.path, FORMAT.name, traits, root, contents, limits)
        whole = merged(probe.path, FORMAT.name, [Part("", "", values), *parts])
        return replace(
            whole,
            traits=traits,
            nbytes=probe.size,
            byteorder=parts[0].checkpoint.byteorder,
            weights_only=whole.weights_only or None,  # torch.load opens the members, not the archive
            parts=tuple(part.file for part in parts),
            members=(),  # they are not files of their own
            sources=(probe.file,),
        )
    except BaseException:
        for part in parts:
            part.checkpoint.close()
        raise
