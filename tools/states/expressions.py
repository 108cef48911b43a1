"""What `write_states.py` makes: one expression a line, after ` | ` the input of the
module.

Each expression stands alone, so that a torch that lacks one name makes all others.
`x(2, 3)` are random numbers, `n(5, 2, 3)` random integers below 5, `p(2, 3)`
parameters.
"""

SETUP = """
import collections, datetime, functools
try:
    import torch.nn.utils.parametrize, torch.nn.utils.parametrizations
except ImportError:
    pass
try:
    import torch.nn.utils.prune
except ImportError:
    pass
try:
    import torch.optim.swa_utils
except ImportError:
    pass
try:
    import torch.utils.data.distributed
except ImportError:
    pass
try:
    import torch.ao.quantization as Q
except ImportError:
    try:
        import torch.quantization as Q
    except ImportError:
        pass
import math
import torch.distributions as D
import torch.utils.data as data
try:
    import torch.optim.lr_scheduler as S
except ImportError:
    pass
"""

MODULES = """
nn.Module()
nn.Identity() | x(2, 3)
nn.Identity(5, unused=1) | x(2, 3)
nn.Linear(4, 4) | x(2, 4)
nn.Linear(4, 3, False) | x(2, 4)
nn.Bilinear(2, 3, 4) | (x(5, 2), x(5, 3))
nn.LazyLinear(3) | x(2, 4)
nn.modules.linear.NonDynamicallyQuantizableLinear(4, 3) | x(2, 4)
nn.Conv1d(2, 3, 2) | x(2, 2, 9)
nn.Conv2d(2, 4, 2) | x(2, 2, 9, 9)
nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)) | x(2, 2, 9, 9)
nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular") | x(2, 2, 9, 9)
nn.Conv2d(2, 4, 3, padding="same") | x(2, 2, 9, 9)
nn.Conv2d(2, 4, 3, padding="same", padding_mode="reflect") | x(2, 2, 9, 9)
nn.Conv2d(2, 4, 3, padding="valid", groups=2) | x(2, 2, 9, 9)
nn.Conv3d(2, 4, 2) | x(2, 2, 9, 9, 9)
nn.ConvTranspose1d(2, 3, 2) | x(2, 2, 9)
nn.ConvTranspose2d(2, 3, 2) | x(2, 2, 9, 9)
nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1) | x(2, 2, 9, 9)
nn.ConvTranspose3d(2, 3, 2) | x(2, 2, 9, 9, 9)
nn.LazyConv1d(3, 2) | x(2, 2, 9)
nn.LazyConv2d(3, 2) | x(2, 2, 9, 9)
nn.LazyConv3d(3, 2) | x(2, 2, 9, 9, 9)
nn.LazyConvTranspose1d(3, 2) | x(2, 2, 9)
nn.LazyConvTranspose2d(3, 2) | x(2, 2, 9, 9)
nn.LazyConvTranspose3d(3, 2) | x(2, 2, 9, 9, 9)
nn.Unfold(2) | x(2, 2, 9, 9)
nn.Unfold((2, 3), dilation=(1, 1), padding=(1, 0), stride=(2, 1)) | x(2, 2, 9, 9)
nn.Fold((4, 5), (2, 2)) | x(2, 12, 12)
nn.Fold(4, 2) | x(2, 12, 9)
nn.MaxPool1d(2) | x(2, 2, 9)
nn.MaxPool2d(2) | x(2, 2, 9, 9)
nn.MaxPool2d((2, 3), stride=(1, 2), padding=(1, 1)) | x(2, 2, 9, 9)
nn.MaxPool3d(2) | x(2, 2, 9, 9, 9)
nn.MaxUnpool1d(2) | (x(2, 2, 2), n(1, 2, 2, 2))
nn.MaxUnpool2d(2) | (x(2, 2, 2, 2), n(1, 2, 2, 2, 2))
nn.MaxUnpool2d((2, 2), stride=(2, 2)) | (x(2, 2, 2, 2), n(1, 2, 2, 2, 2))
nn.MaxUnpool3d(2) | (x(2, 2, 2, 2, 2), n(1, 2, 2, 2, 2, 2))
nn.AvgPool1d(2) | x(2, 2, 9)
nn.AvgPool1d((2,)) | x(2, 2, 9)
nn.AvgPool2d(2) | x(2, 2, 9, 9)
nn.AvgPool2d((2, 3), stride=(1, 2)) | x(2, 2, 9, 9)
nn.AvgPool3d(2) | x(2, 2, 9, 9, 9)
nn.FractionalMaxPool2d(2, output_size=3) | x(2, 2, 9, 9)
nn.FractionalMaxPool2d((2, 3), output_ratio=(0.5, 0.5)) | x(2, 2, 9, 9)
nn.FractionalMaxPool2d(2, output_ratio=0.5, _random_samples=torch.rand(2, 2, 2)) | x(2, 2, 9, 9)
nn.FractionalMaxPool3d(2, output_size=3) | x(2, 2, 9, 9, 9)
nn.FractionalMaxPool3d(2, output_ratio=(0.5, 0.5, 0.5)) | x(2, 2, 9, 9, 9)
nn.LPPool1d(2, 3) | x(2, 2, 9)
nn.LPPool2d(1.2, 3) | x(2, 2, 9, 9)
nn.LPPool2d(2, (3, 2), stride=(2, 1)) | x(2, 2, 9, 9)
nn.LPPool3d(2, 3) | x(2, 2, 9, 9, 9)
nn.AdaptiveMaxPool1d(2) | x(2, 2, 9)
nn.AdaptiveMaxPool2d((2, None)) | x(2, 2, 9, 9)
nn.AdaptiveMaxPool2d(3) | x(2, 2, 9, 9)
nn.AdaptiveMaxPool3d((2, None, 2)) | x(2, 2, 9, 9, 9)
nn.AdaptiveMaxPool3d(2) | x(2, 2, 9, 9, 9)
nn.AdaptiveAvgPool1d(2) | x(2, 2, 9)
nn.AdaptiveAvgPool2d((2, None)) | x(2, 2, 9, 9)
nn.AdaptiveAvgPool2d(3) | x(2, 2, 9, 9)
nn.AdaptiveAvgPool2d([3, 3]) | x(2, 2, 9, 9)
nn.AdaptiveAvgPool2d(torch.Size([3, 3])) | x(2, 2, 9, 9)
nn.AdaptiveAvgPool3d((2, None, 2)) | x(2, 2, 9, 9, 9)
nn.AdaptiveAvgPool3d(1) | x(2, 2, 9, 9, 9)
nn.ReflectionPad1d(2) | x(2, 2, 9)
nn.ReflectionPad1d((1, 2)) | x(2, 2, 9)
nn.ReflectionPad2d(2) | x(2, 2, 9, 9)
nn.ReflectionPad2d([1, 1, 1, 1]) | x(2, 2, 9, 9)
nn.ReflectionPad3d(1) | x(2, 2, 9, 9, 9)
nn.ReplicationPad1d(2) | x(2, 2, 9)
nn.ReplicationPad2d((1, 2, 3, 4)) | x(2, 2, 9, 9)
nn.ReplicationPad3d(1) | x(2, 2, 9, 9, 9)
nn.ZeroPad1d(2) | x(2, 2, 9)
nn.ZeroPad2d((1, 2, 3, 4)) | x(2, 2, 9, 9)
nn.ZeroPad2d(1) | x(2, 2, 9, 9)
nn.ZeroPad3d(1) | x(2, 2, 9, 9, 9)
nn.ConstantPad1d(2, 3.5) | x(2, 2, 9)
nn.ConstantPad1d((1, 2), 3) | x(2, 2, 9)
nn.ConstantPad2d(2, 3.5) | x(2, 2, 9, 9)
nn.ConstantPad3d(2, 0) | x(2, 2, 9, 9, 9)
nn.CircularPad1d(2) | x(2, 2, 9)
nn.CircularPad2d(2) | x(2, 2, 9, 9)
nn.CircularPad3d(2) | x(2, 2, 9, 9, 9)
nn.ELU() | x(2, 4)
nn.CELU() | x(2, 4)
nn.SELU() | x(2, 4)
nn.GELU() | x(2, 4)
nn.GELU("tanh") | x(2, 4)
nn.GLU() | x(2, 4)
nn.Hardshrink() | x(2, 4)
nn.Hardsigmoid() | x(2, 4)
nn.Hardswish() | x(2, 4)
nn.Hardtanh() | x(2, 4)
nn.Hardtanh(-2, 2) | x(2, 4)
nn.Hardtanh(min_value=-1, max_value=2.5) | x(2, 4)
nn.LeakyReLU() | x(2, 4)
nn.LogSigmoid() | x(2, 4)
nn.Mish() | x(2, 4)
nn.PReLU() | x(2, 4)
nn.PReLU(4) | x(2, 4)
nn.ReLU() | x(2, 4)
nn.ReLU6() | x(2, 4)
nn.RReLU() | x(2, 4)
nn.SiLU() | x(2, 4)
nn.Sigmoid() | x(2, 4)
nn.Softplus() | x(2, 4)
nn.Softshrink() | x(2, 4)
nn.Softsign() | x(2, 4)
nn.Tanh() | x(2, 4)
nn.Tanhshrink() | x(2, 4)
nn.Threshold(0.1, 20) | x(2, 4)
nn.Threshold(1, 2.0) | x(2, 4)
nn.Softmin() | x(2, 4)
nn.Softmin(dim=1) | x(2, 4)
nn.Softmax() | x(2, 4)
nn.Softmax(dim=1) | x(2, 4)
nn.Softmax2d() | x(2, 4, 3, 3)
nn.LogSoftmax() | x(2, 4)
nn.LogSoftmax(dim=-1) | x(2, 4)
nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]) | (x(6, 8), n(20, 6))
nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=(5, 10), head_bias=True) | (x(6, 8), n(20, 6))
nn.MultiheadAttention(4, 2) | (x(3, 2, 4), x(3, 2, 4), x(3, 2, 4))
nn.MultiheadAttention(4, 2, kdim=3, vdim=5) | (x(3, 2, 4), x(3, 2, 3), x(3, 2, 5))
nn.MultiheadAttention(4, 2, dropout=0.1, bias=False, add_bias_kv=True, add_zero_attn=True) | (x(3, 2, 4), x(3, 2, 4), x(3, 2, 4))
nn.BatchNorm1d(4) | x(5, 4)
nn.BatchNorm2d(2) | x(2, 2, 4, 4)
nn.BatchNorm2d(2, affine=False, track_running_stats=False) | x(2, 2, 4, 4)
nn.BatchNorm3d(2) | x(2, 2, 4, 4, 4)
nn.LazyBatchNorm1d() | x(5, 4)
nn.LazyBatchNorm2d() | x(2, 2, 4, 4)
nn.LazyBatchNorm3d() | x(2, 2, 4, 4, 4)
nn.GroupNorm(2, 4) | x(2, 4, 3)
nn.SyncBatchNorm(2) | x(2, 2, 4, 4)
nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(2))) | x(2, 2, 4, 4)
nn.InstanceNorm1d(2) | x(2, 2, 4)
nn.InstanceNorm2d(2, affine=True, track_running_stats=True) | x(2, 2, 4, 4)
nn.InstanceNorm2d(2) | x(2, 2, 4, 4)
nn.InstanceNorm3d(2) | x(2, 2, 4, 4, 4)
nn.LazyInstanceNorm1d(affine=True, track_running_stats=True) | x(2, 2, 4)
nn.LazyInstanceNorm2d(affine=True, track_running_stats=True) | x(2, 2, 4, 4)
nn.LazyInstanceNorm3d(affine=True, track_running_stats=True) | x(2, 2, 4, 4, 4)
nn.LayerNorm(4) | x(2, 4)
nn.LayerNorm((3, 4)) | x(2, 3, 4)
nn.LayerNorm([3, 4], elementwise_affine=False) | x(2, 3, 4)
nn.LayerNorm(torch.Size([3, 4])) | x(2, 3, 4)
nn.RMSNorm(4) | x(2, 4)
nn.RMSNorm([3, 4]) | x(2, 3, 4)
nn.LocalResponseNorm(2) | x(2, 4, 3, 3)
nn.CrossMapLRN2d(2) | x(2, 4, 3, 3)
nn.RNN(4, 3) | x(5, 2, 4)
nn.RNN(4, 3, 2, dropout=0.5, bidirectional=True) | x(5, 2, 4)
nn.LSTM(4, 3) | x(5, 2, 4)
nn.LSTM(4, 3, 2, dropout=0.5, bidirectional=True, batch_first=True) | x(5, 2, 4)
nn.LSTM(4, 3, proj_size=2, bias=False) | x(5, 2, 4)
nn.GRU(4, 3) | x(5, 2, 4)
nn.GRU(4, 3, 2, dropout=1, bidirectional=True) | x(5, 2, 4)
nn.RNNBase("LSTM", 4, 3) | x(5, 2, 4)
nn.RNNBase("RNN_TANH", 4, 3) | x(5, 2, 4)
nn.modules.rnn.RNNCellBase(4, 3, True, 4)
nn.RNNCell(4, 3) | x(2, 4)
nn.LSTMCell(4, 3) | x(2, 4)
nn.GRUCell(4, 3) | x(2, 4)
nn.Transformer(4, 2, 1, 1, 8) | (x(3, 2, 4), x(3, 2, 4))
nn.Transformer(4, 2, 1, 1, 8, batch_first=True, norm_first=True) | (x(3, 2, 4), x(3, 2, 4))
nn.TransformerEncoderLayer(4, 2, 8) | x(3, 2, 4)
nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True) | x(3, 2, 4)
nn.TransformerEncoderLayer(4, 2, 8, activation=F.relu) | x(3, 2, 4)
nn.TransformerEncoderLayer(4, 2, 8, activation=torch.tanh) | x(3, 2, 4)
nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2) | x(3, 2, 4)
nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2) | x(3, 2, 4)
nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True), 2, norm=nn.LayerNorm(4)) | x(3, 2, 4)
nn.TransformerDecoderLayer(4, 2, 8) | (x(3, 2, 4), x(3, 2, 4))
nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 2) | (x(3, 2, 4), x(3, 2, 4))
nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 2, norm=nn.LayerNorm(4)) | (x(3, 2, 4), x(3, 2, 4))
nn.Dropout() | x(2, 4)
nn.Dropout1d() | x(2, 4, 3)
nn.Dropout2d() | x(2, 4, 3, 3)
nn.Dropout3d() | x(2, 4, 3, 3, 3)
nn.AlphaDropout() | x(2, 4)
nn.FeatureAlphaDropout() | x(2, 4, 3)
nn.modules.dropout.FeatureAlphaDropout() | x(2, 4, 3)
nn.Embedding(10, 3) | n(10, 2, 4)
nn.Embedding(10, 3, padding_idx=0, max_norm=1.0, norm_type=1, scale_grad_by_freq=True) | n(10, 2, 4)
nn.Embedding(10, 3, sparse=True) | n(10, 2, 4)
nn.Embedding.from_pretrained(x(10, 3)) | n(10, 2, 4)
nn.Embedding.from_pretrained(x(10, 3), freeze=False, padding_idx=1) | n(10, 2, 4)
nn.EmbeddingBag(10, 3) | n(10, 2, 4)
nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=True) | (n(10, 4), torch.tensor([0, 4]))
nn.EmbeddingBag(10, 3, mode="max") | n(10, 2, 4)
nn.EmbeddingBag.from_pretrained(x(10, 3)) | n(10, 2, 4)
nn.CosineSimilarity() | (x(2, 4), x(2, 4))
nn.PairwiseDistance() | (x(2, 4), x(2, 4))
nn.PairwiseDistance(p=1.5) | (x(2, 4), x(2, 4))
nn.Flatten() | x(2, 4, 3)
nn.Flatten(0, 1) | x(2, 4, 3)
nn.Unflatten(1, (2, 2)) | x(2, 4)
nn.Unflatten(1, [2, 2]) | x(2, 4)
nn.Unflatten(1, torch.Size([2, 2])) | x(2, 4)
nn.Unflatten("features", (("c", 2), ("h", 2)))
nn.Unflatten("features", [("c", 2), ["h", 2]])
nn.PixelShuffle(2) | x(2, 4, 3, 3)
nn.PixelUnshuffle(2) | x(2, 4, 4, 4)
nn.ChannelShuffle(2) | x(2, 4, 4, 4)
nn.Upsample(scale_factor=2) | x(2, 4, 4, 4)
nn.Upsample(scale_factor=(2.0, 3), mode="bilinear", align_corners=True) | x(2, 4, 4, 4)
nn.Upsample(size=(5, 6), mode="bicubic") | x(2, 4, 4, 4)
nn.Upsample(size=6) | x(2, 4, 4, 4)
nn.Upsample(6) | x(2, 4, 4, 4)
nn.UpsamplingNearest2d(scale_factor=2) | x(2, 4, 4, 4)
nn.UpsamplingBilinear2d(scale_factor=2) | x(2, 4, 4, 4)
nn.UpsamplingBilinear2d(size=(5, 6)) | x(2, 4, 4, 4)
nn.L1Loss() | (x(2, 3), x(2, 3))
nn.NLLLoss() | (x(2, 3), n(3, 2))
nn.NLLLoss(weight=torch.ones(3), ignore_index=-100, reduction="sum") | (x(2, 3), n(3, 2))
nn.NLLLoss2d() | (x(2, 3, 2, 2), n(3, 2, 2, 2))
nn.KLDivLoss() | (x(2, 3), x(2, 3))
nn.MSELoss() | (x(2, 3), x(2, 3))
nn.BCELoss() | (torch.rand(2, 3), torch.rand(2, 3))
nn.BCEWithLogitsLoss() | (x(2, 3), torch.rand(2, 3))
nn.BCEWithLogitsLoss(pos_weight=torch.ones(3), weight=torch.ones(3)) | (x(2, 3), torch.rand(2, 3))
nn.CrossEntropyLoss() | (x(2, 3), n(3, 2))
nn.CrossEntropyLoss(weight=torch.ones(3), label_smoothing=0.1) | (x(2, 3), n(3, 2))
nn.CTCLoss() | (x(5, 2, 4).log_softmax(2), n(3, 2, 2) + 1, torch.tensor([5, 5]), torch.tensor([2, 2]))
nn.CosineEmbeddingLoss() | (x(2, 3), x(2, 3), torch.ones(2))
nn.GaussianNLLLoss() | (x(2, 3), x(2, 3), torch.ones(2, 3))
nn.HingeEmbeddingLoss() | (x(2, 3), torch.ones(2, 3))
nn.HuberLoss() | (x(2, 3), x(2, 3))
nn.MarginRankingLoss() | (x(3), x(3), torch.ones(3))
nn.MultiLabelMarginLoss() | (x(2, 3), n(3, 2, 3))
nn.MultiLabelSoftMarginLoss() | (x(2, 3), torch.rand(2, 3))
nn.MultiMarginLoss() | (x(2, 3), n(3, 2))
nn.PoissonNLLLoss() | (x(2, 3), torch.rand(2, 3))
nn.SmoothL1Loss() | (x(2, 3), x(2, 3))
nn.SoftMarginLoss() | (x(2, 3), torch.ones(2, 3))
nn.TripletMarginLoss() | (x(2, 3), x(2, 3), x(2, 3))
nn.TripletMarginWithDistanceLoss() | (x(2, 3), x(2, 3), x(2, 3))
nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance()) | (x(2, 3), x(2, 3), x(2, 3))
nn.LinearCrossEntropyLoss(4, 3) | (x(2, 4), n(3, 2))
nn.Sequential() | x(2, 4)
nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)) | x(2, 4)
nn.Sequential(collections.OrderedDict([("a", nn.Linear(4, 4)), ("b", nn.Sequential(nn.Dropout(0.1)))])) | x(2, 4)
nn.ModuleList()
nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
nn.ModuleDict()
nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
nn.ModuleDict(collections.OrderedDict([("a", nn.Linear(4, 4))]))
nn.ParameterList()
nn.ParameterList(p(2, 3))
nn.ParameterList([x(2, 3), nn.Parameter(x(2)), 1, "text", None, (1, 2)])
nn.ParameterDict()
nn.ParameterDict({"a": nn.Parameter(x(2, 3))})
nn.ParameterDict({"a": nn.Parameter(x(2, 3)), "b": x(2), "c": 3, "d": "text"})
nn.Container()
nn.Container(a=nn.Linear(2, 2))
nn.DataParallel(nn.Linear(4, 4)) | x(2, 4)
nn.DataParallel(nn.Linear(4, 4), device_ids=[]) | x(2, 4)
torch.optim.swa_utils.AveragedModel(nn.Linear(4, 4)) | x(2, 4)
torch.optim.swa_utils.AveragedModel(nn.BatchNorm1d(4), device="cpu") | x(2, 4)
torch.optim.swa_utils.AveragedModel(nn.Linear(4, 4), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)) | x(2, 4)
nn.quantized.FloatFunctional()
Q.QuantStub() | x(2, 4)
Q.DeQuantStub() | x(2, 4)
Q.QuantWrapper(nn.Linear(4, 4)) | x(2, 4)
Q.FakeQuantize() | x(2, 4)
Q.MinMaxObserver() | x(2, 4)
Q.MovingAverageMinMaxObserver() | x(2, 4)
Q.PerChannelMinMaxObserver() | x(2, 4)
Q.MovingAveragePerChannelMinMaxObserver() | x(2, 4)
Q.HistogramObserver() | x(2, 4)
Q.PlaceholderObserver() | x(2, 4)
Q.RecordingObserver() | x(2, 4)
Q.NoopObserver() | x(2, 4)
Q.default_observer() | x(2, 4)
Q.default_weight_observer() | x(2, 4)
Q.default_per_channel_weight_observer() | x(2, 4)
Q.default_histogram_observer() | x(2, 4)
Q.default_dynamic_quant_observer() | x(2, 4)
Q.default_float_qparams_observer() | x(2, 4)
Q.default_fake_quant() | x(2, 4)
Q.default_weight_fake_quant() | x(2, 4)
Q.default_per_channel_weight_fake_quant() | x(2, 4)
Q.default_histogram_fake_quant() | x(2, 4)
Q.FusedMovingAvgObsFakeQuantize() | x(2, 4)
Q.FixedQParamsObserver(scale=0.1, zero_point=0) | x(2, 4)
Q.default_fixed_qparams_range_0to1_fake_quant() | x(2, 4)
Q.default_reuse_input_observer() | x(2, 4)
Q.observer.default_placeholder_observer() | x(2, 4)
Q.observer.ReuseInputObserver() | x(2, 4)
Q._learnable_fake_quantize._LearnableFakeQuantize(Q.MinMaxObserver) | x(2, 4)
nn.quantized.Linear(4, 3)
nn.quantized.Linear(4, 3, bias_=False)
nn.quantized.Conv1d(2, 3, 2)
nn.quantized.Conv2d(2, 3, 2)
nn.quantized.Conv3d(2, 3, 2)
nn.quantized.ConvTranspose1d(2, 3, 2)
nn.quantized.ConvTranspose2d(2, 3, 2)
nn.quantized.BatchNorm2d(2)
nn.quantized.BatchNorm3d(2)
nn.quantized.ReLU6()
nn.quantized.Hardswish(0.1, 0)
nn.quantized.ELU(0.1, 0)
nn.quantized.LeakyReLU(0.1, 0)
nn.quantized.Sigmoid(0.1, 0)
nn.quantized.Softmax(1)
nn.quantized.Dropout()
nn.quantized.PReLU(0.1, 0)
nn.quantized.Quantize(0.1, 0, torch.quint8) | x(2, 4)
nn.quantized.DeQuantize()
nn.quantized.QFunctional()
nn.quantized.FXFloatFunctional()
nn.quantized.Embedding(10, 12)
nn.quantized.EmbeddingBag(10, 12)
nn.quantized.dynamic.Linear(4, 3) | x(2, 4)
nn.quantized.dynamic.LSTM(4, 3) | x(5, 2, 4)
nn.quantized.dynamic.GRU(4, 3) | x(5, 2, 4)
nn.quantized.dynamic.LSTMCell(4, 3) | x(2, 4)
nn.quantized.dynamic.GRUCell(4, 3) | x(2, 4)
nn.quantized.dynamic.RNNCell(4, 3) | x(2, 4)
nn.quantized.dynamic.Conv2d(2, 3, 2)
nn.quantizable.LSTM(4, 3) | x(5, 2, 4)
nn.quantizable.LSTMCell(4, 3) | x(2, 4)
nn.quantizable.MultiheadAttention(4, 2) | (x(3, 2, 4), x(3, 2, 4), x(3, 2, 4))
nn.intrinsic.LinearReLU(nn.Linear(4, 4), nn.ReLU()) | x(2, 4)
nn.intrinsic.ConvReLU2d(nn.Conv2d(2, 2, 2), nn.ReLU()) | x(2, 2, 4, 4)
nn.intrinsic.ConvBn2d(nn.Conv2d(2, 2, 2), nn.BatchNorm2d(2)) | x(2, 2, 4, 4)
nn.intrinsic.ConvBnReLU2d(nn.Conv2d(2, 2, 2), nn.BatchNorm2d(2), nn.ReLU()) | x(2, 2, 4, 4)
nn.intrinsic.BNReLU2d(nn.BatchNorm2d(2), nn.ReLU()) | x(2, 2, 4, 4)
torch.ao.nn.intrinsic.LinearBn1d(nn.Linear(4, 4), nn.BatchNorm1d(4)) | x(2, 4)
torch.ao.nn.intrinsic.LinearLeakyReLU(nn.Linear(4, 4), nn.LeakyReLU()) | x(2, 4)
torch.ao.nn.intrinsic.LinearTanh(nn.Linear(4, 4), nn.Tanh()) | x(2, 4)
torch.ao.nn.intrinsic.ConvAdd2d(nn.Conv2d(2, 2, 2), torch.add)
torch.ao.nn.intrinsic.ConvAddReLU2d(nn.Conv2d(2, 2, 2), torch.add, nn.ReLU())
nn.backends.thnn._get_thnn_function_backend()
"""

