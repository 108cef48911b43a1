"""The options of all commands: one row each, and the rows that exclude each other.

A command has the options whose rows name it, in the order of the table. `signature`
hands their values to its function by their names (`--include` as `include`,
`--no-align` as `align`), and the rows are its help, what a shell completes, and what
the pages and the tests hold it to. So a new option is a row here, and a keyword of the
function that does its work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from ckpt.model.findings import LEVELS
from ckpt.model.rows import NamedTuple
from ckpt.surface.cli.output import COLORS

Kind = Literal["flag", "text", "texts", "integer", "number"]
Default = str | float | None

OUTPUT, FILTER, GATE, LIMITS = "Output", "Filter", "Gate", "Limits"
"""Groups of options in the help, in this order. Options without a group stand before
them.
"""
_FORMATS = ("torch-zip", "torch-legacy", "safetensors", "dcp")
_DEVICES = ("cpu", "cuda:0", "cuda:1", "mps")
_WRITERS = "rehome strip rename set slim convert salvage warmstart average merge"
_EVERY = (
    f"inspect ls get diff stats report explain recipe lint verify sum prune {_WRITERS}"
)


class Argument(NamedTuple):
    """A word, or a list of them, that stands on the command line without a dash."""

    name: str
    metavar: str
    help: str
    is_list: bool = False


class Option(NamedTuple):
    """An option of one or more commands."""

    name: str
    """With its dashes, as `--include`."""
    short: str | None
    """One letter with its dash, as `-o`."""
    kind: Kind
    """A flag is on or off, `texts` can be repeated."""
    metavar: str | None
    commands: tuple[str, ...]
    help: str
    group: str = ""
    rare_in: tuple[str, ...] = ()
    """The commands of which a first look at the help does not need it. `--help-all`
    shows it.
    """
    default: Default = None
    low: float | None = None
    high: float | None = None
    required: bool = False
    words: tuple[str, ...] = ()
    """The values that a shell offers. The help names each of them."""
    is_once: bool = False
    """True where a second one is refused: it names what is read or written. Of a
    setting the last one counts.
    """
    other_names: tuple[str, ...] = ()
    """Names of other tools for the same option, with their dashes."""

    @property
    def is_negative(self) -> bool:
        """True for a flag that switches a keyword off."""
        return self.name in _SWITCHES

    @property
    def parameter(self) -> str:
        """Its name as a parameter, as `no_align`."""
        return self.name[2:].replace("-", "_")

    @property
    def keyword(self) -> str:
        """The name of its value in Python, as `align`."""
        return (
            self.parameter.removeprefix("no_") if self.is_negative else self.parameter
        )


_SWITCHES = ("--no-align", "--no-header")
"""Flags that switch off what is on without them."""


def _option_row(
    kind: Kind,
    name: str,
    *texts: str,
    rare: bool = False,
    default: Default = None,
    low: float | None = None,
    high: float | None = None,
    required: bool = False,
    words: tuple[str, ...] = (),
    once: bool = False,
    other_names: tuple[str, ...] = (),
) -> Option:
    # A flag has no value, so that two texts follow its name: commands, then help.
    metavar = None
    # A flag takes no value, so it has no metavar.
    if kind == "flag":
        commands, text = texts
    else:
        metavar, commands, text = texts
    # `-o/--output`: the letter stands before the slash.
    short, _, long = name.rpartition("/")
    names = tuple(commands.replace("*", "").split())
    # `inspect*` is rare in inspect alone.
    rare_in = names if rare else ()
    if "*" in commands and not rare:
        rare_in = tuple(
            command[:-1] for command in commands.split() if command[-1] == "*"
        )
    # By position, in the order of the class: so the table is made in half the time.
    return Option(
        long,
        short or None,
        kind,
        metavar,
        names,
        text,
        "",
        rare_in,
        default,
        low,
        high,
        required,
        words,
        once,
        other_names,
    )


flag = partial(_option_row, "flag")
text = partial(_option_row, "text")
texts = partial(_option_row, "texts")
integer = partial(_option_row, "integer")
number = partial(_option_row, "number")
"""A row of each kind: the name, the metavar unless it is a flag, the commands, and the
help.

