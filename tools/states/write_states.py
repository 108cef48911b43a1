"""`write_states.py OUTDIR`: objects of torch's own classes, saved whole, as the torch
that runs this makes them.

Runs on Python 2.7 and later with every torch from 1.0 on, and needs nothing else. One
file holds the variants of one expression: as made, with each optional argument
switched, after a step of training, in half, and so on. Whatever this torch cannot make
or save is left out, with a line in `skipped.txt`. `collect.py` reads the files.
`write_states.py OUTDIR --again FOLDER` loads the files of another torch and saves them
again instead, and `write_states.py OUTDIR programs values` writes these parts alone.
"""

# ruff: noqa: UP031 (Python 2.7 runs this)

import copy
import inspect
import io
import math
import os
import re
import signal
import sys
import tempfile
import warnings

import expressions
import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)

CONVOLUTION = (
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "output_padding",
    "output_size",
    "size",
    "scale_factor",
)
"""Arguments that take one number for all axes, or a tuple."""
OTHERS = {
    "activation": ["gelu", nn.functional.relu, torch.relu, torch.tanh, nn.ReLU()],
    "anneal_strategy": ["linear"],
    "batch_first": [True],
    "betas": [(0, 0.9)],
    "custom_decoder": [nn.Linear(4, 4)],
    "custom_encoder": [nn.Linear(4, 4)],
    "cycle_momentum": [False],
    "device": ["cpu", torch.device("cpu")],
    "distance_function": [nn.functional.pairwise_distance],
    "divisor_override": [2],
    "dtype": [torch.float64],
    "eps": [1e-3, 1],
    "fused": [True],
    "generator": [torch.Generator()],
    "foreach": [True, False],
    "init": [0.5],
    "kdim": [3],
    "last_epoch": [],
    "line_search_fn": ["strong_wolfe"],
    "lr": [1, 0.25, torch.tensor(0.1)],
    "max_norm": [1, 2.0],
    "mode": [
        "mean",
        "sum",
        "bilinear",
        "nearest",
        "min",
        "max",
        "triangular2",
        "exp_range",
    ],
    "momentum": [None, 0.5, 1],
    "nonlinearity": ["relu"],
    "norm": [nn.LayerNorm(4)],
    "num_layers": [2],
    "output_ratio": [0.5],
    "p": [1, 0.25, 3],
    "padding": ["same", "valid"],
    "padding_idx": [1, -1],
    "padding_mode": ["zeros", "reflect", "replicate", "circular"],
    "pos_weight": [torch.ones(3)],
    "proj_size": [2],
    "recompute_scale_factor": [True],
    "reduce": [True, False],
    "reduction": ["none", "sum", "mean", "batchmean"],
    "scale_mode": ["iterations"],
    "size_average": [True, False],
    "threshold_mode": ["abs"],
    "unflattened_size": [(2, 2), [2, 2], torch.Size([2, 2])],
    "validate_args": [True, False],
    "vdim": [5],
    "weight": [torch.ones(3)],
    "weight_decouple": [True],
    "_weight": [],
}
"""Values for arguments that their defaults do not suggest."""


class Expressions:
    """The names that the expressions use."""

    @staticmethod
    def x(*shape):
        """Random numbers."""
        return torch.randn(*shape)

    @staticmethod
    def n(high, *shape):
        """Random integers below a bound."""
        return torch.randint(0, high, shape).long()

    @staticmethod
    def p(*shape):
        """Parameters in a list."""
        return [nn.Parameter(torch.randn(*shape)), nn.Parameter(torch.randn(2))]


def namespace():
    names = {
        "torch": torch,
        "nn": nn,
        "F": nn.functional,
        "x": Expressions.x,
        "n": Expressions.n,
        "p": Expressions.p,
        "double": math.cos,
    }
    exec(expressions.SETUP, names)
    return names


NAMES = namespace()


def line(error):
    return "%s: %s" % (type(error).__name__, str(error).replace("\n", " ")[:150])


def made(text):
    """The value of an expression. Some constructors of old versions never end when they
    are given a text.
    """
    signal.alarm(20)
    try:
        return eval(text, NAMES)
    finally:
        signal.alarm(0)


def interrupt(number, frame):
    raise RuntimeError("it does not end")


signal.signal(signal.SIGALRM, interrupt)