OPTIMIZERS = """
torch.optim.Adadelta(p(2, 3))
torch.optim.Adagrad(p(2, 3))
torch.optim.Adam(p(2, 3))
torch.optim.Adam(p(2, 3), amsgrad=True, weight_decay=0.1)
torch.optim.Adam(p(2, 3), lr=torch.tensor(0.1), foreach=False)
torch.optim.Adam(p(2, 3), betas=(torch.tensor(0.9), torch.tensor(0.99)), lr=torch.tensor(0.1))
torch.optim.Adam([{"params": p(2, 3), "lr": 1e-5}, {"params": p(4), "name": "head", "betas": (0.5, 0.9)}])
torch.optim.Adam([{"params": p(2, 3), "note": None, "decoupled": True}])
torch.optim.Adam(nn.Linear(2, 2).named_parameters())
torch.optim.Adam([{"params": list(nn.Linear(2, 2).named_parameters())}])
torch.optim.Adam(nn.Linear(2, 2).parameters(), weight_decay=0.1)
torch.optim.Adam(nn.Linear(2, 2).double().parameters())
torch.optim.Adamax(p(2, 3))
torch.optim.AdamW(p(2, 3))
torch.optim.AdamW(nn.Linear(2, 2).named_parameters(), amsgrad=True)
torch.optim.ASGD(p(2, 3))
torch.optim.LBFGS(p(2, 3))
torch.optim.LBFGS(p(2, 3), line_search_fn="strong_wolfe", max_eval=5)
torch.optim.NAdam(p(2, 3))
torch.optim.RAdam(p(2, 3))
torch.optim.RMSprop(p(2, 3))
torch.optim.RMSprop(p(2, 3), momentum=0.9, centered=True)
torch.optim.Rprop(p(2, 3))
torch.optim.SGD(p(2, 3), lr=0.1)
torch.optim.SGD(p(2, 3), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
torch.optim.SGD(p(2, 3), 0.1, 0.9, 0.1)
torch.optim.SparseAdam(p(2, 3))
torch.optim.Adafactor(p(2, 3))
torch.optim.Muon([nn.Parameter(x(3, 3))])
torch.optim.Optimizer(p(2, 3), {})
torch.optim.Optimizer(p(2, 3), {"lr": 0.1})
"""

