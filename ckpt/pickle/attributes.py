"""The attributes that objects of known classes have when torch, and the packages that
are named here, write them.

`tools/states/` runs torch 1.0, 1.1, 1.2, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 1.10, 1.11,
1.12, 1.13, 2.0, 2.5, 2.8, 2.13 and writes this file. A star marks an attribute that
holds objects or functions; of layers only those are listed, because everybody puts data
on layers.
"""

from __future__ import annotations

_TABLE = """
deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler: consecutive_hysteresis cur_hysteresis cur_iter
  cur_scale delayed_shift dtype dynamic last_overflow_iter min_scale raise_error_at_min_scale scale_factor
  scale_window
deepspeed.runtime.fp16.loss_scaler.LossScaler: cur_scale dynamic
deepspeed.utils.tensor_fragment.fragment_address: numel start
omegaconf.base.ContainerMetadata: element_type* flags flags_root key key_type* object_type* optional
  ref_type* resolver_cache*
omegaconf.base.Metadata: flags flags_root key object_type* optional ref_type* resolver_cache*
omegaconf.dictconfig.DictConfig: _content* _metadata* _parent*
omegaconf.listconfig.ListConfig: _content* _metadata* _parent*
omegaconf.nodes.AnyNode: _metadata* _parent* _val
omegaconf.nodes.BooleanNode: _metadata* _parent* _val
omegaconf.nodes.BytesNode: _metadata* _parent* _val
omegaconf.nodes.EnumNode: _metadata* _parent* _val* enum_type* fields
omegaconf.nodes.FloatNode: _metadata* _parent* _val
omegaconf.nodes.IntegerNode: _metadata* _parent* _val
omegaconf.nodes.InterpolationResultNode: _metadata* _parent _val
omegaconf.nodes.PathNode: _metadata* _parent* _val*
omegaconf.nodes.StringNode: _metadata* _parent* _val
torch._dynamo.decorators._DimRange: dim max min
torch.amp.grad_scaler.GradScaler: _backoff_factor _device _enabled _growth_factor _growth_interval
  _growth_tracker _init_growth_tracker _init_scale _per_optimizer_states* _scale
torch.cuda.amp.grad_scaler.GradScaler: _device _enabled
torch.distributed._mesh_layout._FlatLayout: shape stride
torch.distributed._mesh_layout._MeshLayout: axes* shape stride
torch.distributed._shard.metadata.ShardMetadata: placement* shard_offsets shard_sizes
torch.distributed._shard.sharded_tensor.api.ShardedTensor.ProcessGroupState: global_rank global_world_size
  local_rank local_world_size
torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata: shards_metadata* size
  tensor_properties*
torch.distributed._shard.sharded_tensor.shard.Shard: metadata* tensor
torch.distributed._shard.sharding_spec.api.EnumerableShardingSpec: shards*
torch.distributed._shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec: dim placements*
torch.distributed._tensor.placement_types.DTensorSpec: mesh ndim placements* shape shard_order tensor_meta
  use_strided_shard_as_shard_order
torch.distributed.checkpoint.filesystem._StorageInfo: length offset relative_path transform_descriptors
torch.distributed.checkpoint.metadata.ChunkStorageMetadata: offsets sizes
torch.distributed.checkpoint.metadata.Metadata: all_local_plans* planner_data state_dict_metadata*
  storage_data* storage_meta* version
torch.distributed.checkpoint.metadata.MetadataIndex: fqn index offset
torch.distributed.checkpoint.metadata.StorageMeta: checkpoint_id* load_id modules save_id
torch.distributed.checkpoint.metadata.TensorStorageMetadata: chunks* properties* size
torch.distributed.checkpoint.planner.SavePlan: items* planner_data storage_data usable
torch.distributed.checkpoint.planner.TensorWriteData: chunk* properties* size
torch.distributed.checkpoint.planner.WriteItem: bytes_io_data index* tensor_data* type*
torch.distributed.device_mesh.DeviceMesh: _coordinate_on_dim _device_type _dim_group_infos _dim_group_names
  _flatten_mapping _flatten_mesh_list _flatten_rank_map _hash _layout* _mesh_dim_names _rank _rank_map
  _root_mesh* _thread_id device_type mesh mesh_dim_names
torch.distributed.remote_device._remote_device: _device _rank _worker_name
torch.distributed.tensor._dtensor_spec.DTensorSpec: _hash mesh* placements* shard_order* tensor_meta*
  use_strided_shard_as_shard_order
torch.distributions.bernoulli.Bernoulli: _batch_shape _event_shape _param _validate_args logits probs
torch.distributions.beta.Beta: _batch_shape _dirichlet* _event_shape _validate_args
torch.distributions.binomial.Binomial: _batch_shape _event_shape _param _validate_args logits probs
  total_count
torch.distributions.categorical.Categorical: _batch_shape _event_shape _num_events _param _validate_args
  logits probs
torch.distributions.cauchy.Cauchy: _batch_shape _event_shape _validate_args loc scale
torch.distributions.chi2.Chi2: _batch_shape _event_shape _validate_args concentration rate
torch.distributions.constraints.MixtureSameFamilyConstraint: base_constraint*
torch.distributions.constraints._Boolean:
torch.distributions.constraints._Cat: cseq* dim lengths
torch.distributions.constraints._CorrCholesky:
torch.distributions.constraints._Dependent: _event_dim* _is_discrete*
torch.distributions.constraints._GreaterThan: lower_bound
torch.distributions.constraints._GreaterThanEq: lower_bound
torch.distributions.constraints._HalfOpenInterval: lower_bound upper_bound
torch.distributions.constraints._IndependentConstraint: base_constraint* reinterpreted_batch_ndims
torch.distributions.constraints._IntegerGreaterThan: lower_bound
torch.distributions.constraints._IntegerInterval: lower_bound upper_bound
torch.distributions.constraints._Interval: lower_bound upper_bound
torch.distributions.constraints._LessThan: upper_bound
torch.distributions.constraints._LowerCholesky:
torch.distributions.constraints._LowerTriangular:
torch.distributions.constraints._Multinomial: upper_bound
torch.distributions.constraints._OneHot:
torch.distributions.constraints._PositiveDefinite:
torch.distributions.constraints._PositiveSemidefinite:
torch.distributions.constraints._Real:
torch.distributions.constraints._RealVector:
torch.distributions.constraints._Simplex:
torch.distributions.constraints._Square:
torch.distributions.constraints._Stack: cseq* dim
torch.distributions.constraints._Symmetric:
torch.distributions.continuous_bernoulli.ContinuousBernoulli: _batch_shape _event_shape _lims _param
  _validate_args logits probs
torch.distributions.dirichlet.Dirichlet: _batch_shape _event_shape _validate_args concentration
torch.distributions.exponential.Exponential: _batch_shape _event_shape _validate_args rate
torch.distributions.fishersnedecor.FisherSnedecor: _batch_shape _event_shape _gamma1* _gamma2*
  _validate_args df1 df2
torch.distributions.gamma.Gamma: _batch_shape _event_shape _validate_args concentration rate
torch.distributions.generalized_pareto.GeneralizedPareto: _batch_shape _event_shape _validate_args
  concentration loc scale
torch.distributions.geometric.Geometric: _batch_shape _event_shape _validate_args logits probs
torch.distributions.gumbel.Gumbel: _batch_shape _event_shape _validate_args base_dist* loc scale transforms*
torch.distributions.half_cauchy.HalfCauchy: _batch_shape _event_shape _validate_args base_dist* transforms*
torch.distributions.half_normal.HalfNormal: _batch_shape _event_shape _validate_args base_dist* transforms*
torch.distributions.independent.Independent: _batch_shape _event_shape _validate_args base_dist*
  reinterpreted_batch_ndims
torch.distributions.inverse_gamma.InverseGamma: _batch_shape _event_shape _validate_args base_dist*
  transforms*
torch.distributions.kumaraswamy.Kumaraswamy: _batch_shape _event_shape _validate_args base_dist*
  concentration0 concentration1 transforms*
torch.distributions.laplace.Laplace: _batch_shape _event_shape _validate_args loc scale
torch.distributions.lkj_cholesky.LKJCholesky: _batch_shape _beta* _event_shape _validate_args concentration
  dim
torch.distributions.log_normal.LogNormal: _batch_shape _event_shape _validate_args base_dist* transforms*
torch.distributions.logistic_normal.LogisticNormal: _batch_shape _event_shape _validate_args base_dist*
  transforms*
torch.distributions.lowrank_multivariate_normal.LowRankMultivariateNormal: _batch_shape _capacitance_tril
  _event_shape _unbroadcasted_cov_diag _unbroadcasted_cov_factor _validate_args cov_diag cov_factor
  covariance_matrix loc precision_matrix scale_tril variance
torch.distributions.mixture_same_family.MixtureSameFamily: _batch_shape _component_distribution*
  _event_ndims _event_shape _mixture_distribution* _num_component _validate_args
torch.distributions.multinomial.Multinomial: _batch_shape _binomial* _categorical* _event_shape
  _validate_args total_count
torch.distributions.multivariate_normal.MultivariateNormal: _batch_shape _event_shape
  _unbroadcasted_scale_tril _validate_args covariance_matrix loc precision_matrix scale_tril
torch.distributions.negative_binomial.NegativeBinomial: _batch_shape _event_shape _gamma* _param
  _validate_args logits probs total_count
torch.distributions.normal.Normal: _batch_shape _event_shape _validate_args loc scale
torch.distributions.one_hot_categorical.OneHotCategorical: _batch_shape _categorical* _event_shape
  _validate_args
torch.distributions.one_hot_categorical.OneHotCategoricalStraightThrough: _batch_shape _categorical*
  _event_shape _validate_args
torch.distributions.pareto.Pareto: _batch_shape _event_shape _validate_args alpha base_dist* scale
  transforms*
torch.distributions.poisson.Poisson: _batch_shape _event_shape _validate_args rate
torch.distributions.relaxed_bernoulli.LogitRelaxedBernoulli: _batch_shape _event_shape _param _validate_args
  logits probs temperature
torch.distributions.relaxed_bernoulli.RelaxedBernoulli: _batch_shape _event_shape _validate_args base_dist*
  transforms*
torch.distributions.relaxed_categorical.ExpRelaxedCategorical: _batch_shape _categorical* _event_shape
  _validate_args temperature
torch.distributions.relaxed_categorical.RelaxedOneHotCategorical: _batch_shape _event_shape _validate_args
  base_dist* transforms*
torch.distributions.studentT.StudentT: _batch_shape _chi2* _event_shape _validate_args df loc scale
torch.distributions.transformed_distribution.TransformedDistribution: _batch_shape _event_shape
  _validate_args base_dist* transforms*
torch.distributions.transforms.AbsTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.AffineTransform: _cache_size _cached_x_y _event_dim _inv event_dim loc scale
torch.distributions.transforms.CatTransform: _cache_size _cached_x_y _inv dim event_dim length lengths
  transforms*
torch.distributions.transforms.ComposeTransform: _cache_size _cached_x_y _inv bijective parts* sign
torch.distributions.transforms.CorrCholeskyTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.CumulativeDistributionTransform: _cache_size _cached_x_y _inv distribution*
torch.distributions.transforms.ExpTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.IndependentTransform: _cache_size _cached_x_y _inv base_transform*
  reinterpreted_batch_ndims
torch.distributions.transforms.LowerCholeskyTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.PositiveDefiniteTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.PowerTransform: _cache_size _cached_x_y _inv exponent sign
torch.distributions.transforms.ReshapeTransform: _cache_size _cached_x_y _inv in_shape out_shape
torch.distributions.transforms.SigmoidTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.SoftmaxTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.SoftplusTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.StackTransform: _cache_size _cached_x_y _inv dim transforms*
torch.distributions.transforms.StickBreakingTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.TanhTransform: _cache_size _cached_x_y _inv
torch.distributions.transforms.Transform: _cache_size _cached_x_y _inv
torch.distributions.transforms._InverseTransform: _cache_size _inv
torch.distributions.uniform.Uniform: _batch_shape _event_shape _validate_args high low
torch.distributions.von_mises.VonMises: _batch_shape _concentration _event_shape _loc _proposal_r
  _validate_args concentration loc variance
torch.distributions.weibull.Weibull: _batch_shape _event_shape _validate_args base_dist* concentration
  concentration_reciprocal scale transforms*
torch.distributions.wishart.Wishart: _batch_dims _batch_shape _dist_chi2* _event_shape
  _unbroadcasted_scale_tril _validate_args covariance_matrix df precision_matrix scale_tril
torch.nn.modules.activation.CELU: _backend*
torch.nn.modules.activation.ELU: _backend*
torch.nn.modules.activation.GLU: _backend*
torch.nn.modules.activation.Hardshrink: _backend*
torch.nn.modules.activation.Hardtanh: _backend*
torch.nn.modules.activation.LeakyReLU: _backend*
torch.nn.modules.activation.LogSigmoid: _backend*
torch.nn.modules.activation.LogSoftmax: _backend*
torch.nn.modules.activation.MultiheadAttention: _backend*
torch.nn.modules.activation.PReLU: _backend*
torch.nn.modules.activation.RReLU: _backend*
torch.nn.modules.activation.ReLU: _backend*
torch.nn.modules.activation.ReLU6: _backend*
torch.nn.modules.activation.SELU: _backend*
torch.nn.modules.activation.Sigmoid: _backend*
torch.nn.modules.activation.Softmax: _backend*
torch.nn.modules.activation.Softmax2d: _backend*
torch.nn.modules.activation.Softmin: _backend*
torch.nn.modules.activation.Softplus: _backend*
torch.nn.modules.activation.Softshrink: _backend*
torch.nn.modules.activation.Softsign: _backend*
torch.nn.modules.activation.Tanh: _backend*
torch.nn.modules.activation.Tanhshrink: _backend*
torch.nn.modules.activation.Threshold: _backend*
torch.nn.modules.adaptive.AdaptiveLogSoftmaxWithLoss: _backend*
torch.nn.modules.batchnorm.BatchNorm1d: _backend*
torch.nn.modules.batchnorm.BatchNorm2d: _backend*
torch.nn.modules.batchnorm.BatchNorm3d: _backend*
torch.nn.modules.batchnorm.LazyBatchNorm1d: _initialize_hook* _load_hook*
torch.nn.modules.batchnorm.LazyBatchNorm2d: _initialize_hook* _load_hook*
torch.nn.modules.batchnorm.LazyBatchNorm3d: _initialize_hook* _load_hook*
torch.nn.modules.batchnorm.SyncBatchNorm: _backend* process_group*
torch.nn.modules.container.Container: _backend*
torch.nn.modules.container.ModuleDict: _backend*
torch.nn.modules.container.ModuleList: _backend*
torch.nn.modules.container.ParameterDict: _backend*
torch.nn.modules.container.ParameterList: _backend*
torch.nn.modules.container.Sequential: _backend* qconfig*
torch.nn.modules.conv.Conv1d: _backend*
torch.nn.modules.conv.Conv2d: _backend*
torch.nn.modules.conv.Conv3d: _backend*
torch.nn.modules.conv.ConvTranspose1d: _backend*
torch.nn.modules.conv.ConvTranspose2d: _backend*
torch.nn.modules.conv.ConvTranspose3d: _backend*
torch.nn.modules.conv.LazyConv1d: _initialize_hook* _load_hook*
torch.nn.modules.conv.LazyConv2d: _initialize_hook* _load_hook*
torch.nn.modules.conv.LazyConv3d: _initialize_hook* _load_hook*
torch.nn.modules.conv.LazyConvTranspose1d: _initialize_hook* _load_hook*
torch.nn.modules.conv.LazyConvTranspose2d: _initialize_hook* _load_hook*
torch.nn.modules.conv.LazyConvTranspose3d: _initialize_hook* _load_hook*
torch.nn.modules.distance.CosineSimilarity: _backend*
torch.nn.modules.distance.PairwiseDistance: _backend*
torch.nn.modules.dropout.AlphaDropout: _backend*
torch.nn.modules.dropout.Dropout: _backend*
torch.nn.modules.dropout.Dropout2d: _backend*
torch.nn.modules.dropout.Dropout3d: _backend*
torch.nn.modules.dropout.FeatureAlphaDropout: _backend*
torch.nn.modules.flatten.Flatten: _backend*
torch.nn.modules.fold.Fold: _backend*
torch.nn.modules.fold.Unfold: _backend*
torch.nn.modules.instancenorm.InstanceNorm1d: _backend*
torch.nn.modules.instancenorm.InstanceNorm2d: _backend*
torch.nn.modules.instancenorm.InstanceNorm3d: _backend*
torch.nn.modules.instancenorm.LazyInstanceNorm1d: _initialize_hook* _load_hook*
torch.nn.modules.instancenorm.LazyInstanceNorm2d: _initialize_hook* _load_hook*
torch.nn.modules.instancenorm.LazyInstanceNorm3d: _initialize_hook* _load_hook*
torch.nn.modules.linear.Bilinear: _backend*
torch.nn.modules.linear.Identity: _backend*
torch.nn.modules.linear.LazyLinear: _initialize_hook* _load_hook*
torch.nn.modules.linear.Linear: _backend*
torch.nn.modules.loss.BCELoss: _backend*
torch.nn.modules.loss.BCEWithLogitsLoss: _backend*
torch.nn.modules.loss.CTCLoss: _backend*
torch.nn.modules.loss.CosineEmbeddingLoss: _backend*
torch.nn.modules.loss.CrossEntropyLoss: _backend*
torch.nn.modules.loss.HingeEmbeddingLoss: _backend*
torch.nn.modules.loss.KLDivLoss: _backend*
torch.nn.modules.loss.L1Loss: _backend*
torch.nn.modules.loss.MSELoss: _backend*
torch.nn.modules.loss.MarginRankingLoss: _backend*
torch.nn.modules.loss.MultiLabelMarginLoss: _backend*
torch.nn.modules.loss.MultiLabelSoftMarginLoss: _backend*
torch.nn.modules.loss.MultiMarginLoss: _backend*
torch.nn.modules.loss.NLLLoss: _backend*
torch.nn.modules.loss.NLLLoss2d: _backend*
torch.nn.modules.loss.PoissonNLLLoss: _backend*
torch.nn.modules.loss.SmoothL1Loss: _backend*
torch.nn.modules.loss.SoftMarginLoss: _backend*
torch.nn.modules.loss.TripletMarginLoss: _backend*
torch.nn.modules.loss.TripletMarginWithDistanceLoss: distance_function*
torch.nn.modules.module.Module: _backend*
torch.nn.modules.module._WrappedHook: hook* module* with_module
torch.nn.modules.normalization.CrossMapLRN2d: _backend*
torch.nn.modules.normalization.GroupNorm: _backend*
torch.nn.modules.normalization.LayerNorm: _backend*
torch.nn.modules.normalization.LocalResponseNorm: _backend*
torch.nn.modules.padding.ConstantPad1d: _backend*
torch.nn.modules.padding.ConstantPad2d: _backend*
torch.nn.modules.padding.ConstantPad3d: _backend*
torch.nn.modules.padding.ReflectionPad1d: _backend*
torch.nn.modules.padding.ReflectionPad2d: _backend*
torch.nn.modules.padding.ReplicationPad1d: _backend*
torch.nn.modules.padding.ReplicationPad2d: _backend*
torch.nn.modules.padding.ReplicationPad3d: _backend*
torch.nn.modules.padding.ZeroPad2d: _backend*
torch.nn.modules.pixelshuffle.PixelShuffle: _backend*
torch.nn.modules.pooling.AdaptiveAvgPool1d: _backend*
torch.nn.modules.pooling.AdaptiveAvgPool2d: _backend*
torch.nn.modules.pooling.AdaptiveAvgPool3d: _backend*
torch.nn.modules.pooling.AdaptiveMaxPool1d: _backend*
torch.nn.modules.pooling.AdaptiveMaxPool2d: _backend*
torch.nn.modules.pooling.AdaptiveMaxPool3d: _backend*
torch.nn.modules.pooling.AvgPool1d: _backend*
torch.nn.modules.pooling.AvgPool2d: _backend*
torch.nn.modules.pooling.AvgPool3d: _backend*
torch.nn.modules.pooling.FractionalMaxPool2d: _backend*
torch.nn.modules.pooling.FractionalMaxPool3d: _backend*
torch.nn.modules.pooling.LPPool1d: _backend*
torch.nn.modules.pooling.LPPool2d: _backend*
torch.nn.modules.pooling.MaxPool1d: _backend*
torch.nn.modules.pooling.MaxPool2d: _backend*
torch.nn.modules.pooling.MaxPool3d: _backend*
torch.nn.modules.pooling.MaxUnpool1d: _backend*
torch.nn.modules.pooling.MaxUnpool2d: _backend*
torch.nn.modules.pooling.MaxUnpool3d: _backend*
torch.nn.modules.rnn.GRU: _backend*
torch.nn.modules.rnn.GRUCell: _backend*
torch.nn.modules.rnn.LSTM: _backend*
torch.nn.modules.rnn.LSTMCell: _backend*
torch.nn.modules.rnn.RNN: _backend*
torch.nn.modules.rnn.RNNBase: _backend*
torch.nn.modules.rnn.RNNCell: _backend*
torch.nn.modules.rnn.RNNCellBase: _backend*
torch.nn.modules.sparse.Embedding: _backend*
torch.nn.modules.sparse.EmbeddingBag: _backend*
torch.nn.modules.transformer.Transformer: _backend*
torch.nn.modules.transformer.TransformerDecoder: _backend*
torch.nn.modules.transformer.TransformerDecoderLayer: _backend* activation*
torch.nn.modules.transformer.TransformerEncoder: _backend*
torch.nn.modules.transformer.TransformerEncoderLayer: _backend* activation*
torch.nn.modules.upsampling.Upsample: _backend*
torch.nn.modules.upsampling.UpsamplingBilinear2d: _backend*
torch.nn.modules.upsampling.UpsamplingNearest2d: _backend*
torch.nn.parallel.data_parallel.DataParallel: _backend*
torch.nn.parallel.distributed.DistributedDataParallel: _backend* _bucket_config* _join_config*
  _module_copies* ddp_uneven_inputs_config*
torch.nn.utils.prune.CustomFromMask: _tensor_name mask
torch.nn.utils.prune.Identity: _tensor_name
torch.nn.utils.prune.L1Unstructured: _tensor_name amount
torch.nn.utils.prune.LnStructured: _tensor_name amount dim n
torch.nn.utils.prune.PruningContainer: _pruning_methods* _tensor_name
torch.nn.utils.prune.RandomStructured: _tensor_name amount dim
torch.nn.utils.prune.RandomUnstructured: _tensor_name amount
torch.nn.utils.spectral_norm.SpectralNorm: dim eps n_power_iterations name
torch.nn.utils.spectral_norm.SpectralNormLoadStateDictPreHook: fn*
torch.nn.utils.spectral_norm.SpectralNormStateDictHook: fn*
torch.nn.utils.weight_norm.WeightNorm: dim name
torch.optim.lr_scheduler.ChainedScheduler: _last_lr _schedulers* optimizer*
torch.optim.lr_scheduler.ConstantLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  factor last_epoch optimizer* total_iters verbose
torch.optim.lr_scheduler.CosineAnnealingLR: T_max _get_lr_called_within_step _is_initial _last_lr
  _step_count base_lrs eta_min last_epoch optimizer* verbose
torch.optim.lr_scheduler.CosineAnnealingWarmRestarts: T_0 T_cur T_i T_mult _get_lr_called_within_step
  _is_initial _last_lr _step_count base_lrs eta_min last_epoch optimizer* verbose
torch.optim.lr_scheduler.CyclicLR: _get_lr_called_within_step _is_initial _last_lr _scale_fn_custom*
  _scale_fn_ref* _step_count base_lrs base_momentums cycle_momentum gamma last_epoch max_lrs max_momentums
  mode optimizer* scale_fn* scale_mode step_ratio total_size use_beta1 verbose
torch.optim.lr_scheduler.ExponentialLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  gamma last_epoch optimizer* verbose
torch.optim.lr_scheduler.LRScheduler: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  gamma last_epoch optimizer* step_size verbose
torch.optim.lr_scheduler.LambdaLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  last_epoch lr_lambdas* optimizer* verbose
torch.optim.lr_scheduler.LinearLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  end_factor last_epoch optimizer* start_factor total_iters verbose
torch.optim.lr_scheduler.MultiStepLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  gamma last_epoch milestones optimizer* verbose
torch.optim.lr_scheduler.MultiplicativeLR: _get_lr_called_within_step _is_initial _last_lr _step_count
  base_lrs last_epoch lr_lambdas* optimizer* verbose
torch.optim.lr_scheduler.OneCycleLR: _anneal_func_type _get_lr_called_within_step _is_initial _last_lr
  _schedule_phases _step_count anneal_func* base_lrs cycle_momentum last_epoch optimizer* step_size_down
  step_size_up total_steps use_beta1 verbose
torch.optim.lr_scheduler.PolynomialLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  last_epoch optimizer* power total_iters verbose
torch.optim.lr_scheduler.ReduceLROnPlateau: _last_lr best cooldown cooldown_counter default_min_lr eps
  factor is_better* last_epoch min_lrs mode mode_worse num_bad_epochs optimizer* patience threshold
  threshold_mode verbose
torch.optim.lr_scheduler.SequentialLR: _last_lr _milestones _schedulers* last_epoch optimizer*
torch.optim.lr_scheduler.StepLR: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs gamma
  last_epoch optimizer* step_size verbose
torch.optim.lr_scheduler._LRScheduler: _get_lr_called_within_step _is_initial _last_lr _step_count base_lrs
  gamma last_epoch optimizer* step_size verbose
torch.optim.swa_utils.AveragedModel: avg_fn*
torch.optim.swa_utils.SWALR: _anneal_strategy _get_lr_called_within_step _is_initial _last_lr _step_count
  anneal_epochs anneal_func* base_lrs last_epoch optimizer* verbose
torch.utils.data.dataset.ChainDataset: datasets*
torch.utils.data.dataset.ConcatDataset: cumulative_sizes datasets*
torch.utils.data.dataset.Dataset:
torch.utils.data.dataset.IterableDataset:
torch.utils.data.dataset.StackDataset: _length datasets*
torch.utils.data.dataset.Subset: dataset* indices
torch.utils.data.dataset.TensorDataset: tensors
torch.utils.data.sampler.BatchSampler: batch_size drop_last sampler*
torch.utils.data.sampler.RandomSampler: _num_samples data_source* generator* num_samples replacement
torch.utils.data.sampler.Sampler:
torch.utils.data.sampler.SequentialSampler: data_source*
torch.utils.data.sampler.SubsetRandomSampler: generator* indices
torch.utils.data.sampler.WeightedRandomSampler: generator* num_samples replacement weights
"""