class Folder:
    """Saves objects, and writes down what cannot be made or saved."""

    def __init__(self, path):
        self.path = path
        self.files = 0
        self.objects = 0
        if not os.path.isdir(path):
            os.makedirs(path)
        self.log = open(os.path.join(path, "skipped.txt"), "w")  # noqa: SIM115 (open to the end)

    def skip(self, text, error):
        self.log.write("%s  # %s\n" % (text, line(error)))

    def save(self, name, rows):
        """Save those of the objects that can be saved to one file, and the first one in
        the legacy format also.
        """
        good = [thing for _, thing in rows]
        try:
            torch.save(good, io.BytesIO())
        except Exception:  # look for those that stand in the way
            good = []
            for text, thing in rows:
                try:
                    torch.save(thing, io.BytesIO())
                    good.append(thing)
                except Exception as error:
                    self.skip(text, error)
        if not good:
            return
        stem = re.sub("[^A-Za-z0-9]+", "_", name)[:60].strip("_")
        path = os.path.join(self.path, "%04d_%s" % (self.files, stem))
        torch.save(good, path + ".pt")
        try:
            torch.save(
                good[0], path + ".legacy.pt", _use_new_zipfile_serialization=False
            )
        except TypeError:  # torch before 1.4 knows no other format
            pass
        self.files += 1
        self.objects += len(good)


def defaults(function):
    """The arguments of a function that have a default, with it."""
    try:
        if hasattr(inspect, "signature"):
            parameters = inspect.signature(function).parameters.values()
            return [
                (row.name, row.default)
                for row in parameters
                if row.default is not row.empty
            ]
        spec = inspect.getargspec(function)  # Python 2
        last = spec.args[-len(spec.defaults or ()) :]
        return list(zip(last, spec.defaults or ()))  # noqa: B905 (the same)
    except (TypeError, ValueError):
        return []


def switches(name, default):
    """Return other values for an argument."""
    values = list(OTHERS.get(name, []))
    if isinstance(default, bool):
        values.append(not default)
    elif name in CONVOLUTION:
        values += [2, (2,), (2, 2), (2, 2, 2), [2, 2], 2.0, (2.0, 2.0)]
    elif isinstance(default, int):
        values.append(default + 1)
    elif isinstance(default, float):
        values += [default / 2, 1]
    elif default is None and not values:
        values += [True, 1, 0.5]
    return [value for value in values if value is not default]


def calls_of(text):
    """The expression, and the expression with each optional argument switched, as
    functions that make it.
    """
    yield text, lambda: made(text)
    call = re.match(r"([\w.]+)\((.*)\)$", text)
    if call is None:
        return
    try:
        kind = made(call.group(1))
    except Exception:
        return
    if not inspect.isclass(kind):
        return
    for name, default in defaults(kind.__init__):
        if re.search(r"\b%s=" % name, call.group(2)):
            continue
        for value in switches(name, default):
            if "quantized" in text and isinstance(value, str):  # it would not end
                continue
            NAMES["value"] = value
            separator = ", " if call.group(2) else ""
            more = "%s(%s%s%s=value)" % (call.group(1), call.group(2), separator, name)
            shown = more.replace(
                "=value", "=%s" % (repr(value).replace("\n", " ")[:40])
            )

            def make(more=more, value=value):
                NAMES["value"] = value
                return made(more)

            yield shown, make


def numbers_in(thing):
    """The tensors of numbers in a result."""
    if isinstance(thing, torch.Tensor):
        return [thing] if thing.requires_grad else []
    if isinstance(thing, (list, tuple)):
        return [tensor for item in thing for tensor in numbers_in(item)]
    return []


def train(module, given):
    """Run a module forward and backward, and step."""
    out = module(*given) if isinstance(given, tuple) else module(given)
    tensors = numbers_in(out)
    if tensors:
        sum(tensor.sum() for tensor in tensors).backward()
        parameters = [
            parameter for parameter in module.parameters() if parameter.grad is not None
        ]
        if parameters:
            torch.optim.SGD(parameters, lr=0.1).step()


def variants_of(text, make, given):
    """A module, and the module after what people do before they save one."""

    def attempt(label, change):
        try:
            module = make()
            result = change(module)
            return [("%s, %s" % (text, label), module if result is None else result)]
        except Exception as error:
            folder.skip("%s, %s" % (text, label), error)
            return []

    rows = attempt("as made", lambda module: None)
    if not rows:
        return []
    if given is not None:
        rows += attempt("trained", lambda module: train(module, made(given)))
        rows += attempt("in eval", lambda module: train(module.eval(), made(given)))
        rows += attempt(
            "in eval, not trained", lambda module: run_plain(module.eval(), made(given))
        )
    return rows


def run_plain(module, given):
    with torch.no_grad():
        _ = module(*given) if isinstance(given, tuple) else module(given)


