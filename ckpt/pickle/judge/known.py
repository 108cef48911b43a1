"""The closed list of names that a pickle may import without a finding.

Known means: loading the name runs only the code of torch, numpy and Python. Whether a
call of it is harmless depends on what it is given, which `grammar` decides. Everything
else is unknown, not bad. There is no list of bad names, because such a list is never
complete.
"""

from __future__ import annotations

from ckpt.model.dtypes import BY_NAME, BY_STORAGE
from ckpt.pickle.attributes import ATTRIBUTES
from ckpt.pickle.rebuild import REBUILD_CALLS, UNTYPED
from ckpt.tree.view import DICTS

# Each row is a module of `torch.nn.modules`, with its classes.
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
linear: Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear _LinearWithBias
loss: BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss
  HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss
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

_FUNCTIONS = """
_codecs: encode
_io: BytesIO StringIO
itertools: count
argparse: Namespace
builtins: Ellipsis NotImplemented bool bytearray bytes complex dict float frozenset getattr int list object range set
  slice str tuple type
collections: ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque
copyreg: _reconstructor __newobj__
datetime: date datetime time timedelta timezone
decimal: Decimal
functools: partial reduce
operator: getitem or_
fractions: Fraction
io: BytesIO StringIO
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
torch: Size Tensor device strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc per_tensor_affine
  per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams contiguous_format
  channels_last channels_last_3d preserve_format
torch._C: Generator
torch._dynamo.decorators: _DimRange
torch.amp.grad_scaler: _refresh_per_optimizer_state
torch.cuda.amp.grad_scaler: _refresh_per_optimizer_state
torch.backends.cudnn.rnn: Unserializable
torch.distributed._shard.sharded_tensor.api: ShardedTensor
torch.distributed._shard.sharded_tensor.metadata: TensorProperties
torch.distributed.checkpoint.metadata: TensorProperties
torch.distributed._tensor.api: DTensor
torch.distributed._tensor.placement_types: Partial Replicate Shard TensorMeta _Partial
torch.distributed._tensor._dtensor_spec: TensorMeta
torch.distributed.device_mesh: DeviceMesh
torch.distributed.tensor: DTensor
torch.distributed.tensor._api: DTensor
torch.distributed.tensor._dtensor_spec: ShardOrderEntry TensorMeta
torch.distributed.tensor.placement_types: Partial Replicate Shard _StridedShard
torch.jit._pickle: build_boollist build_doublelist build_intlist build_tensor_from_id build_tensorlist
  restore_type_tag
torch.nested._internal.nested_tensor: NestedTensor
torch.nn.backends.thnn: _get_thnn_function_backend
torch.nn.modules.module: _IncompatibleKeys _WrappedHook
torch.nn.parallel.data_parallel: DataParallel
torch.nn.parallel.distributed: DistributedDataParallel
torch.nn.parameter: Buffer Parameter UninitializedBuffer UninitializedParameter
torch.serialization: _get_layout
torch.storage: TypedStorage _TypedStorage UntypedStorage _UntypedStorage
torch.torch_version: TorchVersion
torch.utils.hooks: RemovableHandle
"""
"""Functions, classes and words with a rule of their own in `grammar`."""

_CLASSES = """
deepspeed.runtime.fp16.loss_scaler: DynamicLossScaler LossScaler
deepspeed.utils.tensor_fragment: fragment_address
omegaconf.base: Container ContainerMetadata Metadata Node SCMode
omegaconf.dictconfig: DictConfig
omegaconf.listconfig: ListConfig
omegaconf.nodes: AnyNode BooleanNode BytesNode EnumNode FloatNode IntegerNode InterpolationResultNode PathNode
  StringNode
torch.amp.grad_scaler: GradScaler
torch.cuda.amp.grad_scaler: GradScaler
torch.distributed._shard.metadata: ShardMetadata
torch.distributed._shard.sharded_tensor.api: ShardedTensor.ProcessGroupState
torch.distributed._shard.sharded_tensor.metadata: ShardedTensorMetadata
torch.distributed._shard.sharded_tensor.shard: Shard
torch.distributed._shard.sharding_spec.chunk_sharding_spec: ChunkShardingSpec
torch.distributed._shard.sharding_spec.api: EnumerableShardingSpec
torch.distributed.checkpoint.filesystem: _StorageInfo
torch.distributed.checkpoint.metadata: BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta
  TensorStorageMetadata
torch.distributed.checkpoint.planner: SavePlan TensorWriteData WriteItem
torch.distributed._tensor.placement_types: DTensorSpec
torch.distributed._tensor._dtensor_spec: DTensorSpec
torch.distributed._mesh_layout: _FlatLayout _MeshLayout
torch.distributed.remote_device: _remote_device
torch.distributed.tensor._dtensor_spec: DTensorSpec
torch.nn.utils.prune: CustomFromMask Identity L1Unstructured LnStructured PruningContainer RandomStructured
  RandomUnstructured
torch.nn.utils.spectral_norm: SpectralNorm SpectralNormLoadStateDictPreHook SpectralNormStateDictHook
torch.nn.utils.weight_norm: WeightNorm
torch.optim.lr_scheduler: ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR
  ExponentialLR LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau
  SequentialLR StepLR _LRScheduler
torch.optim.optimizer: _RequiredParameter
torch.optim.swa_utils: AveragedModel SWALR
"""
"""Classes whose objects only take the attributes that a file gives them."""

