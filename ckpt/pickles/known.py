"""The closed list of names that a pickle may import without a finding, and the packages that own further ones.

Known means: loading the name, and calling it where the list says so, runs only the reconstruction code of torch,
numpy and Python. Everything else is unknown, not bad. There is no list of bad names, because such a list is
never complete.
"""

from __future__ import annotations

from sys import stdlib_module_names

from ckpt.dtypes import BY_NAME, BY_STORAGE
from ckpt.nodes import Global, Node
from ckpt.pickles.rebuild import REBUILD_CALLS, UNTYPED

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
_RENAMED = {"xrange": "range", "long": "int", "unicode": "str", "unichr": "chr"}


def python3_name(module: str, name: str) -> str:
    """The dotted name in Python 3 and numpy 1 of what older or newer versions wrote."""
    if module.startswith("numpy._core."):
        module = "numpy.core." + module[12:]
    elif module == "__builtin__":
        if name == "reduce":
            return "functools.reduce"
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
deepspeed.runtime.fp16.loss_scaler: DynamicLossScaler LossScaler
deepspeed.utils.tensor_fragment: fragment_address
_codecs: encode
_io: BytesIO StringIO
itertools: count
argparse: Namespace
builtins: Ellipsis NotImplemented bool bytearray bytes complex dict float frozenset int list object range set slice
  str tuple
collections: ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque
copyreg: _reconstructor __newobj__
datetime: date datetime time timedelta timezone
decimal: Decimal
fractions: Fraction
io: BytesIO StringIO
itertools: count
pathlib: Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath
pathlib._local: Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath
re: _compile
types: GenericAlias SimpleNamespace
random: Random
uuid: UUID
zoneinfo: ZoneInfo ZoneInfo._unpickle
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
numpy.random._pcg64: PCG64 PCG64DXSM
numpy.random._philox: Philox
numpy.random._sfc64: SFC64
joblib.numpy_pickle: NumpyArrayWrapper
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
torch.distributed.checkpoint.filesystem: _StorageInfo
torch.distributed.checkpoint.metadata: BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta
  TensorProperties TensorStorageMetadata
torch.distributed.checkpoint.planner: SavePlan TensorWriteData WriteItem
torch.distributed._tensor.api: DTensor
torch.distributed._tensor.placement_types: DTensorSpec Partial Replicate Shard TensorMeta _Partial
torch.distributed._tensor._dtensor_spec: DTensorSpec TensorMeta
torch.distributed._mesh_layout: _FlatLayout _MeshLayout
torch.distributed.device_mesh: DeviceMesh
torch.distributed.remote_device: _remote_device
torch.distributed.tensor: DTensor
torch.distributed.tensor._api: DTensor
torch.distributed.tensor._dtensor_spec: DTensorSpec ShardOrderEntry TensorMeta
torch.distributed.tensor.placement_types: Partial Replicate Shard _StridedShard
torch.jit._pickle: build_boollist build_doublelist build_intlist build_tensor_from_id build_tensorlist restore_type_tag
torch.nested._internal.nested_tensor: NestedTensor
torch.nn.backends.thnn: _get_thnn_function_backend
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