def more_variants_of(text, make, given):
    """Further variants, which are the same for each argument."""
    rows = []
    for label, change in (
        ("in half", lambda module: module.half()),
        ("in double", lambda module: module.double()),
        ("shared", lambda module: module.share_memory()),
        ("frozen", lambda module: module.requires_grad_(False)),
        ("frozen by hand", freeze),
        ("on meta", lambda module: module.to(device="meta")),
        ("channels last", lambda module: module.to(memory_format=torch.channels_last)),
        ("copied", copy.deepcopy),
        ("loaded", loaded),
        ("hooks removed", hook_and_unhook),
        ("hooked", hook),
        (
            "extra attributes",
            lambda module: module.register_buffer("mask", torch.ones(1)),
        ),
        (
            "buffer not saved",
            lambda module: module.register_buffer(
                "mask", torch.ones(1), persistent=False
            ),
        ),
        ("no gradients", lambda module: module.zero_grad()),
        ("compiled", lambda module: module.compile()),
        ("pruned", lambda module: pruned(module, made(given))),
        ("qconfig", qconfig),
        ("state loaded", lambda module: load_state(module)),
        ("memory", lambda module: module.cpu()),
        ("parametrized parts", parametrized_parts),
    ):
        try:
            module = make()
            result = change(module)
            rows.append(
                ("%s, %s" % (text, label), module if result is None else result)
            )
        except Exception as error:
            folder.skip("%s, %s" % (text, label), error)
    return rows


def freeze(module):
    for parameter in module.parameters():
        parameter.requires_grad = False


def load(stream):
    try:
        return torch.load(stream, weights_only=False)
    except TypeError:  # torch before 1.13
        return torch.load(stream)


def loaded(thing):
    stream = io.BytesIO()
    torch.save(thing, stream)
    stream.seek(0)
    return load(stream)


def load_state(module):
    module.load_state_dict(module.state_dict())


HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_backward_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "_register_state_dict_hook",
    "_register_load_state_dict_pre_hook",
    "register_state_dict_pre_hook",
    "register_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_load_state_dict_post_hook",
)


def hook(module):
    """Keep one hook of each kind: `torch.is_tensor` stands for a function of the
    author.
    """
    for name in HOOKS:
        if hasattr(module, name):
            try:
                getattr(module, name)(torch.is_tensor)
            except Exception:  # a module takes one kind of backward hooks only
                pass


def hook_and_unhook(module):
    for name in HOOKS:
        if hasattr(module, name):
            try:
                handle = getattr(module, name)(torch.is_tensor)
                if handle is not None:
                    handle.remove()
            except Exception:  # the same
                pass


def pruned(module, given):
    from torch.nn.utils import prune

    prune.l1_unstructured(module, "weight", 0.5)
    train(module, given)


def qconfig(module):
    module.eval()
    module.qconfig = NAMES["Q"].get_default_qconfig("fbgemm")
    return NAMES["Q"].prepare(module)


def parametrized_parts(module):
    """Whole modules with parametrizations cannot be saved: their classes are made at
    run time.
    """
    nn.utils.parametrizations.spectral_norm(module, "weight")
    return module.parametrizations


def read_all(thing):
    """Read every property of an object: some keep what they computed."""
    for name in dir(type(thing)):
        if not name.startswith("__"):
            try:
                getattr(thing, name)
            except Exception:
                pass
    for name in ("sample", "rsample", "entropy", "enumerate_support"):
        try:
            drawn = getattr(thing, name)()
            thing.log_prob(drawn)
            thing.cdf(drawn)
        except Exception:
            pass


def lines(text):
    rows = []
    for row in text.strip().splitlines():
        row = row.strip()
        if row and not row.startswith("#"):
            left, _, right = row.partition(" | ")
            rows.append((left.strip(), right.strip() or None))
    return rows


def write_modules():
    covered = set()
    for text, given in lines(expressions.MODULES):
        rows = []
        for shown, make in calls_of(text):
            rows += variants_of(shown, make, given if shown == text else None)
        rows += more_variants_of(text, lambda text=text: made(text), given)
        covered.update(type(thing) for _, thing in rows)
        folder.save(text, rows)
    # Classes that a later torch adds.
    for name in sorted(vars(nn)):
        kind = getattr(nn, name)
        if (
            inspect.isclass(kind)
            and issubclass(kind, nn.Module)
            and kind not in covered
        ):
            folder.log.write("no expression makes %s\n" % name)


def closure_of(optimizer, parameters):
    def closure():
        optimizer.zero_grad()
        loss = sum((parameter**2).sum() for parameter in parameters)
        loss.backward()
        return loss

    return closure