_OPTIMIZERS = """
torch.optim: Adafactor Muon
torch.optim._adafactor: Adafactor
torch.optim._muon: Muon
torch.optim.adadelta: Adadelta
torch.optim.adagrad: Adagrad
torch.optim.adam: Adam
torch.optim.adamax: Adamax
torch.optim.adamw: AdamW
torch.optim.asgd: ASGD
torch.optim.lbfgs: LBFGS
torch.optim.nadam: NAdam
torch.optim.radam: RAdam
torch.optim.rmsprop: RMSprop
torch.optim.rprop: Rprop
torch.optim.sgd: SGD
torch.optim.sparse_adam: SparseAdam
"""

_OPERATORS = """
abs abs_ absolute absolute_ acos acos_ acosh acosh_ adaptive_avg_pool1d adaptive_max_pool1d add add_ addbmm addbmm_
addcdiv addcdiv_ addcmul addcmul_ addmm addmm_ addmv addmv_ addr addr_ adjoint affine_grid_generator alias_copy all
allclose alpha_dropout alpha_dropout_ amax amin aminmax angle any arange arccos arccos_ arccosh arccosh_ arcsin
arcsin_ arcsinh arcsinh_ arctan arctan2 arctan2_ arctan_ arctanh arctanh_ argmax argmin argsort argwhere as_strided
as_strided_ as_strided_copy as_strided_scatter as_subclass as_tensor asarray asin asin_ asinh asinh_ atan atan2 atan2_
atan_ atanh atanh_ atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm baddbmm_ bartlett_window batch_norm
batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats bernoulli bernoulli_ bfloat16 bilinear
binary_cross_entropy_with_logits bincount binomial bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_
bitwise_not bitwise_not_ bitwise_or bitwise_or_ bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_
blackman_window block_diag bmm bool broadcast_tensors broadcast_to bucketize byte can_cast cartesian_prod cat cauchy_
ccol_indices ccol_indices_copy cdist cdouble ceil ceil_ celu celu_ cfloat chain_matmul chalf channel_shuffle char
cholesky cholesky_inverse cholesky_solve choose_qparams_optimized chunk clamp clamp_ clamp_max clamp_max_ clamp_min
clamp_min_ clip clip_ clone coalesce col_indices col_indices_copy column_stack combinations complex concat concatenate
conj conj_physical conj_physical_ const_data_ptr constant_pad_nd contiguous conv1d conv2d conv3d conv_tbc
conv_transpose1d conv_transpose2d conv_transpose3d convolution copy_ copysign copysign_ corrcoef cos cos_ cosh cosh_
cosine_embedding_loss cosine_similarity count_nonzero cov cpu cross crow_indices crow_indices_copy ctc_loss cuda
cudnn_affine_grid_generator cudnn_batch_norm cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu
cudnn_convolution_transpose cudnn_grid_sampler cudnn_is_acceptable cummax cummin cumprod cumprod_ cumsum cumsum_
cumulative_trapezoid data_ptr deg2rad deg2rad_ dense_dim dequantize det detach detach_ detach_copy diag diag_embed
diagflat diagonal diagonal_copy diagonal_scatter diff digamma digamma_ dim dist div div_ divide divide_ dot double
dropout dropout_ dsmm dsplit dstack einsum element_size embedding embedding_bag embedding_renorm_ empty empty_like
empty_permuted empty_quantized empty_strided eq eq_ equal erf erf_ erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_
expand expand_as expand_copy expm1 expm1_ exponential_ eye fake_quantize_per_channel_affine
fake_quantize_per_tensor_affine fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation
fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight
fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix feature_alpha_dropout feature_alpha_dropout_ feature_dropout
feature_dropout_ fill fill_ fill_diagonal_ fix fix_ flatten flip fliplr flipud float float_power float_power_ floor
floor_ floor_divide floor_divide_ fmax fmin fmod fmod_ frac frac_ frexp frobenius_norm from_numpy frombuffer full
full_like fused_moving_avg_obs_fake_quant gather gcd gcd_ ge ge_ geometric_ geqrf ger get_device gradient greater
greater_ greater_equal greater_equal_ grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt gt_ half
hamming_window hann_window hardshrink hash_tensor heaviside heaviside_ hinge_embedding_loss histc histogram
histogramdd hsmm hsplit hspmm hstack hypot hypot_ i0 i0_ igamma igamma_ igammac igammac_ imag index_add index_add_
index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_reduce index_reduce_ index_select indices
indices_copy inner instance_norm int int_repr inverse ipu is_coalesced is_complex is_conj is_contiguous is_distributed
is_floating_point is_inference is_neg is_nonzero is_pinned is_same_size is_set_to is_signed is_vulkan_available
isclose isfinite isin isinf isnan isneginf isposinf isreal istft item kaiser_window kl_div kron kthvalue layer_norm
lcm lcm_ ldexp ldexp_ le le_ lerp lerp_ less less_ less_equal less_equal_ lgamma lgamma_ linspace log log10 log10_
log1p log1p_ log2 log2_ log_ log_normal_ log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_and_
logical_not logical_not_ logical_or logical_or_ logical_xor logical_xor_ logit logit_ logspace logsumexp long lstm
lstm_cell lt lt_ lu_solve lu_unpack margin_ranking_loss masked_fill masked_fill_ masked_scatter masked_scatter_
masked_select matmul matrix_exp matrix_power max max_pool1d max_pool1d_with_indices max_pool2d max_pool3d maximum mean
median meshgrid min minimum miopen_batch_norm miopen_convolution miopen_convolution_add_relu miopen_convolution_relu
miopen_convolution_transpose miopen_ctc_loss miopen_depthwise_convolution miopen_rnn mkldnn_adaptive_avg_pool2d
mkldnn_convolution mkldnn_linear_backward_weights mkldnn_max_pool2d mkldnn_max_pool3d mkldnn_rnn_layer mm mode
moveaxis movedim msort mtia mul mul_ multinomial multiply multiply_ mv mvlgamma mvlgamma_ nan_to_num nan_to_num_
nanmean nanmedian nanquantile nansum narrow narrow_copy native_batch_norm native_channel_shuffle native_dropout
native_group_norm native_layer_norm native_norm ndimension ne ne_ neg neg_ negative negative_ nelement new new_empty
new_empty_strided new_full new_ones new_tensor new_zeros nextafter nextafter_ nonzero nonzero_static norm
norm_except_dim normal normal_ not_equal not_equal_ nuclear_norm numel ones ones_like orgqr ormqr outer
pairwise_distance pdist permute permute_copy pin_memory pinverse pixel_shuffle pixel_unshuffle poisson
poisson_nll_loss polar polygamma polygamma_ positive pow pow_ prelu prod promote_types put put_ q_per_channel_axis
q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qr qscheme quantile quantize_per_channel
quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm quantized_gru_cell quantized_lstm_cell
quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell quantized_rnn_tanh_cell rad2deg
rad2deg_ rand rand_like randint randint_like randn randn_like random_ randperm range ravel real reciprocal reciprocal_
record_stream relu relu_ remainder remainder_ renorm renorm_ repeat repeat_interleave requires_grad_ reshape
reshape_as resize_as_ resize_as_sparse_ resolve_conj resolve_neg result_type retain_grad rms_norm rnn_relu
rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round round_ row_indices row_indices_copy row_stack rrelu rrelu_ rsqrt
rsqrt_ rsub saddmm scalar_tensor scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ searchsorted
segment_reduce select select_copy select_scatter selu selu_ sgn sgn_ short sigmoid sigmoid_ sign sign_ signbit sin
sin_ sinc sinc_ sinh sinh_ size slice_copy slice_inverse slice_scatter slogdet smm softmax sort sparse_bsc_tensor
sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor sparse_dim
sparse_mask sparse_resize_ sparse_resize_and_clear_ split split_copy split_with_sizes split_with_sizes_copy spmm sqrt
sqrt_ square square_ squeeze squeeze_ squeeze_copy sspaddmm stack std std_mean stft storage_offset stride sub sub_
subtract subtract_ sum sum_to_size svd swapaxes swapaxes_ swapdims swapdims_ sym_constrain_range
sym_constrain_range_for_size t t_ t_copy take take_along_dim tan tan_ tanh tanh_ tensor tensor_split tensordot
threshold threshold_ tile to to_dense to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr to_sparse_csc
to_sparse_csr topk trace transpose transpose_ transpose_copy trapezoid trapz triangular_solve tril tril_ tril_indices
triplet_margin_loss triu triu_ triu_indices true_divide true_divide_ trunc trunc_ type type_as unbind unbind_copy
unflatten unfold unfold_copy uniform_ unique_consecutive unique_dim unsafe_chunk unsafe_split unsafe_split_with_sizes
unsqueeze unsqueeze_ unsqueeze_copy values values_copy vander var var_mean vdot view view_as view_as_complex
view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack where xlogy xlogy_ xpu zero_ zeros
zeros_like
"""
"""The operators of torch 2.13 that compute, as models hold them as activations.
`from_file` opens files.
"""