_VALUES = """
torch: finfo iinfo
torch._C: TensorBase _TensorBase _VariableFunctionsClass
torch._C._nn: adaptive_avg_pool2d adaptive_avg_pool3d avg_pool2d avg_pool3d elu elu_ gelu gelu_ glu hardsigmoid
  hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ huber_loss l1_loss leaky_relu leaky_relu_ linear log_sigmoid
  mish mish_ mse_loss multi_margin_loss multilabel_margin_loss nll_loss one_hot pad pad_sequence relu6 relu6_
  scaled_dot_product_attention silu silu_ smooth_l1_loss soft_margin_loss softplus softshrink
torch.functional: atleast_1d atleast_2d atleast_3d cdist einsum norm stft tensordot
torch.nn.functional: adaptive_avg_pool2d adaptive_avg_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d
  batch_norm binary_cross_entropy binary_cross_entropy_with_logits celu cosine_embedding_loss cross_entropy ctc_loss
  dropout dropout1d dropout2d dropout3d elu embedding embedding_bag feature_alpha_dropout fold gaussian_nll_loss gelu
  glu grid_sample group_norm gumbel_softmax hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss
  instance_norm interpolate kl_div l1_loss layer_norm leaky_relu local_response_norm log_softmax logsigmoid
  margin_ranking_loss max_pool1d max_pool2d max_pool3d mish mse_loss multi_head_attention_forward multi_margin_loss
  multilabel_margin_loss multilabel_soft_margin_loss nll_loss normalize pad poisson_nll_loss relu relu6 rms_norm rrelu
  selu sigmoid silu smooth_l1_loss soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink
  threshold triplet_margin_loss triplet_margin_with_distance_loss unfold upsample
torch.nn.init: constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_ trunc_normal_
  uniform_ xavier_normal_ xavier_uniform_ zeros_
torch.nn.modules.module: _forward_unimplemented
typing: AbstractSet Annotated Any AnyStr Callable ClassVar Collection DefaultDict Deque Dict Final FrozenSet Generator
  Generic Hashable Iterable Iterator List Literal Mapping MutableMapping NamedTuple NoReturn Optional OrderedDict
  Sequence Set Sized Text Tuple Type TypeVar Union
"""
"""Functions and classes that models and settings hold as values. A call of one is not known."""

_ENUMS = """
accelerate.utils.dataclasses: DistributedType LoggerType PrecisionType RNGType
deepspeed.runtime.zero.config: ZeroStageEnum
deepspeed.runtime.zero.offload_config: OffloadDeviceEnum
http: HTTPStatus
peft.utils.peft_types: PeftType TaskType
re: RegexFlag
signal: Signals
torch._C._distributed_c10d: RedOpType
torch.ao.quantization.quant_type: QuantType
torch.distributed._shard.sharded_tensor.metadata: MEM_FORMAT_ENCODING
torch.distributed.checkpoint.metadata: _MEM_FORMAT_ENCODING
torch.distributed.checkpoint.planner: WriteItemType
torch.distributed.algorithms._checkpoint.checkpoint_wrapper: CheckpointImpl
torch.distributed.fsdp._common_utils: HandleTrainingState TrainingState
torch.distributed.fsdp._flat_param: HandleShardingStrategy
torch.distributed.fsdp.api: BackwardPrefetch ShardingStrategy StateDictType
torch.distributed.fsdp.fully_sharded_data_parallel: BackwardPrefetch OptimStateKeyType ShardingStrategy
torch.nn.parallel.distributed: _BufferCommHookLocation
torch.profiler.profiler: ProfilerAction
torch.serialization: LoadEndianness
torchvision.transforms.functional: InterpolationMode
transformers.debug_utils: DebugOption
transformers.trainer_utils: EvaluationStrategy FSDPOption HubStrategy IntervalStrategy SaveStrategy SchedulerType
transformers.training_args: OptimizerNames ParallelMode
transformers.utils.generic: PaddingStrategy TensorType
"""
"""Enums, which pickle their members as a call with the member's value."""

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
"""Packages that many people install. A class of theirs that is built without a call needs the package, not the author."""


def _names(*texts: str) -> set[str]:
    names: set[str] = set()
    for text in texts:
        for line in text.replace("\n  ", " ").strip().splitlines():
            module, _, listed = line.partition(": ")
            names.update(f"{module}.{name}" for name in listed.split())
    return names


def _known() -> frozenset[str]:
    names = REBUILD_CALLS | {f"torch.nn.modules.{name}" for name in _names(_NN)} | _names(_OTHERS)
    names |= {f"torch.{name}" for name in BY_NAME}
    return names | {
        f"{module}.{name}" for module in ("torch", "torch.cuda") for name in (*BY_STORAGE, *UNTYPED)
    }


KNOWN = _known()
"""Dotted names, as Python 3 and numpy 1 have them, that may be loaded and called."""
VALUES = frozenset(_names(_VALUES))
"""Names that may be loaded, not called."""
ENUMS = frozenset(_names(_ENUMS))
"""Names that may be called with one scalar."""


def is_known(node: Node) -> bool:
    """Whether a global is on the closed list."""
    if type(node) is not Global:
        return False
    name = python3_name(node.module, node.name)
    return name in KNOWN or name in VALUES or name in ENUMS


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
