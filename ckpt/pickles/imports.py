"""The names that a pickle imports, in three groups: known, unknown, and called while loading.

Known is a closed list of names: loading them runs only the reconstruction code of torch, numpy and Python.
Everything else is unknown, not bad. There is no list of bad names, because such a list is never complete.
"""

from __future__ import annotations

from sys import stdlib_module_names
from typing import Literal

from ckpt.dtypes import BY_NAME, BY_STORAGE
from ckpt.nodes import Global, Node, Opaque
from ckpt.pickles.machine import Pickle
from ckpt.pickles.rebuild import REBUILD_CALLS, UNTYPED
from ckpt.tree.arrays import as_bytes

Group = Literal["known", "unknown", "called"]

_MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "UserDict": "collections",
    "UserList": "collections",
    "UserString": "collections",
    "torch.tensor": "torch._tensor",
}
_RENAMED = {"xrange": "range", "long": "int", "unicode": "str", "unichr": "chr"}


def python3_name(module: str, name: str) -> str:
    """The dotted name in Python 3 and numpy 1 of what older or newer versions wrote."""
    if module.startswith("numpy._core."):
        module = "numpy.core." + module[12:]
    elif module == "__builtin__":
        name = _RENAMED.get(name, name)
    return f"{_MODULES.get(module, module)}.{name}"


_NN = """
activation: CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish
  MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign
  Tanh Tanhshrink Threshold
adaptive: AdaptiveLogSoftmaxWithLoss
batchnorm: BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d SyncBatchNorm
channelshuffle: ChannelShuffle
container: ModuleDict ModuleList ParameterDict ParameterList Sequential Container
conv: Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d LazyConv2d LazyConv3d
  LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
distance: CosineSimilarity PairwiseDistance
dropout: AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout
flatten: Flatten Unflatten
fold: Fold Unfold
instancenorm: InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d
linear: Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear
loss: BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss
  HuberLoss KLDivLoss L1Loss MSELoss MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss
  NLLLoss NLLLoss2d PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss
module: Module
normalization: CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm
padding: CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d
  ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d
pixelshuffle: PixelShuffle PixelUnshuffle
pooling: AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
  AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d
  MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d
rnn: GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase
sparse: Embedding EmbeddingBag
transformer: Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
upsampling: Upsample UpsamplingBilinear2d UpsamplingNearest2d
"""