_VALUES = """
signal: SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL SIGPIPE SIGPOLL
  SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU
  SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_DFL SIG_IGN SIG_SETMASK SIG_UNBLOCK
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
torch.optim.lr_scheduler: CyclicLR._exp_range_scale_fn CyclicLR._triangular2_scale_fn CyclicLR._triangular_scale_fn
  OneCycleLR._annealing_cos OneCycleLR._annealing_linear
torch.optim.swa_utils: SWALR._cosine_anneal SWALR._linear_anneal
typing: AbstractSet Annotated Any AnyStr Callable ClassVar Collection DefaultDict Deque Dict Final FrozenSet Generator
  Generic Hashable Iterable Iterator List Literal Mapping MutableMapping NamedTuple NoReturn Optional OrderedDict
  Sequence Set Sized Text Tuple Type TypeVar Union
"""
"""Functions and classes that models and settings hold as values, and the signals that
Python 3.10 and older pickle by their names. A call of one is not known.
"""

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
torch.ao.quantization.backend_config.backend_config: ObservationType
torch.ao.quantization.observer: MappingType TorchAODType ZeroPointDomain
torch.amp.grad_scaler: OptState
torch.cuda.amp.grad_scaler: OptState
torch.distributed._shard.checkpoint.metadata: _MEM_FORMAT_ENCODING
torch.distributed._shard.checkpoint.planner: LoadItemType WriteItemType
torch.distributed._sharded_tensor.metadata: MEM_FORMAT_ENCODING
torch.distributed.algorithms._quantization.quantization: DQuantType
torch.distributed.algorithms.ddp_comm_hooks: DDPCommHookType
torch.distributed.checkpoint.filesystem: SerializationFormat
torch.distributed.checkpoint.planner: LoadItemType
torch.distributed.checkpoint.state_dict_saver: AsyncCheckpointerType
torch.distributed.fsdp._fully_shard._fsdp_common: TrainingState
torch.distributed.fsdp._fully_shard._fsdp_param: ShardedState
torch.distributed.pipelining._utils: InferenceMode
torch.distributed.tensor.placement_types: _StridedShardOffsetMode
torch.export.graph_signature: InputKind OutputKind
torch.nn.attention: SDPBackend
torch.nn.attention.bias: CausalVariant
torch.nn.utils.parametrizations: _OrthMaps
torch.utils.checkpoint: CheckpointPolicy
"""
"""Enums, which pickle their members as a call with the member's value."""