SCHEDULERS = """
S.LambdaLR(optimizer, double)
S.LambdaLR(optimizer, [double])
S.MultiplicativeLR(optimizer, double)
S.StepLR(optimizer, 2)
S.MultiStepLR(optimizer, [2, 4])
S.MultiStepLR(optimizer, (2, 4, 4), gamma=0.5)
S.ConstantLR(optimizer)
S.LinearLR(optimizer)
S.ExponentialLR(optimizer, 0.9)
S.PolynomialLR(optimizer)
S.CosineAnnealingLR(optimizer, 10)
S.CosineAnnealingLR(optimizer, 10, eta_min=0.01)
S.CosineAnnealingWarmRestarts(optimizer, 10)
S.ReduceLROnPlateau(optimizer)
S.ReduceLROnPlateau(optimizer, "max", 0.5, 2, min_lr=[0.01])
S.CyclicLR(optimizer, 0.1, 0.2)
S.CyclicLR(optimizer, 0.1, 0.2, mode="exp_range", gamma=0.9)
S.CyclicLR(optimizer, [0.1], [0.2], scale_fn=double)
S.OneCycleLR(optimizer, 0.1, total_steps=10)
S.OneCycleLR(optimizer, [0.1], epochs=2, steps_per_epoch=5, anneal_strategy="linear", three_phase=True)
S.SequentialLR(optimizer, [S.ConstantLR(optimizer), S.ExponentialLR(optimizer, 0.9)], milestones=[2])
S.ChainedScheduler([S.ConstantLR(optimizer), S.ExponentialLR(optimizer, 0.9)])
S.ChainedScheduler([S.ConstantLR(optimizer)], optimizer=optimizer)
torch.optim.swa_utils.SWALR(optimizer, 0.1)
torch.optim.swa_utils.SWALR(optimizer, [0.1], anneal_strategy="linear")
S._LRScheduler(optimizer)
S.LRScheduler(optimizer)
"""