_OTHERS = """
_codecs: encode
_io: BytesIO StringIO
argparse: Namespace
builtins: Ellipsis NotImplemented bool bytearray bytes complex dict float frozenset int list object range set slice
  str tuple
collections: ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque
copyreg: _reconstructor __newobj__
datetime: date datetime time timedelta timezone
decimal: Decimal
fractions: Fraction
io: BytesIO StringIO
pathlib: Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath
pathlib._local: Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath
types: SimpleNamespace
typing: Any
uuid: UUID
numpy: ndarray matrix recarray record dtype bool_ float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32
  uint64 str_
numpy.ma: MaskedArray
numpy.ma.core: MaskedArray _mareconstruct
numpy.rec: recarray
numpy.random.bit_generator: SeedSequence __pyx_unpickle_SeedSequence
numpy.core.multiarray: _reconstruct scalar
numpy.core.numeric: _frombuffer
numpy.random._pickle: __bit_generator_ctor __generator_ctor __randomstate_ctor
numpy.random._mt19937: MT19937
numpy.random._pcg64: PCG64
omegaconf.base: Container ContainerMetadata Metadata Node SCMode
omegaconf.dictconfig: DictConfig
omegaconf.listconfig: ListConfig
omegaconf.nodes: AnyNode BooleanNode BytesNode EnumNode FloatNode IntegerNode InterpolationResultNode PathNode StringNode
easydict: EasyDict
yacs.config: CfgNode
pytorch_lightning.utilities.parsing: AttributeDict
lightning.pytorch.utilities.parsing: AttributeDict
lightning_fabric.utilities.data: AttributeDict
lightning.fabric.utilities.data: AttributeDict
torch: Size Tensor device strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc per_tensor_affine
  per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams contiguous_format
  channels_last channels_last_3d preserve_format
torch._C: Generator
torch._dynamo.decorators: _DimRange
torch.amp.grad_scaler: GradScaler OptState _refresh_per_optimizer_state
torch.cuda.amp.grad_scaler: GradScaler OptState _refresh_per_optimizer_state
torch.backends.cudnn.rnn: Unserializable
torch.distributed._shard.metadata: ShardMetadata
torch.distributed._shard.sharded_tensor.api: ShardedTensor
torch.distributed._shard.sharded_tensor.metadata: ShardedTensorMetadata TensorProperties
torch.distributed._shard.sharded_tensor.shard: Shard
torch.distributed._shard.sharding_spec.chunk_sharding_spec: ChunkShardingSpec
torch.distributed._shard.sharding_spec.api: EnumerableShardingSpec
torch.distributed._tensor.api: DTensor
torch.distributed._tensor.placement_types: DTensorSpec Partial Replicate Shard TensorMeta _Partial
torch.distributed._tensor._dtensor_spec: DTensorSpec TensorMeta
torch.distributed._mesh_layout: _FlatLayout _MeshLayout
torch.distributed.device_mesh: DeviceMesh
torch.distributed.tensor: DTensor
torch.distributed.tensor._api: DTensor
torch.distributed.tensor._dtensor_spec: DTensorSpec ShardOrderEntry TensorMeta
torch.distributed.tensor.placement_types: Partial Replicate Shard _StridedShard
torch.jit._pickle: build_boollist build_doublelist build_intlist build_tensor_from_id build_tensorlist restore_type_tag
torch.nested._internal.nested_tensor: NestedTensor
torch.nn.backends.thnn: _get_thnn_function_backend
torch.nn.functional: binary_cross_entropy binary_cross_entropy_with_logits celu cosine_embedding_loss cross_entropy
  elu gelu glu hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss kl_div l1_loss leaky_relu log_softmax
  logsigmoid margin_ranking_loss mish mse_loss nll_loss normalize poisson_nll_loss relu relu6 rrelu selu sigmoid silu
  smooth_l1_loss soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold
  triplet_margin_loss
torch.nn.modules.module: _IncompatibleKeys _WrappedHook
torch.nn.parallel.data_parallel: DataParallel
torch.nn.parallel.distributed: DistributedDataParallel
torch.nn.parameter: Buffer Parameter UninitializedBuffer UninitializedParameter
torch.nn.utils.prune: CustomFromMask Identity L1Unstructured LnStructured PruningContainer RandomStructured
  RandomUnstructured
torch.nn.utils.spectral_norm: SpectralNorm SpectralNormLoadStateDictPreHook SpectralNormStateDictHook
torch.nn.utils.weight_norm: WeightNorm
torch.optim._adafactor: Adafactor
torch.optim._muon: Muon
torch.optim.adadelta: Adadelta
torch.optim.adagrad: Adagrad
torch.optim.adam: Adam
torch.optim.adamax: Adamax
torch.optim.adamw: AdamW
torch.optim.asgd: ASGD
torch.optim.lbfgs: LBFGS
torch.optim.lr_scheduler: ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR
  ExponentialLR LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau
  SequentialLR StepLR _LRScheduler
torch.optim.nadam: NAdam
torch.optim.optimizer: _RequiredParameter
torch.optim.radam: RAdam
torch.optim.rmsprop: RMSprop
torch.optim.rprop: Rprop
torch.optim.sgd: SGD
torch.optim.sparse_adam: SparseAdam
torch.optim.swa_utils: AveragedModel SWALR
torch.serialization: _get_layout
torch.storage: TypedStorage _TypedStorage UntypedStorage _UntypedStorage
torch.torch_version: TorchVersion
torch.utils.hooks: RemovableHandle
"""