def _read_table(text: str) -> dict[str, dict[str, bool]]:
    rows: dict[str, dict[str, bool]] = {}
    for row in text.replace("\n  ", " ").strip().splitlines():
        cls, _, names = row.partition(":")
        rows[cls] = {name.rstrip("*"): name.endswith("*") for name in names.split()}
    return rows


ATTRIBUTES = _read_table(_TABLE)
"""Class -> its attributes -> whether it holds objects or functions."""

_FURTHER = """
torch.ScriptObject torch._C.ScriptObject torch.ao.nn.intrinsic.modules.fused.BNReLU2d
torch.ao.nn.intrinsic.modules.fused.BNReLU3d torch.ao.nn.intrinsic.modules.fused.ConvAdd2d
torch.ao.nn.intrinsic.modules.fused.ConvAddReLU2d torch.ao.nn.intrinsic.modules.fused.ConvBn1d
torch.ao.nn.intrinsic.modules.fused.ConvBn2d torch.ao.nn.intrinsic.modules.fused.ConvBn3d
torch.ao.nn.intrinsic.modules.fused.ConvBnReLU1d torch.ao.nn.intrinsic.modules.fused.ConvBnReLU2d
torch.ao.nn.intrinsic.modules.fused.ConvBnReLU3d torch.ao.nn.intrinsic.modules.fused.ConvReLU1d
torch.ao.nn.intrinsic.modules.fused.ConvReLU2d torch.ao.nn.intrinsic.modules.fused.ConvReLU3d
torch.ao.nn.intrinsic.modules.fused.LinearBn1d torch.ao.nn.intrinsic.modules.fused.LinearLeakyReLU
torch.ao.nn.intrinsic.modules.fused.LinearReLU torch.ao.nn.intrinsic.modules.fused.LinearTanh
torch.ao.nn.intrinsic.quantized.modules.bn_relu.BNReLU2d
torch.ao.nn.intrinsic.quantized.modules.bn_relu.BNReLU3d
torch.ao.nn.intrinsic.quantized.modules.conv_relu.ConvReLU1d
torch.ao.nn.intrinsic.quantized.modules.conv_relu.ConvReLU2d
torch.ao.nn.intrinsic.quantized.modules.conv_relu.ConvReLU3d
torch.ao.nn.intrinsic.quantized.modules.linear_relu.LinearReLU
torch.ao.nn.quantizable.modules.activation.MultiheadAttention torch.ao.nn.quantizable.modules.rnn.LSTM
torch.ao.nn.quantizable.modules.rnn.LSTMCell torch.ao.nn.quantizable.modules.rnn._LSTMLayer
torch.ao.nn.quantizable.modules.rnn._LSTMSingleLayer torch.ao.nn.quantized.dynamic.modules.conv.Conv2d
torch.ao.nn.quantized.dynamic.modules.linear.Linear torch.ao.nn.quantized.dynamic.modules.rnn.GRU
torch.ao.nn.quantized.dynamic.modules.rnn.GRUCell torch.ao.nn.quantized.dynamic.modules.rnn.LSTM
torch.ao.nn.quantized.dynamic.modules.rnn.LSTMCell torch.ao.nn.quantized.dynamic.modules.rnn.PackedParameter
torch.ao.nn.quantized.dynamic.modules.rnn.RNNCell torch.ao.nn.quantized.modules.DeQuantize
torch.ao.nn.quantized.modules.Quantize torch.ao.nn.quantized.modules.activation.ELU
torch.ao.nn.quantized.modules.activation.Hardswish torch.ao.nn.quantized.modules.activation.LeakyReLU
torch.ao.nn.quantized.modules.activation.MultiheadAttention torch.ao.nn.quantized.modules.activation.PReLU
torch.ao.nn.quantized.modules.activation.ReLU6 torch.ao.nn.quantized.modules.activation.Sigmoid
torch.ao.nn.quantized.modules.activation.Softmax torch.ao.nn.quantized.modules.batchnorm.BatchNorm2d
torch.ao.nn.quantized.modules.batchnorm.BatchNorm3d torch.ao.nn.quantized.modules.conv.Conv1d
torch.ao.nn.quantized.modules.conv.Conv2d torch.ao.nn.quantized.modules.conv.Conv3d
torch.ao.nn.quantized.modules.conv.ConvTranspose1d torch.ao.nn.quantized.modules.conv.ConvTranspose2d
torch.ao.nn.quantized.modules.dropout.Dropout torch.ao.nn.quantized.modules.embedding_ops.Embedding
torch.ao.nn.quantized.modules.embedding_ops.EmbeddingBag
torch.ao.nn.quantized.modules.embedding_ops.EmbeddingPackedParams
torch.ao.nn.quantized.modules.functional_modules.FXFloatFunctional
torch.ao.nn.quantized.modules.functional_modules.FloatFunctional
torch.ao.nn.quantized.modules.functional_modules.QFunctional torch.ao.nn.quantized.modules.linear.Linear
torch.ao.nn.quantized.modules.linear.LinearPackedParams
torch.ao.nn.quantized.modules.normalization.GroupNorm
torch.ao.nn.quantized.modules.normalization.InstanceNorm2d
torch.ao.nn.quantized.modules.normalization.LayerNorm torch.ao.nn.quantized.modules.rnn.LSTM
torch.ao.nn.quantized.reference.modules.conv.Conv1d torch.ao.nn.quantized.reference.modules.conv.Conv2d
torch.ao.nn.quantized.reference.modules.conv.Conv3d
torch.ao.nn.quantized.reference.modules.conv.ConvTranspose2d
torch.ao.nn.quantized.reference.modules.linear.Linear
torch.ao.nn.quantized.reference.modules.sparse.Embedding
torch.ao.nn.quantized.reference.modules.sparse.EmbeddingBag torch.ao.quantization.fake_quantize.FakeQuantize
torch.ao.quantization.fake_quantize.FixedQParamsFakeQuantize
torch.ao.quantization.fake_quantize.FusedMovingAvgObsFakeQuantize
torch.ao.quantization.observer.FixedQParamsObserver torch.ao.quantization.observer.HistogramObserver
torch.ao.quantization.observer.MinMaxObserver torch.ao.quantization.observer.MovingAverageMinMaxObserver
torch.ao.quantization.observer.MovingAveragePerChannelMinMaxObserver
torch.ao.quantization.observer.NoopObserver torch.ao.quantization.observer.PerChannelMinMaxObserver
torch.ao.quantization.observer.PlaceholderObserver torch.ao.quantization.observer.RecordingObserver
torch.ao.quantization.observer.ReuseInputObserver torch.ao.quantization.observer._PartialWrapper
torch.ao.quantization.qconfig.QConfig torch.ao.quantization.qconfig.QConfigDynamic
torch.ao.quantization.stubs.DeQuantStub torch.ao.quantization.stubs.QuantStub
torch.ao.quantization.stubs.QuantWrapper torch.autograd.grad_mode.enable_grad
torch.autograd.grad_mode.no_grad torch.autograd.profiler.record_function
torch.distributed._shard.sharding_spec._internals.ShardMetadata
torch.distributed._shard.sharding_spec.api.ChunkShardingSpec torch.distributed._sharded_tensor.api.Shard
torch.distributed._sharded_tensor.api.ShardedTensor
torch.distributed._sharded_tensor.api.ShardedTensor.ProcessGroupState
torch.distributed._sharded_tensor.api.ShardedTensorMetadata
torch.distributed._sharding_spec._internals.ShardMetadata
torch.distributed._sharding_spec.api.ChunkShardingSpec torch.distributed.algorithms.join._JoinConfig
torch.nn.intrinsic.modules.fused.BNReLU2d torch.nn.intrinsic.modules.fused.BNReLU3d
torch.nn.intrinsic.modules.fused.ConvBn1d torch.nn.intrinsic.modules.fused.ConvBn2d
torch.nn.intrinsic.modules.fused.ConvBn3d torch.nn.intrinsic.modules.fused.ConvBnReLU1d
torch.nn.intrinsic.modules.fused.ConvBnReLU2d torch.nn.intrinsic.modules.fused.ConvBnReLU3d
torch.nn.intrinsic.modules.fused.ConvReLU1d torch.nn.intrinsic.modules.fused.ConvReLU2d
torch.nn.intrinsic.modules.fused.ConvReLU3d torch.nn.intrinsic.modules.fused.LinearBn1d
torch.nn.intrinsic.modules.fused.LinearReLU torch.nn.intrinsic.quantized.modules.bn_relu.BNReLU2d
torch.nn.intrinsic.quantized.modules.bn_relu.BNReLU3d
torch.nn.intrinsic.quantized.modules.conv_relu.ConvReLU1d
torch.nn.intrinsic.quantized.modules.conv_relu.ConvReLU2d
torch.nn.intrinsic.quantized.modules.conv_relu.ConvReLU3d
torch.nn.intrinsic.quantized.modules.linear_relu.LinearReLU
torch.nn.parallel.distributed._BucketCapacityConfig torch.nn.parallel.distributed._DDPUnevenInputsConfig
torch.nn.quantizable.modules.activation.MultiheadAttention torch.nn.quantizable.modules.rnn.LSTM
torch.nn.quantizable.modules.rnn.LSTMCell torch.nn.quantizable.modules.rnn._LSTMLayer
torch.nn.quantizable.modules.rnn._LSTMSingleLayer torch.nn.quantized.dynamic.modules.conv.Conv2d
torch.nn.quantized.dynamic.modules.linear.Linear torch.nn.quantized.dynamic.modules.rnn.GRU
torch.nn.quantized.dynamic.modules.rnn.GRUCell torch.nn.quantized.dynamic.modules.rnn.LSTM
torch.nn.quantized.dynamic.modules.rnn.LSTMCell torch.nn.quantized.dynamic.modules.rnn.PackedParameter
torch.nn.quantized.dynamic.modules.rnn.RNNCell torch.nn.quantized.modules.DeQuantize
torch.nn.quantized.modules.Quantize torch.nn.quantized.modules.activation.ELU
torch.nn.quantized.modules.activation.Hardswish torch.nn.quantized.modules.activation.LeakyReLU
torch.nn.quantized.modules.activation.ReLU torch.nn.quantized.modules.activation.ReLU6
torch.nn.quantized.modules.activation.Sigmoid torch.nn.quantized.modules.activation.Softmax
torch.nn.quantized.modules.batchnorm.BatchNorm2d torch.nn.quantized.modules.batchnorm.BatchNorm3d
torch.nn.quantized.modules.conv.Conv1d torch.nn.quantized.modules.conv.Conv2d
torch.nn.quantized.modules.conv.Conv3d torch.nn.quantized.modules.conv.ConvTranspose1d
torch.nn.quantized.modules.conv.ConvTranspose2d torch.nn.quantized.modules.dropout.Dropout
torch.nn.quantized.modules.embedding_ops.Embedding torch.nn.quantized.modules.embedding_ops.EmbeddingBag
torch.nn.quantized.modules.embedding_ops.EmbeddingPackedParams
torch.nn.quantized.modules.functional_modules.FXFloatFunctional
torch.nn.quantized.modules.functional_modules.FloatFunctional
torch.nn.quantized.modules.functional_modules.QFunctional torch.nn.quantized.modules.linear.DeQuantize
torch.nn.quantized.modules.linear.Linear torch.nn.quantized.modules.linear.LinearPackedParams
torch.nn.quantized.modules.linear.Quantize torch.nn.quantized.modules.normalization.GroupNorm
torch.nn.quantized.modules.normalization.InstanceNorm2d torch.nn.quantized.modules.normalization.LayerNorm
torch.nn.utils.parametrizations._Orthogonal torch.nn.utils.parametrizations._SpectralNorm
torch.nn.utils.parametrizations._WeightNorm torch.nn.utils.parametrize.ParametrizationList
torch.nn.utils.rnn.PackedSequence torch.optim.optimizer.Optimizer
torch.quantization.fake_quantize.FakeQuantize torch.quantization.observer.HistogramObserver
torch.quantization.observer.MinMaxDynamicQuantObserver torch.quantization.observer.MinMaxObserver
torch.quantization.observer.MovingAverageMinMaxObserver
torch.quantization.observer.MovingAveragePerChannelMinMaxObserver torch.quantization.observer.NoopObserver
torch.quantization.observer.PerChannelMinMaxObserver torch.quantization.observer.PlaceholderObserver
torch.quantization.observer.RecordingObserver torch.quantization.quantize.DeQuantStub
torch.quantization.quantize.QuantStub torch.quantization.quantize.QuantWrapper
torch.quantization.stubs.DeQuantStub torch.quantization.stubs.QuantStub
torch.quantization.stubs.QuantWrapper torch.utils.data.dataloader.DataLoader
torch.utils.data.distributed.DistributedSampler
"""

WRITTEN = frozenset(_FURTHER.split())
"""Further classes of torch whose objects somebody has written: each is a class of its
own, not another one by this name.
"""