def write_optimizers():
    for text, _ in lines(expressions.OPTIMIZERS):
        rows = []
        for shown, make in calls_of(text):
            for label in (
                ("as made", "stepped", "copied", "loaded")
                if shown == text
                else ("stepped",)
            ):
                try:
                    optimizer = make()
                    if label != "as made":
                        parameters = [
                            item
                            for group in optimizer.param_groups
                            for item in group["params"]
                        ]
                        closure = closure_of(optimizer, parameters)
                        if "Sparse" in shown:
                            for parameter in parameters:
                                parameter.grad = (
                                    torch.ones_like(parameter).detach().to_sparse()
                                )
                            optimizer.step()
                        else:
                            optimizer.step(closure)
                            optimizer.step(closure)
                    if label == "copied":
                        optimizer = copy.deepcopy(optimizer)
                    if label == "loaded":
                        optimizer = loaded(optimizer)
                        optimizer.load_state_dict(optimizer.state_dict())
                    rows.append(("%s, %s" % (shown, label), optimizer))
                except Exception as error:
                    folder.skip("%s, %s" % (shown, label), error)
        folder.save(text, rows)


def write_schedulers():
    for text, _ in lines(expressions.SCHEDULERS):
        rows = []
        for shown, make in calls_of(text):
            for label in (
                ("as made", "stepped", "loaded") if shown == text else ("stepped",)
            ):
                try:
                    NAMES["optimizer"] = torch.optim.SGD(
                        Expressions.p(2), lr=0.1, momentum=0.9
                    )
                    scheduler = make()
                    if label != "as made":
                        for _ in range(3):
                            NAMES["optimizer"].step()
                            if "Plateau" in text:
                                scheduler.step(1.0)
                            else:
                                scheduler.step()
                    if label == "loaded":
                        scheduler.load_state_dict(scheduler.state_dict())
                    rows.append(("%s, %s" % (shown, label), scheduler))
                except Exception as error:
                    folder.skip("%s, %s" % (shown, label), error)
        folder.save(text, rows)


def write_values():
    """What is neither a module nor an optimizer: distributions, data sets, samplers,
    scalers, and so on.
    """
    for text, _ in lines(expressions.VALUES):
        rows = []
        for shown, make in calls_of(text):
            for label in (
                ("as made", "read", "copied") if shown == text else ("as made",)
            ):
                try:
                    thing = make()
                    if label == "read":
                        read_all(thing)
                    if label == "copied":
                        thing = copy.deepcopy(thing)
                    rows.append(("%s, %s" % (shown, label), thing))
                except Exception as error:
                    folder.skip("%s, %s" % (shown, label), error)
        folder.save(text, rows)


def write_programs():
    """Write what takes several statements: each program leaves `made`, an object or a
    list of them.
    """
    for program in re.split(r"(?m)^# ", expressions.PROGRAMS)[1:]:
        title, _, body = program.partition("\n")
        names = dict(NAMES)
        names["train"] = train
        names["folder"] = tempfile.mkdtemp()
        try:
            exec(body, names)
        except Exception as error:
            folder.skip(title, error)
        things = names.get("made", [])
        things = things if isinstance(things, list) else [things]
        rows = [("%s %d" % (title, index), thing) for index, thing in enumerate(things)]
        for text, thing in list(rows):
            try:
                rows.append(("%s, loaded" % text, loaded(thing)))
            except Exception:  # `save` says it
                pass
        folder.save(title, rows)


def write_again(other):
    """Load the files of another torch, and save what they hold."""
    for name in sorted(os.listdir(other)):
        if name.endswith(".pt"):
            try:
                with open(os.path.join(other, name), "rb") as stream:
                    things = load(stream)
            except Exception as error:
                folder.skip(name, error)
                continue
            rows = (
                list(enumerate(things)) if isinstance(things, list) else [(0, things)]
            )
            for number, thing in list(rows):
                if isinstance(thing, nn.Module):
                    try:
                        rows.append((number, copy.deepcopy(thing).eval()))
                    except Exception:
                        pass
            folder.save(
                name[5:], [("%s %d" % (name, number), thing) for number, thing in rows]
            )


if __name__ == "__main__":
    folder = Folder(sys.argv[1])
    if sys.argv[2:3] == ["--again"]:
        write_again(sys.argv[3])
    else:
        parts = (
            write_schedulers,
            write_optimizers,
            write_values,
            write_modules,
            write_programs,
        )
        for write in parts:
            if sys.argv[2:] and write.__name__[6:] not in sys.argv[2:]:
                continue
            try:
                write()
            except Exception as error:
                folder.skip(write.__name__, error)
    print(
        "torch %s: %d objects in %d files"
        % (torch.__version__, folder.objects, folder.files)
    )