def _table() -> frozenset[str]:
    names_known = set(REBUILD_CALLS)
    for text, prefix in ((_NN, "torch.nn.modules."), (_OTHERS, "")):
        for line in text.replace("\n  ", " ").strip().splitlines():
            module, _, names = line.partition(": ")
            names_known.update(f"{prefix}{module}.{name}" for name in names.split())
    names_known.update(f"torch.{name}" for name in BY_NAME)
    names_known.update(
        f"{module}.{name}" for module in ("torch", "torch.cuda") for name in (*BY_STORAGE, *UNTYPED)
    )
    return frozenset(names_known)


KNOWN = _table()
"""Dotted names, as Python 3 and numpy 1 have them."""

_CALLS_AN_ARGUMENT = frozenset(
    (
        "copyreg._reconstructor",  # base.__init__(object, state)
        "torch._tensor._rebuild_from_type",  # func(*args)
        "torch._tensor._rebuild_from_type_v2",
        "numpy.random._pickle.__generator_ctor",
        "numpy.random._pickle.__randomstate_ctor",
    )
)
"""Known functions that call their arguments."""
_LOOKED_INTO = _CALLS_AN_ARGUMENT | {"_codecs.encode"}


def is_known(node: Node) -> bool:
    """Whether a global is on the closed list."""
    return type(node) is Global and python3_name(node.module, node.name) in KNOWN


_KEPT = 1_000
"""The most calls that are kept per name."""


def calls_of_unknown(pickle: Pickle) -> dict[Global, list[Opaque]]:
    """The calls of unknown names that loading would make, by the called name.

    Objects made without a call do not count: NEWOBJ runs only the `__new__` of a class.
    """
    calls: dict[Global, list[Opaque]] = {}
    known = {name for name in pickle.globals.values() if is_known(name)}
    harmless = {name for name in known if python3_name(name.module, name.name) not in _LOOKED_INTO}
    for call in pickle.calls:
        if call.func in harmless or call.how == "newobj" or call.how == "newobj_ex":
            continue
        func = call.func
        if type(func) is Global and func in known:
            if python3_name(func.module, func.name) in _CALLS_AN_ARGUMENT:
                for arg in call.args[: 2 if func.name == "_reconstructor" else None]:
                    if type(arg) is Global and not is_known(arg) and not _is_plain_class(func, call, arg):
                        calls.setdefault(arg, []).append(call)
            elif func.name == "encode" and as_bytes(call) is None:
                calls.setdefault(func, []).append(call)  # the file chooses the codec
            continue
        for culprit in _called(call):
            made = calls.setdefault(culprit, [])
            if len(made) < _KEPT:
                made.append(call)
    return calls


def _is_plain_class(func: Global, call: Opaque, arg: Global) -> bool:
    """Whether a copyreg call only makes an instance, as `_reconstructor(cls, object, None)` does."""
    if func.name == "_rebuild_from_type_v2" or func.name == "_rebuild_from_type":
        return call.args[0] is not arg  # the function is called, the subclass is not
    base = call.args[1] if len(call.args) > 1 else None
    return func.name == "_reconstructor" and base is not arg and is_known(base)


def _called(call: Opaque) -> list[Global]:
    """The names behind the function of a call: its own, or those that made the called object."""
    names: list[Global] = []
    todo, seen = [call.func], 0
    while todo and seen < 20:
        node = todo.pop()
        seen += 1
        if type(node) is Global:
            names.append(node)
        elif type(node) is Opaque:
            todo += [node.func, *(arg for arg in node.args if type(arg) in (Global, Opaque))]
    unknown = [name for name in names if not is_known(name)]
    return unknown or names[:1]


def is_standard(module: str) -> bool:
    """Whether a module belongs to Python itself, in the names of Python 2 or 3."""
    return module.partition(".")[0] in _STANDARD


_STANDARD = stdlib_module_names | {
    "__builtin__",
    "commands",
    "cPickle",
    "copy_reg",
    "exceptions",
    "popen2",
    "urllib2",
}