VALUES = """
data.Dataset()
data.IterableDataset()
data.TensorDataset(x(4, 2))
data.TensorDataset(x(4, 2), n(3, 4))
data.StackDataset(x(4, 2), x(4, 2))
data.StackDataset(a=x(4, 2), b=x(4, 2))
data.StackDataset(data.TensorDataset(x(4, 2)), data.TensorDataset(x(4, 2)))
data.ConcatDataset([data.TensorDataset(x(4, 2)), data.TensorDataset(x(4, 2))])
data.ChainDataset([data.IterableDataset()])
data.ChainDataset((data.IterableDataset(),))
data.Subset(data.TensorDataset(x(4, 2)), [0, 1])
data.Subset(data.TensorDataset(x(4, 2)), range(2))
data.Subset(data.TensorDataset(x(4, 2)), torch.tensor([0, 1]))
data.random_split(data.TensorDataset(x(4, 2)), [2, 2])
data.random_split(data.TensorDataset(x(4, 2)), [0.5, 0.5])
data.Sampler(None)
data.Sampler()
data.SequentialSampler([1, 2, 3])
data.SequentialSampler(data.TensorDataset(x(4, 2)))
data.RandomSampler(data.TensorDataset(x(4, 2)))
data.RandomSampler([1, 2, 3], replacement=True, num_samples=2)
data.SubsetRandomSampler([0, 1])
data.SubsetRandomSampler(torch.tensor([0, 1]))
data.WeightedRandomSampler([0.1, 0.9], 2)
data.WeightedRandomSampler(torch.ones(3), 2, replacement=False)
data.BatchSampler(data.SequentialSampler([1, 2, 3]), 2, False)
data.BatchSampler([[1, 2], [3]], 2, True)
data.distributed.DistributedSampler([1, 2, 3], num_replicas=2, rank=0)
data.DataLoader(data.TensorDataset(x(4, 2)))
data.DataLoader(data.TensorDataset(x(4, 2)), batch_size=2, shuffle=True, drop_last=True)
data.DataLoader(data.TensorDataset(x(4, 2)), sampler=[0, 1])
data.DataLoader(data.TensorDataset(x(4, 2)), batch_size=None)
data.DataLoader(data.TensorDataset(x(4, 2)), generator=torch.Generator())
data.DataLoader(data.TensorDataset(x(4, 2)), num_workers=2)
data.DataLoader([1, 2, 3], batch_sampler=[[0], [1, 2]])
torch.cuda.amp.GradScaler(enabled=False)
torch.cuda.amp.GradScaler()
torch.amp.GradScaler("cpu")
torch.amp.GradScaler("cpu", init_scale=128, growth_interval=10)
torch.Generator()
torch.device("cpu")
torch.device("cuda", 1)
torch.Size([1, 2])
torch.float32
torch.strided
torch.channels_last
torch.per_tensor_affine
torch.finfo(torch.float32)
torch.torch_version.TorchVersion("2.0")
torch.__version__
torch.no_grad()
torch.enable_grad()
torch.autograd.profiler.record_function("x")
nn.Parameter(x(2))
nn.Parameter(x(2), requires_grad=False)
nn.Buffer(x(2))
nn.UninitializedParameter()
nn.UninitializedBuffer()
nn.utils.rnn.pack_padded_sequence(x(3, 2, 4), torch.tensor([3, 2]))
nn.utils.rnn.pack_padded_sequence(x(3, 2, 4), torch.tensor([2, 3]), enforce_sorted=False)
torch.nn.utils.prune.CustomFromMask(torch.ones(2))
torch.nn.utils.prune.Identity()
torch.nn.utils.prune.L1Unstructured(0.5)
torch.nn.utils.prune.L1Unstructured(2)
torch.nn.utils.prune.LnStructured(0.5, 2)
torch.nn.utils.prune.LnStructured(1, float("inf"), 0)
torch.nn.utils.prune.LnStructured(1, "fro", 0)
torch.nn.utils.prune.RandomStructured(0.5)
torch.nn.utils.prune.RandomUnstructured(0.5)
torch.nn.utils.prune.PruningContainer()
D.Bernoulli(0.5)
D.Bernoulli(logits=x(3))
D.Bernoulli(probs=torch.rand(3))
D.Beta(torch.tensor([0.5]), torch.tensor([0.5]))
D.Beta(0.5, 1)
D.Binomial(10, torch.rand(3))
D.Binomial(torch.tensor([1.0, 2.0, 3.0]), logits=x(3))
D.Categorical(torch.ones(3))
D.Categorical(logits=x(2, 3))
D.Cauchy(0.0, 1.0)
D.Cauchy(x(2), torch.ones(2))
D.Chi2(torch.tensor([1.0]))
D.Chi2(2)
D.ContinuousBernoulli(torch.rand(3))
D.ContinuousBernoulli(logits=x(3))
D.Dirichlet(torch.ones(3))
D.Exponential(torch.ones(3))
D.Exponential(1.0)
D.FisherSnedecor(torch.tensor([1.0]), torch.tensor([2.0]))
D.FisherSnedecor(3.0, 5.0)
D.Gamma(torch.ones(2), torch.ones(2))
D.Gamma(1, 2.0)
D.GeneralizedPareto(torch.zeros(2), torch.ones(2), torch.ones(2))
D.Geometric(torch.rand(3))
D.Geometric(logits=x(3))
D.Geometric(0.5)
D.Gumbel(torch.zeros(2), torch.ones(2))
D.Gumbel(0.0, 1.0)
D.HalfCauchy(torch.ones(2))
D.HalfCauchy(1.0)
D.HalfNormal(torch.ones(2))
D.HalfNormal(1.0)
D.Independent(D.Normal(torch.zeros(2), torch.ones(2)), 1)
D.InverseGamma(torch.ones(2), torch.ones(2))
D.Kumaraswamy(torch.ones(2), torch.ones(2))
D.LKJCholesky(3, 0.5)
D.LKJCholesky(3, torch.tensor([0.5, 1.0]))
D.Laplace(torch.zeros(2), torch.ones(2))
D.Laplace(0.0, 1.0)
D.LogNormal(torch.zeros(2), torch.ones(2))
D.LogNormal(0.0, 1.0)
D.LogisticNormal(torch.zeros(2), torch.ones(2))
D.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2))
D.MixtureSameFamily(D.Categorical(torch.ones(3)), D.Normal(x(3), torch.ones(3)))
D.Multinomial(10, torch.ones(3))
D.Multinomial(10, logits=x(3))
D.MultivariateNormal(torch.zeros(2), torch.eye(2))
D.MultivariateNormal(torch.zeros(2), precision_matrix=torch.eye(2))
D.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2))
D.NegativeBinomial(10, torch.rand(3))
D.NegativeBinomial(torch.ones(3), logits=x(3))
D.Normal(0.0, 1.0)
D.Normal(torch.zeros(2), torch.ones(2))
D.Normal(torch.zeros(2), torch.ones(2)).expand([3, 2])
D.OneHotCategorical(torch.ones(3))
D.OneHotCategorical(logits=x(3))
D.OneHotCategoricalStraightThrough(torch.ones(3))
D.Pareto(torch.ones(2), torch.ones(2))
D.Poisson(torch.ones(2))
D.Poisson(1.0)
D.RelaxedBernoulli(torch.tensor([2.0]), torch.rand(3))
D.RelaxedBernoulli(torch.tensor([2.0]), logits=x(3))
D.RelaxedOneHotCategorical(torch.tensor([2.0]), torch.ones(3))
D.RelaxedOneHotCategorical(torch.tensor([2.0]), logits=x(3))
D.StudentT(torch.tensor([2.0]))
D.StudentT(2.0, 0.0, 1.0)
D.TransformedDistribution(D.Normal(torch.zeros(2), torch.ones(2)), [D.ExpTransform()])
D.TransformedDistribution(D.Normal(torch.zeros(2), torch.ones(2)), D.AffineTransform(1, 2))
D.TransformedDistribution(D.Uniform(torch.zeros(2), torch.ones(2)), [D.SigmoidTransform().inv, D.AffineTransform(1.0, 2.0, cache_size=1)])
D.Uniform(torch.zeros(2), torch.ones(2))
D.Uniform(0.0, 1.0)
D.Uniform(0, 1)
D.VonMises(torch.tensor([1.0]), torch.tensor([1.0]))
D.Weibull(torch.ones(2), torch.ones(2))
D.Weibull(1.0, 2.0)
D.Wishart(torch.tensor([3.0]), torch.eye(2))
D.Wishart(torch.tensor([3.0]), scale_tril=torch.eye(2))
D.Wishart(torch.tensor([3.0]), precision_matrix=torch.eye(2))
D.relaxed_categorical.ExpRelaxedCategorical(torch.tensor([2.0]), torch.ones(3))
D.relaxed_bernoulli.LogitRelaxedBernoulli(torch.tensor([2.0]), torch.rand(3))
D.AbsTransform()
D.AffineTransform(1, 2)
D.AffineTransform(x(2), torch.ones(2), event_dim=1)
D.CatTransform([D.ExpTransform()])
D.CatTransform([D.ExpTransform(), D.AffineTransform(1, 2)], dim=0, lengths=[1, 1])
D.ComposeTransform([D.ExpTransform(), D.AffineTransform(1, 2)])
D.ComposeTransform([])
D.CorrCholeskyTransform()
D.CumulativeDistributionTransform(D.Normal(0.0, 1.0))
D.ExpTransform()
D.ExpTransform().inv
D.IndependentTransform(D.ExpTransform(), 1)
D.LowerCholeskyTransform()
D.PositiveDefiniteTransform()
D.PowerTransform(2.0)
D.PowerTransform(torch.tensor(2.0))
D.ReshapeTransform((2, 2), (4,))
D.SigmoidTransform()
D.SoftmaxTransform()
D.SoftplusTransform()
D.StackTransform([D.ExpTransform()])
D.StickBreakingTransform()
D.TanhTransform()
D.Transform()
D.constraints.boolean
D.constraints.cat([D.constraints.real])
D.constraints.corr_cholesky
D.constraints.dependent
D.constraints.dependent_property(event_dim=1)
D.constraints.greater_than(0)
D.constraints.greater_than(torch.zeros(2))
D.constraints.greater_than_eq(0.0)
D.constraints.half_open_interval(0.0, 1.0)
D.constraints.independent(D.constraints.real, 1)
D.constraints.integer_interval(0, 2)
D.constraints.interval(0.0, 1.0)
D.constraints.interval(torch.zeros(2), torch.ones(2))
D.constraints.less_than(0)
D.constraints.lower_cholesky
D.constraints.lower_triangular
D.constraints.multinomial(3)
D.constraints.MixtureSameFamilyConstraint(D.constraints.real)
D.constraints.nonnegative
D.constraints.nonnegative_integer
D.constraints.one_hot
D.constraints.positive
D.constraints.positive_definite
D.constraints.positive_integer
D.constraints.positive_semidefinite
D.constraints.real
D.constraints.real_vector
D.constraints.simplex
D.constraints.sphere
D.constraints.square
D.constraints.stack([D.constraints.real])
D.constraints.symmetric
D.constraints.unit_interval
D.constraints.all_of(D.constraints.real) if hasattr(D.constraints, "all_of") else None
D.biject_to(D.constraints.simplex)
D.transform_to(D.constraints.interval(0.0, 1.0))
D.transform_to(D.constraints.positive)
datetime.timedelta(1)
"""