A star behind a command says that the option is rare there, `rare` that it is rare in
all of them.
"""

# The order of the rows is that of the help, of completion and of the pages.
_GROUPS: dict[str, tuple[Option, ...]] = {
    "": (
        texts(
            "--index",
            "N,N-N",
            "inspect",
            "Name the parameters with these indices in an error of DDP.",
        ),
        text(
            "--base",
            "BASE",
            "inspect",
            "Say whether this LoRA fits a checkpoint; exit 1 if it does not.",
            once=True,
        ),
        flag(
            "--textconv",
            "inspect*",
            "Print plain text for git diff, also of what cannot be read.",
        ),
        # lint calls a channel dead below the same share.
        number(
            "--threshold",
            "X",
            "stats*",
            "Call a channel dead below X times the largest channel of its layer.",
            low=0,
            high=1,
            default=0.001,
        ),
        flag("--stats", "report", "Read and measure the tensors of each file."),
        flag(
            "--quick",
            "report",
            "List several files as ckpt ls does, and read no tensors.",
        ),
        flag(
            "--read-values",
            "lint",
            "Read the tensors too, for NaN, Inf and dead channels.",
        ),
        text(
            "--model",
            "FILE.py:FACTORY",
            "lint",
            "Check a live model too, built with your own code.",
            once=True,
        ),
        # A name that means another thing in each command has a row for each.
        flag("--quick", "verify", "Check the structure only; read no tensors."),
        text(
            "--sums",
            "F",
            "verify",
            (
                "Compare with the sums in F, or with - on stdin, as `ckpt sum` or "
                "`ckpt sum --recorded` wrote."
            ),
            once=True,
        ),
        flag(
            "--root",
            "sum",
            "Print one hash of all names and values, equal for any sharding.",
        ),
        flag(
            "--values",
            "sum",
            (
                "Print one fingerprint of all values, equal in every layout and under "
                "any names."
            ),
        ),
        text(
            "--root",
            "HASH",
            "verify",
            "Compare with the hash that `ckpt sum --root` printed.",
            once=True,
        ),
        text(
            "--against",
            "HF_URL",
            "verify",
            (
                "Compare the bytes of files with the hashes that "
                "hf://ORG/MODEL[@REVISION] lists."
            ),
            once=True,
        ),
        flag(
            "--recorded",
            "sum",
            "List sizes and CRC-32 as the files record them; read no tensors.",
        ),
        text(
            "--to",
            "TAG",
            "rehome",
            "Move all tensors to this device; cpu without it.",
            words=_DEVICES,
        ),
        texts(
            "--map",
            "FROM=TO",
            "rehome",
            "Move one device only, as in cuda:0=cuda:1. Repeatable.",
        ),
        # `map_location` of torch never reaches a device that is stored as a value, such
        # as `args.device`.
        flag(
            "--objects",
            "rehome*",
            "Also change torch.device objects and device texts in values.",
        ),
        # A power loss may leave bytes behind the old end of a file; this cuts them off.
        flag(
            "--undo",
            "rehome",
            "Take back the last --in-place, finished or interrupted.",
        ),
        integer(
            "--keep-last",
            "N",
            "prune",
            "Keep the N newest whole checkpoints of each series; 1 without it.",
            low=1,
        ),
        texts(
            "--keep-best",
            "NAME[:min|max]",
            "prune",
            "Keep the checkpoint with the best of this value. Repeatable.",
        ),
        integer(
            "--keep-every",
            "N",
            "prune",
            (
                "Keep each checkpoint whose step is a multiple of N, or its epoch "
                "where names have no steps."
            ),
            low=1,
        ),
        flag(
            "--delete", "prune", "Delete what may go, after a question on a terminal."
        ),
        # A question in a pipe would get no answer.
        flag("-y/--yes", "prune", "With --delete: do not ask, as a pipe needs."),
        flag("--quick", "prune", "Do not read the bytes of what stays."),
        texts(
            "-d/--delete",
            "NAME",
            "set",
            (
                "Delete what lies under this name: a value, a tensor, a section. "
                "Repeatable."
            ),
        ),
        # Required here alone: without it rename would do nothing.
        texts(
            "--sub",
            "S/A/B/",
            "rename",
            "Substitute a regular expression, as in sed. Repeatable.",
            required=True,
        ),
        text(
            "--format",
            "FORMAT",
            "convert merge*",
            (
                "Write torch-zip, torch-legacy, safetensors or dcp. The default "
                "follows OUT's ending."
            ),
            words=_FORMATS,
        ),
        flag(
            "--plain",
            "convert",
            "Turn objects into dicts, lists and scalars, numpy arrays into tensors.",
        ),
        text(
            "--dtype",
            "NAME",
            "convert",
            "Cast floating tensors: bfloat16, float16 or float32.",
            words=("bfloat16", "float16", "float32"),
        ),
        # These write the floats; the commands of the next row read them and write
        # nothing.
        flag(
            "--dequantize",
            "slim convert",
            "Turn quantised weights into floats.",
        ),
        flag(
            "--dequantize",
            "stats* sum*",
            "Take quantised weights as the floats that they stand for.",
        ),
        text(
            "--encoding",
            "NAME",
            "convert*",
            "Decode text of Python 2, for example as latin1.",
        ),
        # transformers calls it max_shard_size.
        text(
            "--shard-size",
            "BYTES",
            "convert merge",
            "Write safetensors shards with an index, as 5GB.",
            other_names=("--max-shard-size",),
        ),
        text(
            "--recipe",
            "RECIPE",
            "diff* warmstart* convert*",
            (
                "First bring the model into another layout, as ckpt recipe wrote; "
                "convert and warmstart take a GGUF to transformers."
            ),
            once=True,
        ),
        flag("--reverse", "convert*", "Apply the recipe the other way round."),
        flag(
            "--optimizer",
            "convert*",
            "Bring the optimizer's moments into the layout of the recipe too.",
        ),
        text(
            "--weights",
            "NAME",
            "convert*",
            "Take DeepSpeed's weights from fp32 (default) or module.",
        ),
        # Any number of ranks reads a DCP, so this decides only how many files there
        # are.
        integer(
            "--ranks",
            "N",
            "convert*",
            "Cut a DCP into the files of N ranks; 1 without it.",
        ),
        text(
            "--optimizer-keys",
            "KEYS",
            "convert*",
            (
                "Key the optimizer by names (default for a DCP), numbers, or order: "
                "names in the order of the model."
            ),
        ),
        text(
            "--adapter-names",
            "NAMES",
            "convert*",
            "Give a LoRA the names of another program: peft or kohya.",
            words=("peft", "kohya"),
        ),
        text(
            "--base",
            "BASE",
            "convert*",
            "Say where the dots of kohya's names are, with --adapter-names peft.",
            once=True,
        ),
        # A strict load stops where a parameter never had a gradient.
        flag(
            "--complete-optimizer",
            "convert*",
            "Give parameters without optimizer state zero moments and step 0.",
        ),
        flag(
            "--ema",
            "slim",
            (
                "Keep the averages of the weights (EMA, SWA), under the names of the "
                "model."
            ),
        ),
        flag(
            "--strip",
            "slim convert",
            "First strip the prefixes of wrappers from the names, as ckpt strip does.",
        ),
        text(
            "--prefix",
            "TEXT",
            "strip slim* convert*",
            "Strip this prefix instead of those that wrappers leave.",
        ),
        text(
            "--to",
            "TAG",
            "slim convert*",
            "First move the tensors to this device, as cpu.",
            words=_DEVICES,
        ),
        text(
            "--fill-from",
            "OTHER",
            "salvage",
            "Take lost tensors of the same name, shape and dtype from another save.",
            once=True,
        ),
        # `.metadata` is written last, and only it has the names.
        text(
            "--names-from",
            "OTHER",
            "salvage",
            (
                "Name the items of a DCP without .metadata after another save of the "
                "same run."
            ),
            once=True,
        ),
        text(
            "--into",
            "TARGET",
            "warmstart",
            "Fill this checkpoint of the model.",
            once=True,
        ),
        text(
            "--into-model",
            "FILE.py:FACTORY",
            "warmstart",
            "Fill the model that your own code builds.",
            once=True,
        ),
        # Names that fit already need no --sub here.
        texts(
            "--sub",
            "S/A/B/",
            "warmstart",
            "Rename pretrained tensors, as ckpt rename does. Repeatable.",
        ),
        text(
            "--ratios",
            "X,Y,...",
            "average",
            (
                "Weigh the checkpoints by these numbers, divided by their sum. Without "
                "it all count alike."
            ),
        ),
        integer(
            "--last",
            "N",
            "average",
            (
                "Take the last N of a folder's numbered checkpoints: epoch_10 comes "
                "after epoch_2."
            ),
            low=2,
        ),
        text(
            "--weights",
            "X,Y,...",
            "merge",
            "Multiply what each ADAPTER adds by its number. Without it all have 1.",
        ),
        # kohya, ComfyUI and diffusers take 1 where no alpha is recorded; others do not.
        number(
            "--scale",
            "X",
            "merge",
            (
                "Multiply B @ A by X, which is alpha / rank, where an ADAPTER records "
                "no alpha."
            ),
        ),
        # Query, key and value may lie in one tensor in two ways, and shapes do not
        # tell.
        texts(
            "--packing",
            "WAY",
            "merge",
            (
                "Say how a tensor holds several layers, where two ways fit: "
                "concatenated or interleaved, in-out or out-in. Repeatable."
            ),
        ),
        flag(
            "--exact",
            "merge",
            "Compute in float64 instead of float32; the result has the dtypes of BASE.",
        ),
        texts(
            "--sub",
            "S/A/B/",
            "merge",
            "Rename the layers of ADAPTERs, as ckpt rename does. Repeatable.",
        ),
        # Prefixes such as `module.` and `_orig_mod.` are no difference without it.
        flag(
            "--no-align",
            "diff warmstart average",
            "Compare names as they are, with wrappers and without a mapping.",
            rare=True,
        ),
        texts(
            "--sub",
            "S/A/B/",
            "diff*",
            "Rename tensors of BEFORE, as ckpt rename does. Repeatable.",
        ),
        number(
            "--atol", "X", "diff", "Absolute tolerance: treat |Δ| <= X as equal.", low=0
        ),
        number(
            "--rtol",
            "X",
            "diff",
            "Relative tolerance: treat |Δ| <= X * |before| as equal.",
            low=0,
        ),
        flag("--close", "diff", "Use the tolerances of torch.testing for each dtype."),
        # A listing in git can guard the layout of a model, without the file itself.
        flag(
            "--structure",
            "diff",
            (
                "Compare names, shapes and dtypes only. Also reads what inspect --json "
                "printed."
            ),
        ),
        flag(
            "--quick",
            "diff",
            "Compare sizes and the checksums in the files; read no values.",
        ),
        text(
            "--adapter",
            "ADAPTER",
            "diff*",
            (
                "Say for each pair of a LoRA whether AFTER is BEFORE with it, and what "
                "else changed."
            ),
            once=True,
        ),
        flag(
            "--ignore-dtype",
            "diff",
            "Compare values only, as check_dtype=False of torch.testing.",
        ),
        # Without it a file and what `ckpt slim` makes of it are the same.
        flag(
            "--strict",
            "diff",
            "Count devices, strides, renames and sections of one side as differences.",
            rare=True,
        ),
        # warmstart has --into-model instead, which fills the model.
        text(
            "--model",
            "FILE.py:FACTORY",
            "inspect* diff* explain convert*",
            (
                "Build the model with your own code, on the meta device, so that roles "
                "are certain."
            ),
            once=True,
        ),
        text(
            "--on-mismatch",
            "WHAT",
            "warmstart",
            (
                "For another shape: keep the target's values, slice (copy the common "
                "block), pad (new rows), interpolate (grids of positions), or error."
            ),
            default="keep",
            words=("keep", "slice", "pad", "interpolate", "error"),
        ),
        text(
            "--fill",
            "HOW",
            "warmstart*",
            (
                "With --on-mismatch pad: take the new rows from target, or the mean of "
                "the old ones."
            ),
            words=("target", "mean"),
        ),
        # The number of positions does not tell their height and width.
        text(
            "--grid",
            "HxW",
            "warmstart*",
            (
                "With --on-mismatch interpolate: the grid of TARGET's positions, or "
                "OLD:NEW for both files. Without it both grids are square."
            ),
        ),
        # Shapes alone prove nothing, so such pairs are made only where they are asked
        # for.
        flag(
            "--by-shape",
            "warmstart*",
            "Also pair tensors that only shapes and order connect.",
        ),
        flag(
            "--fuse",
            "warmstart*",
            "Join query, key and value of PRETRAINED into one tensor of TARGET.",
        ),
        flag(
            "--split",
            "warmstart*",
            "Split one tensor of PRETRAINED into query, key and value of TARGET.",
        ),
        # A slice of the last layer belongs to another task.
        flag(
            "--count-sliced",
            "warmstart*",
            "Count what is sliced of the last layer as loaded.",
        ),
        # Llama of Meta and of transformers have one shape and another order of values.
        flag(
            "--ignore-layout",
            "warmstart*",
            "Load tensors although PRETRAINED lays out their values otherwise.",
        ),
        # The optimizer of TARGET was made with its old weights.
        flag(
            "--keep-optimizer",
            "warmstart*",
            (
                "Keep the optimizer, the scheduler and the counters of TARGET's old "
                "weights."
            ),
        ),
        flag(
            "--print-code",
            "warmstart",
            "Print Python that loads the same into a model, and write nothing.",
        ),
        texts(
            "--arg",
            "K=V",
            "inspect* diff* explain lint* convert* warmstart",
            "Pass an argument to the FACTORY, a Python literal or text. Repeatable.",
        ),
        text(
            "--check",
            "RECIPE",
            "recipe",
            "Prove this recipe on A and B, and search for nothing.",
            once=True,
        ),
        # If two ways fit, the tensor has no rule until one is named.
        texts(
            "--assume",
            "B=A",
            "recipe",
            (
                "Make this tensor of B of that tensor of A, where two ways fit. "
                "Repeatable."
            ),
        ),
        flag(
            "--tee",
            "explain",
            (
                "Pass stdin on to stderr as it comes; a terminal gets it without this "
                "option."
            ),
        ),
        text(
            "--like",
            "OTHER",
            "verify slim* convert*",
            (
                "Compare names and shapes with another checkpoint, or names with the "
                "sums that `ckpt sum` wrote."
            ),
            once=True,
        ),
        flag(
            "--drop-other",
            "slim convert average merge*",
            "Drop what the result cannot hold, and list it.",
        ),
        flag(
            "-r/--recursive",
            "rehome strip rename slim convert salvage",
            (
                "Change the checkpoints in folders too; OUT is a folder that keeps "
                "their relative paths."
            ),
        ),
        texts(
            "--files-from",
            "FILE",
            (
                "inspect ls stats report lint verify sum rehome strip rename slim "
                "convert salvage"
            ),
            "Read further PATHs from a file, - for stdin. Repeatable.",
            rare=True,
        ),
        flag(
            "--partial",
            "rehome strip rename slim convert",
            "Of an incomplete checkpoint, write the whole tensors only.",
            rare=True,
        ),
        flag(
            "--init",
            "warmstart*",
            "Initialize the factory's model, so that missing tensors have values.",
        ),
        # Seen to by `signature`, as --help-all, --quiet, --no-summary and --limit.
        text(
            "--color",
            "WHEN",
            _EVERY,
            "Use colour: auto, always or never.",
            rare=True,
            words=COLORS,
        ),
        flag("--help-all", _EVERY, "Show all options and exit.", rare=True),
    ),
    OUTPUT: (
        # JSON has a row for each form of it: per PATH, per NAME, or one document.
        flag(
            "--json",
            "inspect stats verify sum",
            "Print one JSON document per PATH, in a pipe each on one line.",
        ),
        # `best.pth` stands behind the last numbered file that has reached no more.
        text(
            "--sort",
            "BY",
            "ls",
            (
                "Sort by name, size, params or findings. By name, files without a "
                "number, as best.pth, stand by the epoch and step that they record."
            ),
            default="name",
            words=("name", "size", "params", "findings"),
        ),
        flag("--json", "ls", "Print one JSON document per checkpoint."),
        flag("--json", "get", "Print JSON, one line per NAME."),
        flag(
            "--why",
            "prune",
            "Print the table with the reasons in a pipe too, as on a terminal.",
        ),
        flag(
            "-0/--null",
            "prune",
            "Print the paths of what may go, a NUL behind each, for xargs -0.",
        ),
        # Three rows for -o: a page may go to stdout, a recipe is one file, and OUT may
        # be a folder.
        text(
            "-o/--output",
            "OUT",
            "report",
            "Write the page to this file, - for stdout.",
            once=True,
        ),
        text(
            "-o/--output",
            "RECIPE",
            "recipe",
            "Write the recipe to this file.",
            once=True,
        ),
        flag("--force", "recipe", "Replace the file of the recipe if it exists."),
        flag(
            "--parents",
            "recipe",
            "Make the folders above the recipe that are not there.",
            rare=True,
        ),
        flag("--force", "report", "Replace the page if it exists."),
        flag("--hide-intact", "verify", "Print only files that are not intact."),
        # Only the names change, and these are in `.metadata`.
        flag(
            "--link",
            "strip rename",
            "Make hard links to the data files of a DCP, and do not copy them.",
            rare=True,
        ),
        # transformers loads a folder, and asks for config.json in it.
        flag(
            "--with-config",
            "slim convert* average merge warmstart*",
            (
                "Make OUT a folder, with config.json and the tokenizer from beside the "
                "weights."
            ),
        ),
        text(
            "-o/--output", "OUT", _WRITERS, "Write to this file or folder.", once=True
        ),
        flag(
            "--in-place",
            "rehome strip rename set",
            (
                "Change the file itself. A zip grows at its end, of a DCP .metadata is "
                "replaced."
            ),
        ),
        # Appending leaves the old pickle in a zip as unused bytes; a copy has none.
        flag(
            "--copy",
            "rehome strip rename set",
            "With --in-place: write a new file and replace the old one.",
            rare=True,
        ),
        flag("--force", _WRITERS, "Replace OUT if it exists."),
        flag(
            "--parents",
            _WRITERS,
            "Make the folders above OUT that are not there.",
            rare=True,
        ),
        flag("--dry-run", _WRITERS, "Show what would change, and write nothing."),
        text(
            "--verify",
            "HOW",
            _WRITERS,
            (
                "Check the new file before it replaces anything: crc reads every byte, "
                "torch loads it."
            ),
            rare=True,
            words=("crc", "torch"),
        ),
        flag(
            "--keep-damaged",
            _WRITERS,
            (
                "Write tensors whose bytes do not match their checksum too, name them, "
                "and exit with 1."
            ),
            rare=True,
        ),
        # Commands that write refuse such a file otherwise.
        flag(
            "--keep-code",
            "rehome strip rename set convert salvage warmstart",
            "Write a result that runs code of the file when it is loaded.",
            rare=True,
        ),
        flag(
            "--json",
            "diff explain recipe lint prune set warmstart average merge",
            "Print one JSON document.",
        ),
        flag(
            "--json",
            "rehome strip rename slim convert salvage",
            "Print one JSON document per PATH, in a pipe each on one line.",
        ),
        flag(
            "--tsv",
            "inspect ls diff stats",
            "Print tab-separated rows, exact and escaped.",
        ),
        text(
            "--table",
            "NAME",
            "inspect ls stats",
            "Print a table as plain, simple, github, or any format of tabulate.",
            rare=True,
        ),
        flag(
            "--no-header",
            "inspect ls stats",
            "Omit the header of --tsv and --table.",
            rare=True,
        ),
        flag("--no-header", "diff", "Omit the header of --tsv.", rare=True),
        flag("--all", "inspect", "Show every tensor on its own line, nothing folded."),
        integer(
            "--depth",
            "N",
            "inspect",
            "Open the tree of names N levels deep.",
            low=0,
            high=64,
        ),
        text(
            "--sort",
            "BY",
            "inspect",
            "Sort tensors as in the file, or by size, the largest first.",
            default="file",
            words=("file", "size"),
        ),
        flag("--bars", "inspect", "Draw a bar for each part: where the bytes are."),
        flag("--storages", "inspect", "Show storages: device, bytes, kind, tensors."),
        flag("--values", "inspect", "Show everything that is not a tensor."),
        flag(
            "--imports",
            "inspect",
            "Show every name that the pickles import, and where.",
        ),
        flag("--name-only", "diff", "Print only the names of what differs."),
        text(
            "--show",
            "WHAT",
            "diff",
            "List changed, unchanged, buffers or all tensors.",
            default="auto",
            words=("changed", "unchanged", "buffers", "all"),
        ),
        flag(
            "--stat",
            "diff",
            "Draw one bar per module: its change relative to its norm.",
        ),
        integer(
            "--depth",
            "N",
            "diff*",
            "Cut the names of modules after N parts, with --stat.",
            low=1,
            high=64,
        ),
        flag(
            "--histogram",
            "diff",
            "Draw the histogram of the differences of each tensor.",
            rare=True,
        ),
        text(
            "--html",
            "OUT",
            "diff",
            "Draw the comparison as a page too, - for stdout and no text.",
            once=True,
        ),
        flag("--force", "diff*", "Replace the page of --html if it exists."),
        flag("--channels", "stats", "Show the dead output channels of each layer."),
        flag("--modules", "stats", "Show the share of zeros per module."),
        flag(
            "--histogram",
            "stats",
            "Draw the histogram of each tensor, from its min to its max.",
            rare=True,
        ),
        text(
            "--sort",
            "KEY",
            "stats",
            "Sort by name, min, max, mean, std, rms, zeros, nan, inf or numel.",
            default="name",
            words=(
                "name",
                "min",
                "max",
                "mean",
                "std",
                "rms",
                "zeros",
                "nan",
                "inf",
                "numel",
            ),
        ),
        text(
            "--output-format",
            "FORM",
            "lint",
            "Print text, json, github, sarif or junit.",
            words=("text", "json", "github", "sarif", "junit"),
        ),
        flag(
            "--others",
            "ls lint",
            "List the files of folders that were not looked at.",
            rare=True,
        ),
        flag("--statistics", "lint", "Print how often each code was found."),
        flag("-q/--quiet", _EVERY, "Print nothing but errors; the exit code answers."),
        flag(
            "--no-summary",
            "inspect ls stats report lint verify sum prune",
            "Leave out the closing line.",
            rare=True,
        ),
    ),
    FILTER: (
        flag("--all", "stats", "Show every tensor of the file on its own line."),
        texts("--keep", "PATH", "slim", "Keep this section or value too. Repeatable."),
        # merge has rows of its own, for it selects tensors of ADAPTERs.
        texts(
            "--include",
            "GLOB",
            "inspect diff stats sum strip rename slim convert average",
            "Select tensors by name; * crosses dots. Repeatable.",
        ),
        texts(
            "--include",
            "GLOB",
            "verify",
            "With --sums: select tensors by name; * crosses dots. Repeatable.",
        ),
        texts(
            "--exclude",
            "GLOB",
            "inspect diff stats sum strip rename slim convert average",
            "Leave out tensors by name. Repeatable.",
        ),
        texts(
            "--exclude",
            "GLOB",
            "verify",
            "With --sums: leave out tensors by name. Repeatable.",
        ),
        texts(
            "--include",
            "GLOB",
            "merge",
            "Select tensors of ADAPTERs by name; * crosses dots. Repeatable.",
        ),
        texts(
            "--exclude",
            "GLOB",
            "merge",
            "Leave out tensors of ADAPTERs by name, and list them. Repeatable.",
        ),
        text(
            "--section",
            "PATH",
            "merge*",
            "Merge into this part of BASE, such as ema.",
            once=True,
        ),
        text(
            "--section",
            "PATH",
            (
                "inspect diff stats report explain recipe sum strip rename slim "
                "convert average"
            ),
            "Use one part of the checkpoint, such as optimizer.",
            once=True,
        ),
        text(
            "--section",
            "PATH",
            "verify",
            "With --sums or --like: use one part of the checkpoint, such as optimizer.",
            once=True,
        ),
        flag("--all", "sum", "Print every tensor of the file, by its full name."),
        text(
            "--section",
            "PATH",
            "warmstart",
            "Use this part of PRETRAINED, such as ema.",
            once=True,
        ),
        text(
            "--into-section",
            "PATH",
            "warmstart*",
            "Fill this part of TARGET.",
            once=True,
        ),
    ),
    GATE: (
        texts(
            "--select",
            "CODE",
            "inspect* ls* diff* stats* lint",
            "Report only these findings, of any level. Repeatable, or comma-separated.",
        ),
        texts(
            "--ignore",
            "CODE",
            "inspect* ls* diff* stats* lint",
            "Ignore these findings. Repeatable, or comma-separated.",
        ),
        text(
            "--level",
            "LEVEL",
            "inspect* ls* diff* stats* lint",
            "Report this level and above: error, warning or info.",
            words=LEVELS,
        ),
        texts(
            "--fail-on",
            "CODE",
            "inspect ls stats lint",
            (
                "Exit 1 on this finding, or on any of level error, warning or any. "
                "Repeatable, or comma-separated."
            ),
        ),
        flag(
            "--skip-unreadable",
            "ls lint",
            "Exit 0 although files cannot be read.",
            rare=True,
        ),
        flag(
            "--require",
            "ls verify",
            "Exit 2 where a list of --files-from is empty.",
        ),
        flag(
            "--require",
            "lint",
            "Exit 2 where a list is empty, or a folder holds no checkpoint.",
        ),
        # diff already exits with 1 where files differ, so here it narrows.
        texts(
            "--fail-on",
            "CODE",
            "diff",
            (
                "Exit 1 on this finding or level only, also where the files differ; "
                "differ adds that difference as well. Repeatable, or comma-separated."
            ),
        ),
        flag(
            "--skip-others",
            "lint*",
            (
                "Count PATHs that are no checkpoint, as in a folder; without it they "
                "are errors."
            ),
        ),
        texts(
            "--per-file-ignores",
            "GLOB:CODE",
            "lint*",
            (
                "Ignore these findings in files that GLOB matches, as in "
                "'old/*:prefix'. Repeatable."
            ),
        ),
        flag(
            "--exit-zero",
            "lint*",
            "Exit 0 although findings are left; 2 for trouble stays.",
        ),
        text(
            "--baseline",
            "FILE",
            "lint",
            "Leave out the known findings that FILE holds.",
            once=True,
        ),
        flag(
            "--write-baseline",
            "lint",
            "Write the present findings into the file of --baseline.",
        ),
        text(
            "--config",
            "FILE",
            "lint*",
            (
                "Take the rules of this ckpt.toml or pyproject.toml instead of the "
                "nearest one."
            ),
            once=True,
        ),
        flag(
            "--no-config",
            "lint*",
            "Ignore the rules of the nearest ckpt.toml or pyproject.toml.",
        ),
        number(
            "--min-coverage",
            "X",
            "warmstart",
            (
                "Exit 1 and write nothing if a smaller share of the model is loaded; "
                "0.1 without it."
            ),
            low=0,
            high=1,
        ),
    ),
    LIMITS: (
        integer(
            "-j/--jobs",
            "N",
            "ls stats lint verify sum",
            "Read N files at once. The output is the same for any N.",
            low=1,
            high=256,
            rare=True,
        ),
        text(
            "--cluster",
            "WHERE",
            "diff stats verify sum",
            "Work on a Dask cluster: tcp://HOST:PORT, or local[:N] for N processes.",
            rare=True,
            once=True,
        ),
        texts(
            "--limit",
            "NAME=N",
            _EVERY,
            "Raise a limit of the reader, such as pickle-bytes=1GiB.",
            rare=True,
        ),
    ),
}
"""Group -> its rows. Of each command they stand in this order in the help."""
OPTIONS = tuple(
    row._replace(group=group) if group else row
    for group, rows in _GROUPS.items()
    for row in rows
)

_PATHS = Argument(
    "paths", "PATH...", "Checkpoint files, indexes of shards, or folders.", is_list=True
)
_PATH = "A checkpoint."
ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    # Most commands take PATHs; the rows below take the place of this one.
    **dict.fromkeys(_EVERY.split(), (_PATHS,)),
    "get": (
        Argument("path", "PATH", _PATH),
        Argument(
            "names",
            "[NAME...]",
            "Dotted names. Without one: what there is.",
            is_list=True,
        ),
    ),
    "diff": (Argument("before", "BEFORE", _PATH), Argument("after", "AFTER", _PATH)),
    "recipe": (
        Argument(
            "before",
            "A",
            "A checkpoint, a folder of the files of its ranks, or a pattern: 'tp*.pt'.",
        ),
        Argument("after", "B", "The same weights in another layout."),
    ),
    "report": (
        _PATHS._replace(
            help="Checkpoints, folders, or stored JSON of inspect, diff, stats and ls."
        ),
    ),
    "explain": (
        Argument(
            "words",
            "TEXT|CODE|- [[OLDER] PATH]",
            "An error message, or a code; - reads the output of a program from stdin. "
            "With the PATH of a checkpoint behind it, the answer is for that "
            "checkpoint. An OLDER one of the run tells which parameters got no "
            "gradient.",
            is_list=True,
        ),
    ),
    "prune": (
        Argument("path", "RUN", "The folder in which a run saves its checkpoints."),
    ),
    "set": (
        Argument("path", "FILE", _PATH),
        Argument(
            "assignments",
            "[NAME=VALUE...]",
            "Values by their names; NAME:=JSON for another type.",
            is_list=True,
        ),
    ),
    "warmstart": (
        Argument("pretrained", "PRETRAINED", "The checkpoint whose values are used."),
    ),
    "average": (_PATHS._replace(help="Checkpoints, or the folder of --last."),),
    "merge": (
        Argument("base", "BASE", "The checkpoint of the weights."),
        Argument(
            "adapters",
            "[ADAPTER...]",
            (
                "Files or folders of adapters. Without one, BASE is a checkpoint of "
                "training that holds its own."
            ),
            is_list=True,
        ),
    ),
}
"""Command -> its arguments, in their order."""


class Exclusion(NamedTuple):
    """Options that exclude each other; with `others`, any of the first excludes any of
    the others.
    """

    options: tuple[str, ...]
    others: tuple[str, ...] = ()

    def broken(self, given: frozenset[str]) -> tuple[str, str] | None:
        """Two given options that exclude each other."""
        first = [option for option in self.options if option in given]
        if not self.others:
            return (first[0], first[1]) if len(first) > 1 else None
        second = [option for option in self.others if option in given]
        return (first[0], second[0]) if first and second else None

    def __str__(self) -> str:
        first, rest = self.options, self.others
        if not rest:
            return f"{_join_options(first)} exclude each other."
        verb = "excludes" if len(first) == 1 else "exclude"
        return f"{_join_options(first)} {verb} {_join_options(rest)}."


def _join_options(options: Sequence[str]) -> str:
    if len(options) == 1:
        return options[0]
    return f"{', '.join(options[:-1])} and {options[-1]}"


_FORMS = (
    "--json",
    "--tsv",
    "--table",
    "--name-only",
    "--output-format",
    "--statistics",
    "--others",
    "--histogram",
    "--bars",
    "--index",
    "--textconv",
    "--print-code",
    "--null",
    "--why",
)
"""Options that ask for something to be printed."""
_IN_PLACE = Exclusion(("--output", "--in-place"))
_EXCLUSIONS: dict[str, tuple[Exclusion, ...]] = {
    "inspect": (
        Exclusion(("--json", "--tsv", "--table")),
        Exclusion(("--json", "--index"), ("--storages", "--values", "--imports")),
        Exclusion(
            ("--sort",),
            (
                "--json",
                "--depth",
                "--bars",
                "--index",
                "--storages",
                "--values",
                "--imports",
            ),
        ),
        Exclusion(
            ("--bars",),
            (
                "--json",
                "--index",
                "--tsv",
                "--table",
                "--storages",
                "--values",
                "--imports",
            ),
        ),
        Exclusion(("--index",), ("--tsv", "--table")),
        # The answer about a LoRA takes the place of all tables.
        Exclusion(
            ("--base",),
            (
                "--index",
                "--tsv",
                "--table",
                "--storages",
                "--values",
                "--imports",
                "--bars",
                "--textconv",
            ),
        ),
        # git diff shows the text of one whole file.
        Exclusion(
            ("--textconv",),
            (
                "--json",
                "--tsv",
                "--table",
                "--index",
                "--storages",
                "--values",
                "--imports",
                "--include",
                "--exclude",
                "--section",
                "--fail-on",
                "--bars",
            ),
        ),
    ),
    "ls": (Exclusion(("--json", "--tsv", "--table")),),
    "diff": (
        Exclusion(("--json", "--tsv", "--name-only")),
        Exclusion(("--structure", "--quick", "--stat")),
        # Both list tensors, and no modules.
        Exclusion(("--stat",), ("--tsv", "--name-only")),
        # The answer about an adapter takes the place of the comparison.
        Exclusion(
            ("--adapter",),
            (
                "--structure",
                "--quick",
                "--stat",
                "--histogram",
                "--html",
                "--tsv",
                "--name-only",
            ),
        ),
        # Without values there is nothing that a tolerance could be about.
        Exclusion(
            ("--structure", "--quick"),
            ("--close", "--atol", "--rtol", "--ignore-dtype"),
        ),
        Exclusion(("--histogram",), ("--structure", "--quick", "--tsv", "--name-only")),
        Exclusion(("--structure",), ("--fail-on",)),
        Exclusion(("--structure", "--sub"), ("--recipe",)),
        Exclusion(("--close",), ("--atol", "--rtol")),
        Exclusion(("--structure", "--quick"), ("--cluster",)),
    ),
    "stats": (
        Exclusion(("--json", "--tsv", "--table")),
        Exclusion(("--histogram", "--modules"), ("--tsv", "--table")),
        # A cluster has workers of its own.
        Exclusion(("--cluster", "--jobs")),
    ),
    "report": (Exclusion(("--stats", "--quick")),),
    "lint": (
        Exclusion(("--json", "--output-format")),
        # The counts are lines of text.
        Exclusion(("--statistics",), ("--json", "--output-format")),
        Exclusion(("--config", "--no-config")),
        Exclusion(("--exit-zero", "--fail-on")),
    ),
    "verify": (
        Exclusion(("--json", "--hide-intact")),
        # The root is made of all values of the file.
        Exclusion(("--root",), ("--quick", "--sums", "--like")),
        # The hub publishes hashes of whole files, not of tensors.
        Exclusion(
            ("--against",),
            (
                "--quick",
                "--sums",
                "--like",
                "--root",
                "--include",
                "--exclude",
                "--section",
                "--jobs",
                "--cluster",
            ),
        ),
        Exclusion(("--cluster", "--jobs")),
    ),
    "sum": (
        Exclusion(("--cluster", "--jobs")),
        # The records of files are listed as they are, without a look at tensors.
        Exclusion(
            ("--recorded",),
            ("--include", "--exclude", "--section", "--all", "--cluster"),
        ),
        Exclusion(("--all", "--section")),
        Exclusion(("--root", "--values", "--recorded")),
    ),
    # A recipe that is given is neither searched for nor written.
    "recipe": (Exclusion(("--check",), ("--output", "--assume")),),
    "rehome": (_IN_PLACE,),
    "strip": (_IN_PLACE,),
    "rename": (_IN_PLACE,),
    "set": (_IN_PLACE,),
    "slim": (Exclusion(("--ema", "--keep")),),
    "convert": (Exclusion(("--weights", "--section")),),
    "prune": (Exclusion(("--json", "--null", "--why")),),
    "warmstart": (Exclusion(("--into", "--into-model")),),
}
"""Command -> its options that do not go together."""


def options_of(command: str) -> list[Option]:
    """The rows of a command, in the order of its help."""
    return [row for row in OPTIONS if command in row.commands]


def exclusions_of(command: str) -> tuple[Exclusion, ...]:
    """The options of a command that do not go together, those that print something and
    --quiet among them.
    """
    own = _EXCLUSIONS.get(command, ())
    names = {row.name for row in options_of(command)}
    forms = tuple(form for form in _FORMS if form in names)
    # --quiet would drop what these print.
    return (*own, Exclusion(forms, ("--quiet",))) if forms else own


def typed_options(command: str, keywords: Mapping[str, object]) -> list[str]:
    """The words of a command line for the options that were given, by the names that a
    command gets them under.
    """
    words: list[str] = []
    for row in options_of(command):
        value = keywords.get(row.keyword)
        # A value that is the default need not be typed.
        if value is None or value == row.default:
            continue
        if row.kind == "flag":
            # `--no-align` is typed where `align` is False.
            words += [row.name] if value is not row.is_negative else []
        else:
            for item in value if isinstance(value, list) else [value]:
                words += [row.short or row.name, str(item)]
    return words