def _parse_names(*texts: str) -> set[str]:
    names: set[str] = set()
    for text in texts:
        # A row that goes on begins with two blanks.
        for line in text.replace("\n  ", " ").strip().splitlines():
            module, _, listed = line.partition(": ")
            names.update(f"{module}.{name}" for name in listed.split())
    return names


MODULES = frozenset(f"torch.nn.modules.{name}" for name in _parse_names(_NN)) | {
    "torch.nn.parallel.data_parallel.DataParallel",
    "torch.optim.swa_utils.AveragedModel",
}
"""Classes of modules."""
_VALUES_WITH_ATTRIBUTES = (
    "torch.distributions.",
    "torch.utils.data.dataset.",
    "torch.utils.data.sampler.",
)
"""Modules of torch whose classes have no state of their own, and import nothing that
they are given.
"""
CLASSES = frozenset(_parse_names(_CLASSES)) | {
    name for name in ATTRIBUTES if name.startswith(_VALUES_WITH_ATTRIBUTES)
}
OPTIMIZERS = frozenset(_parse_names(_OPTIMIZERS))
OPERATORS = frozenset(_OPERATORS.split())
VALUES = frozenset(_parse_names(_VALUES))
"""Names that may be loaded, not called."""
ENUMS = frozenset(_parse_names(_ENUMS))
"""Names that may be called with one scalar."""
KNOWN = (
    MODULES
    | CLASSES
    | OPTIMIZERS
    | DICTS
    | VALUES
    | ENUMS
    | REBUILD_CALLS
    | _parse_names(_FUNCTIONS)
)
# The dtypes of torch are values that pickles import.
KNOWN |= {f"torch.{name}" for name in BY_NAME}
KNOWN |= {
    # `torch.FloatStorage`, and `torch.cuda.FloatStorage` for tensors on a GPU.
    f"{module}.{name}"
    for module in ("torch", "torch.cuda")
    for name in (*BY_STORAGE, *UNTYPED)
}