PROGRAMS = """
# weight_norm
made = [nn.utils.weight_norm(nn.Linear(4, 3)), nn.utils.weight_norm(nn.Conv2d(2, 2, 2), "weight", None)]
made += [nn.utils.weight_norm(nn.LSTM(4, 3), "weight_hh_l0"), nn.utils.weight_norm(nn.Linear(4, 3), dim=1)]
train(made[0], x(2, 4))
removed = nn.utils.weight_norm(nn.Linear(4, 3))
nn.utils.remove_weight_norm(removed)
made += [removed]
# spectral_norm
made = [nn.utils.spectral_norm(nn.Linear(4, 3)), nn.utils.spectral_norm(nn.Conv2d(2, 2, 2), n_power_iterations=2)]
made += [nn.utils.spectral_norm(nn.ConvTranspose2d(2, 2, 2)), nn.utils.spectral_norm(nn.Linear(4, 3), eps=1, dim=1)]
train(made[0], x(2, 4))
removed = nn.utils.spectral_norm(nn.Linear(4, 3))
nn.utils.remove_spectral_norm(removed)
made += [removed]
# spectral_norm evaluated
made = nn.utils.spectral_norm(nn.Linear(4, 3))
made.eval()
made(x(2, 4))
# prune
from torch.nn.utils import prune
made = []
for method in ("identity", "random_unstructured", "l1_unstructured"):
    layer = nn.Linear(4, 3)
    arguments = () if method == "identity" else (0.5,)
    getattr(prune, method)(layer, "weight", *arguments)
    made.append(layer)
layer = nn.Linear(4, 3)
prune.ln_structured(layer, "weight", amount=2, n=2, dim=0)
prune.random_structured(layer, "weight", amount=1, dim=1)
prune.l1_unstructured(layer, "bias", amount=1)
prune.custom_from_mask(layer, "bias", torch.ones(3))
train(layer, x(2, 4))
made.append(layer)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
prune.global_unstructured([(model[0], "weight"), (model[1], "weight")], prune.L1Unstructured, amount=2)
made.append(model)
removed = nn.Linear(4, 3)
prune.l1_unstructured(removed, "weight", 0.5)
prune.remove(removed, "weight")
made.append(removed)
# parametrizations
from torch.nn.utils import parametrize, parametrizations
made = []
for method, arguments in (("orthogonal", {}), ("spectral_norm", {}), ("weight_norm", {}), ("orthogonal", {"orthogonal_map": "cayley"}), ("orthogonal", {"orthogonal_map": "householder"})):
    try:
        layer = getattr(parametrizations, method)(nn.Linear(4, 4), **arguments)
        train(layer, x(2, 4))
        made += [layer.parametrizations, layer.parametrizations.weight, layer.parametrizations.weight[0]]
    except AttributeError:
        pass
# parametrizations removed
from torch.nn.utils import parametrize, parametrizations
made = parametrizations.spectral_norm(nn.Linear(4, 4))
parametrize.remove_parametrizations(made, "weight")
# parametrized whole
made = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
# static quantization
class Net(nn.Sequential):
    pass
made = []
for backend in ("fbgemm", "qnnpack"):
    try:
        torch.backends.quantized.engine = backend
        model = nn.Sequential(Q.QuantStub(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Hardswish(), nn.LeakyReLU(), nn.ELU(), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False), Q.DeQuantStub()).eval()
        model = Q.fuse_modules(model, [["1", "2", "3"]])
        made.append(model)
        model.qconfig = Q.get_default_qconfig(backend)
        prepared = Q.prepare(model)
        prepared(x(2, 3, 5, 5))
        made += [prepared, Q.convert(prepared)]
    except Exception:
        pass
# static quantization of more layers
made = []
if hasattr(torch.backends, 'quantized'):
    torch.backends.quantized.engine = 'fbgemm'
for layer, given in ((nn.Conv1d(2, 3, 2), x(2, 2, 9)), (nn.Conv3d(2, 3, 2), x(2, 2, 9, 9, 9)), (nn.ConvTranspose2d(2, 3, 2), x(2, 2, 9, 9)), (nn.ConvTranspose1d(2, 3, 2), x(2, 2, 9)), (nn.BatchNorm2d(2), x(2, 2, 4, 4)), (nn.BatchNorm3d(2), x(2, 2, 4, 4, 4)), (nn.InstanceNorm2d(2), x(2, 2, 4, 4)), (nn.GroupNorm(2, 4), x(2, 4, 3)), (nn.ReLU6(), x(2, 4)), (nn.PReLU(), x(2, 4)), (nn.Softmax(1), x(2, 4)), (nn.Dropout(), x(2, 4)), (nn.quantized.FloatFunctional(), None), (nn.LSTM(4, 3), x(5, 2, 4)), (nn.MultiheadAttention(4, 2), None), (nn.EmbeddingBag(10, 12, mode="sum"), n(10, 2, 4)), (nn.Embedding(10, 12), n(10, 2, 4))):
    try:
        model = nn.Sequential(Q.QuantStub(), layer).eval()
        model.qconfig = Q.get_default_qconfig("fbgemm")
        if "Embedding" in type(layer).__name__:
            model = nn.Sequential(layer).eval()
            model.qconfig = Q.float_qparams_weight_only_qconfig
        prepared = Q.prepare(model)
        made.append(prepared)
        if given is not None:
            prepared(given)
        made.append(Q.convert(prepared))
    except Exception:
        pass
# quantization aware training
made = []
model = nn.Sequential(Q.QuantStub(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 2), Q.DeQuantStub()).train()
fuse = getattr(Q, "fuse_modules_qat", Q.fuse_modules)
model = fuse(model, [["1", "2", "3"], ["4", "5"], ["6", "7"], ["9", "10"]])
model.qconfig = Q.get_default_qat_qconfig("fbgemm")
prepared = Q.prepare_qat(model)
made.append(prepared)
train(prepared, x(2, 3, 5, 5))
made.append(Q.convert(prepared.eval()))
# fused layers
made = []
for parts in ([nn.Conv1d(2, 2, 2), nn.BatchNorm1d(2)], [nn.Conv1d(2, 2, 2), nn.BatchNorm1d(2), nn.ReLU()], [nn.Conv1d(2, 2, 2), nn.ReLU()], [nn.Conv3d(2, 2, 2), nn.BatchNorm3d(2)], [nn.Conv3d(2, 2, 2), nn.BatchNorm3d(2), nn.ReLU()], [nn.Conv3d(2, 2, 2), nn.ReLU()], [nn.Conv2d(2, 2, 2), nn.BatchNorm2d(2)], [nn.BatchNorm2d(2), nn.ReLU()], [nn.BatchNorm3d(2), nn.ReLU()], [nn.Linear(2, 2), nn.ReLU()], [nn.Linear(2, 2), nn.BatchNorm1d(2)], [nn.ConvTranspose2d(2, 2, 2), nn.BatchNorm2d(2)]):
    for is_training in (False, True):
        try:
            import copy
            fuse = getattr(Q, "fuse_modules_qat", Q.fuse_modules) if is_training else Q.fuse_modules
            model = fuse(nn.Sequential(*copy.deepcopy(parts)).train(is_training), [[str(index) for index in range(len(parts))]])
            made.append(model)
            model = copy.deepcopy(model)
            model.qconfig = Q.get_default_qat_qconfig("fbgemm") if is_training else Q.get_default_qconfig("fbgemm")
            prepared = Q.prepare_qat(model) if is_training else Q.prepare(model)
            made.append(prepared)
            made.append(Q.convert(copy.deepcopy(prepared).eval()))
        except Exception:
            pass
# dynamic quantization
made = []
for dtype in (torch.qint8, torch.float16):
    for layer in (nn.Linear(8, 4), nn.Linear(8, 4, bias=False), nn.LSTM(4, 3), nn.LSTM(4, 3, 2, bidirectional=True), nn.GRU(4, 3), nn.LSTMCell(4, 3), nn.GRUCell(4, 3), nn.RNNCell(4, 3), nn.RNN(4, 3)):
        try:
            made.append(Q.quantize_dynamic(nn.Sequential(layer), dtype=dtype))
        except Exception:
            pass
# dynamic quantization of embeddings
model = nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum"))
model.qconfig = Q.float_qparams_weight_only_qconfig
made = Q.convert(Q.prepare(model))
# reference modules
from torch.ao.nn.quantized import reference
made = []
for layer in (nn.Linear(4, 3), nn.Conv1d(2, 3, 2), nn.Conv2d(2, 3, 2), nn.Conv3d(2, 3, 2), nn.ConvTranspose2d(2, 3, 2), nn.Embedding(10, 12), nn.EmbeddingBag(10, 12)):
    made.append(getattr(reference, type(layer).__name__).from_float(layer, {"qscheme": torch.per_tensor_affine, "dtype": torch.quint8, "scale": 1.0, "zero_point": 0}))
# qconfigs
made = []
for name in dir(Q):
    if "qconfig" in name and not callable(getattr(Q, name)) or name.startswith("default_") and "qconfig" in name:
        made.append(getattr(Q, name))
for name in ("get_default_qconfig", "get_default_qat_qconfig"):
    for backend in ("fbgemm", "qnnpack", "x86", "onednn"):
        try:
            made.append(getattr(Q, name)(backend))
        except Exception:
            pass
# prepared before calibration
model = nn.Sequential(Q.QuantStub(), nn.Linear(4, 4), Q.DeQuantStub()).eval()
model.qconfig = Q.default_qconfig
made = Q.prepare(model)
# sparsity
from torch.ao.pruning import WeightNormSparsifier
model = nn.Sequential(nn.Linear(4, 4))
sparsifier = WeightNormSparsifier()
sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}])
sparsifier.step()
made = [sparsifier.state_dict(), model[0].parametrizations]
sparsifier.squash_mask()
made.append(model)
# scaled
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
layer = nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler.scale(layer(x(2, 2)).sum()).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
made = [scaler, scaler.state_dict()]
# scaled on a GPU, as far as no GPU is needed
torch.cuda.is_available = lambda: True
try:
    made = [torch.cuda.amp.GradScaler(), torch.cuda.amp.GradScaler(128.0, 2.0, 0.5, 10)]
    made += [made[1].state_dict()]
    made[1].load_state_dict(made[1].state_dict())
finally:
    torch.cuda.is_available = lambda: False
# parallel on GPUs, as the constructor leaves it
model = nn.DataParallel(nn.Linear(2, 2))
model.dim = 0
model.device_ids = [0, 1]
model.output_device = 0
model.src_device_obj = torch.device("cuda", 0)
made = model
# scheduled with its optimizer
optimizer = torch.optim.Adam(p(2, 3), lr=0.1)
first = S.LinearLR(optimizer)
second = S.CosineAnnealingLR(optimizer, 10)
scheduler = S.SequentialLR(optimizer, [first, second], [2])
for _ in range(4):
    optimizer.step()
    scheduler.step()
made = [{"optimizer": optimizer, "scheduler": scheduler}, scheduler, scheduler.state_dict()]
# hooked optimizers
made = []
for name in ("register_step_pre_hook", "register_step_post_hook", "register_state_dict_pre_hook", "register_state_dict_post_hook", "register_load_state_dict_pre_hook", "register_load_state_dict_post_hook"):
    optimizer = torch.optim.SGD(p(2), lr=0.1)
    getattr(optimizer, name)(torch.is_tensor)
    made.append(optimizer)
# averaged
from torch.optim.swa_utils import AveragedModel
layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
model = AveragedModel(layer)
model.update_parameters(layer)
model.update_parameters(layer)
torch.optim.swa_utils.update_bn([x(3, 4)], model)
made = [model]
try:
    made.append(AveragedModel(layer, avg_fn=torch.add))
    made.append(AveragedModel(layer, avg_fn=torch.add, use_buffers=True))
except TypeError:
    pass
# averaged with functions
from torch.optim import swa_utils
made = [swa_utils.AveragedModel(nn.Linear(2, 2), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))]
# flattened
made = nn.LSTM(4, 3, 2, bidirectional=True)
made.flatten_parameters()
# shared layers
layer = nn.Linear(4, 4)
made = nn.Sequential(layer, nn.ReLU(), layer)
made[0].weight = made[2].weight
# tied
model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
model[1].weight = model[0].weight
made = model
# attributes of people
model = nn.Sequential(nn.Linear(4, 4))
model.names = ["a", "b"]
model.stride = torch.tensor([8.0])
model.args = {"lr": 0.1}
made = model
# tensors with attributes
tensor = x(2)
tensor.note = "x"
parameter = nn.Parameter(x(2))
parameter.is_frozen = True
made = [tensor, parameter]
# tensors with gradients
layer = nn.Linear(2, 2)
layer(x(2, 2)).sum().backward()
made = [layer, layer.weight, layer.weight.grad]
# sparse optimizer states
layer = nn.Embedding(4, 2, sparse=True)
optimizer = torch.optim.SparseAdam(list(layer.parameters()))
layer(n(4, 3)).sum().backward()
optimizer.step()
made = [layer, optimizer]
# fake tensors
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    made = nn.Linear(2, 2)
# distributed
import torch.distributed as dist
import os
dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"), rank=0, world_size=1)
from torch.nn.parallel import DistributedDataParallel
layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
model = DistributedDataParallel(layer)
made = [model]
model(x(2, 2)).sum().backward()
made += [model]
for options in ({"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {"broadcast_buffers": False}):
    try:
        made.append(DistributedDataParallel(nn.Linear(2, 2), **options))
    except Exception:
        pass
made += [nn.SyncBatchNorm(2), nn.SyncBatchNorm(2, process_group=dist.group.WORLD)]
made += [torch.utils.data.distributed.DistributedSampler([1, 2, 3])]
made += [torch.utils.data.distributed.DistributedSampler(torch.utils.data.TensorDataset(x(2)))]
# meshes and dtensors
from torch.distributed.tensor import DTensor, DeviceMesh, Partial, Replicate, Shard, distribute_tensor
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
grid = torch.distributed.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
sharded = distribute_tensor(x(4, 4), mesh, [Shard(0)])
made = [mesh, grid, grid["dp"], sharded, distribute_tensor(x(4, 4), grid, [Replicate(), Shard(1)]), nn.Parameter(sharded), sharded._spec]
layer = nn.Linear(4, 4)
layer.weight = nn.Parameter(distribute_tensor(x(4, 4), mesh, [Replicate()]))
made += [layer, Partial(), Replicate(), Shard(0)]
optimizer = torch.optim.Adam(layer.parameters(), foreach=False)
layer.weight.grad = distribute_tensor(x(4, 4), mesh, [Replicate()])
optimizer.step()
made += [optimizer, optimizer.state_dict()]
# older dtensors
from torch.distributed._tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor
mesh = DeviceMesh("cpu", [0])
made = [mesh, distribute_tensor(x(4, 4), mesh, [Shard(0)])]
# fully sharded
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
made = [model.state_dict(), model]
# sharded tensors
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
made = [sharded_tensor.rand(spec, 4, 4), spec, ShardMetadata([0], [1], "rank:0/cpu"), EnumerableShardingSpec([ShardMetadata([0, 0], [4, 4], "rank:0/cpu")])]
tensor = sharded_tensor.rand(spec, 4, 4)
made += [tensor.metadata(), tensor.local_shards(), {"model": tensor}]
# sharded tensors of torch 1.10
from torch.distributed import _sharded_tensor
from torch.distributed._sharding_spec import ChunkShardingSpec
spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
made = [_sharded_tensor.rand(spec, 4, 4), spec]
# checkpoints in folders
import torch.distributed.checkpoint as dcp
import os
import pickle
layer = nn.Linear(2, 2)
optimizer = torch.optim.Adam(layer.parameters())
train(layer, x(2, 2))
optimizer.step()
save = getattr(dcp, "save", None) or dcp.save_state_dict
state = {"model": layer.state_dict(), "epoch": 3, "optimizer": optimizer.state_dict()}
save(state, storage_writer=dcp.FileSystemWriter(folder))
with open(os.path.join(folder, ".metadata"), "rb") as stream:
    made = pickle.load(stream)
# plans of checkpoints
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
made = create_default_local_save_plan({"a": x(2), "b": 1}, True)
# random states
import random
import numpy
made = [random.getstate(), random.Random(1), numpy.random.get_state(), numpy.random.RandomState(1), torch.get_rng_state()]
for name in ("PCG64", "MT19937", "Philox", "SFC64", "PCG64DXSM"):
    try:
        made.append(numpy.random.Generator(getattr(numpy.random, name)(1)))
        made.append(getattr(numpy.random, name)(1))
    except AttributeError:
        pass
try:
    made.append(numpy.random.SeedSequence(1))
    made.append(numpy.random.SeedSequence(1).spawn(1))
except AttributeError:
    pass
# arrays
import numpy
made = [numpy.zeros((2, 3)), numpy.zeros((2, 3), order="F"), numpy.float64(1), numpy.int64(1), numpy.array(["a", "bc"]), numpy.array([b"a"]), numpy.array([None, 1], dtype=object), numpy.bool_(True), numpy.dtype("f4"), numpy.dtype([("a", "i4"), ("b", "f8", (2,))]), numpy.zeros(2, dtype=[("a", "i4"), ("b", "f8")]), numpy.array(["2020-01-01"], dtype="M8[D]"), numpy.array([1], dtype="m8[s]"), numpy.zeros((2, 2)).view(numpy.matrix), numpy.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), numpy.ma.array([1, 2], mask=[0, 1]), numpy.ma.masked, numpy.dtype("M8[ns]"), numpy.str_("x"), numpy.bytes_(b"x"), numpy.zeros(2, dtype=">i4"), numpy.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4], "itemsize": 16}), numpy.dtype([("a", "i4")], align=True), numpy.dtype(("i4", (2,))), numpy.dtype("i4", metadata={"a": 1}), numpy.complex64(1), numpy.datetime64("2020"), numpy.void(b"abc"), numpy.zeros(2, dtype=[("a", "i4")])[0], numpy.zeros(2, dtype=[("a", "i4")]).view(numpy.recarray)[0], numpy.ma.zeros(2, dtype=[("a", "i4")]), numpy.ma.array([1, 2], mask=[0, 1], fill_value=3, hard_mask=True), numpy.memmap(folder + "/x", mode="w+", shape=(2,)), numpy.poly1d([1, 2]), slice(1, 2), numpy.float32, numpy.random.default_rng]
# tensors of every layout
made = []
for text in ("x(2, 3).to_sparse()", "x(2, 3).to_sparse_csr()", "x(2, 3).to_sparse_csc()", "x(4, 4).to_sparse_bsr((2, 2))", "x(2, 3).to_mkldnn()", "torch.quantize_per_tensor(x(2), 0.1, 0, torch.qint8)", "torch.quantize_per_channel(x(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8)", "x(2).to(device='meta')", "torch.nested.nested_tensor([x(2), x(3)])", "torch.nested.nested_tensor([x(2), x(3)], layout=torch.jagged)", "x(2).to(torch.bfloat16)", "torch.view_as_complex(x(2, 2)).conj()", "x(2, 3, 4, 4).to(memory_format=torch.channels_last)", "torch.tensor(1).bool()", "x(2).storage()", "x(2).untyped_storage()", "torch.masked.masked_tensor(x(2), torch.ones(2).bool())", "torch.empty(2, names=('a',))"):
    try:
        made.append(eval(text))
    except Exception:
        pass
"""
