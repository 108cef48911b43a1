"""Names that a pickle imports: how Python 3 spells them, who owns them, and whether
they are on the closed list.

The list itself is in `known`.
"""

from __future__ import annotations

from sys import stdlib_module_names

from ckpt.model.dtypes import BY_STORAGE
from ckpt.model.nodes import Global, Node

# Modules of Python 2, modules of C that pickles name, and an older one of torch.
_MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "UserDict": "collections",
    "UserList": "collections",
    "UserString": "collections",
    "_operator": "operator",
    "_functools": "functools",
    "torch.tensor": "torch._tensor",
}
OLD_MODULES = frozenset(
    ("__builtin__", "copy_reg", "UserDict", "UserList", "UserString")
)
"""The modules above that Python 3 does not have."""
# Names of builtins in Python 2.
_RENAMED = {"xrange": "range", "long": "int", "unicode": "str", "unichr": "chr"}


def python3_name(module: str, name: str) -> str:
    """The dotted name in Python 3 and numpy 1 of what older or newer versions wrote."""
    # numpy 2 renamed its core; pickles of both are read by one list.
    if module.startswith("numpy._core."):
        module = "numpy.core." + module[12:]
    elif module == "UserDict" and name == "IterableUserDict":
        return "collections.UserDict"
    elif module == "__builtin__":
        if name == "reduce":
            return "functools.reduce"
        name = _RENAMED.get(name, name)
    return f"{_MODULES.get(module, module)}.{name}"


USUAL = frozenset(
    (
        "collections.OrderedDict",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor_v2",
        *(f"torch.{name}" for name in BY_STORAGE),
    )
)
"""Known names of which most state dicts have no others."""
PACKAGES = frozenset(
    [
        "accelerate",
        "allennlp",
        "apex",
        "auraloss",
        "bitsandbytes",
        "botorch",
        "datasets",
        "deepspeed",
        "detectron2",
        "diffusers",
        "e3nn",
        "easydict",
        "efficientnet_pytorch",
        "einops",
        "espnet",
        "fairseq",
        "fastai",
        "fastcore",
        "fvcore",
        "gpytorch",
        "hydra",
        "kornia",
        "lightning",
        "lightning_fabric",
        "lightning_utilities",
        "mmcv",
        "mmdet",
        "mmengine",
        "mmseg",
        "monai",
        "nemo",
        "omegaconf",
        "open_clip",
        "peft",
        "pyro",
        "pytorch_lightning",
        "schedulefree",
        "segmentation_models_pytorch",
        "sentence_transformers",
        "speechbrain",
        "timm",
        "tokenizers",
        "torch_geometric",
        "torchao",
        "torchaudio",
        "torchmetrics",
        "torchtext",
        "torchvision",
        "transformers",
        "trl",
        "ultralytics",
        "xformers",
        "yacs",
    ]
)
"""Packages that many people install. A class of theirs that is built without a call
needs the package, not the author.
"""


METHODS = frozenset(("append", "extend", "add", "__setstate__"))
"""Methods that a loader looks up on an object, so that one of its items can stand for
them.
"""

SHARED_CHANGE = "(a value that another place of the file holds)"
"""Stands among the attributes that a name sets for a value of the file that loading
changes.
"""


def is_known(node: Node) -> bool:
    """Tell whether a global is on the closed list."""
    if type(node) is not Global:
        return False
    name = python3_name(node.module, node.name)
    if name in USUAL:
        return True
    # Here and below: a state dict of torch alone needs no list.
    from ckpt.pickle.judge.known import KNOWN

    return name in KNOWN


def is_module_class(name: str) -> bool:
    """Tell whether a class of torch is one of modules."""
    from ckpt.pickle.judge.known import MODULES

    return name in MODULES


def is_optimizer_class(name: str) -> bool:
    """Tell whether a class of torch is an optimizer."""
    from ckpt.pickle.judge.known import OPTIMIZERS

    return name in OPTIMIZERS


def is_enum(name: str) -> bool:
    """Tell whether a class is an enum, whose members pickle as a call with their
    value.
    """
    from ckpt.pickle.judge.known import ENUMS

    return name in ENUMS


def is_standard(module: str) -> bool:
    """Tell whether a module belongs to Python itself, in the names of Python 2 or 3."""
    return module.partition(".")[0] in _STANDARD


def is_own(module: str) -> bool:
    """Tell whether a module unpickles, or most readers of checkpoints have it (Python,
    torch, numpy, pip).
    """
    return module.partition(".")[0] in _OWN or is_standard(module)


def passes_module(name: str) -> bool:
    """Tell whether a dotted name leads through what is no class: a module that another
    one imports, or what Python keeps under two underscores.

    No pickler writes such a name. `torch.os.system` of a harmless package is a function
    of Python.
    """
    first, *others = name.split(".")
    if not others:
        return False
    # Classes begin with a large letter, modules with a small one.
    is_module = first.lstrip("_")[:1].islower() or any(
        part in stdlib_module_names or part in _OWN for part in others[:-1]
    )
    # `__globals__` and `__class__` lead to anything.
    return is_module or any(part.startswith("__") for part in (first, *others))


def makes_plain_objects(module: str) -> bool:
    """Tell whether the unlisted classes of a module of torch are made without a call.

    They are layers, optimizers or data sets.
    """
    return f"{module}.".startswith(_PLAIN_OBJECTS) and not f"{module}.".startswith(
        _REMOTE
    )


_PLAIN_OBJECTS = (
    "torch.ao.",
    "torch.distributed.",
    "torch.distributions.",
    "torch.nn.",
    "torch.optim.",
    "torch.quantization.",
    "torch.utils.data.dataloader.",
    "torch.utils.data.dataset.",
    "torch.utils.data.distributed.",
    "torch.utils.data.sampler.",
)
# Objects of these stand for modules on other machines.
_REMOTE = ("torch.distributed.nn.", "torch.distributed.rpc.")
_OWN = frozenset(
    [
        "torch",
        "functorch",
        "torchgen",
        "numpy",
        "pip",
        "setuptools",
        "pkg_resources",
        "_distutils_hack",
        "cloudpickle",
        "dill",
        "joblib",
    ]
)
# Modules that only Python 2 has.
_STANDARD = stdlib_module_names | {
    "__builtin__",
    "UserDict",
    "UserList",
    "UserString",
    "commands",
    "cPickle",
    "copy_reg",
    "exceptions",
    "popen2",
    "urllib2",
}
