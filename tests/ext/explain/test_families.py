"""Messages of loaders and the families that they belong to, in the words of every
version; and logs that hold no error.
"""

from __future__ import annotations

import random
import re

import pytest

from ckpt.ext.explain import explain, pages, search
from ckpt.ext.explain.conditions import CONDITIONS
from ckpt.ext.explain.families import FAMILIES, find_message
from ckpt.model.errors import UsageError

MESSAGES = [
    # torch.load and torch.save
    ("device", (
        "RuntimeError: Attempting to deserialize object on a MPS device but "
        "torch.backends.mps.is_available() is False."
    )),
    ("damaged", (
        "RuntimeError: PytorchStreamReader failed reading file data/0: invalid header "
        "or archive is corrupted"
    )),
    ("damaged", (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding "
        "central directory"
    )),
    ("damaged", "RuntimeError: storage has wrong size: expected 4 got 0"),
    ("damaged", "RuntimeError: storage has wrong byte size: expected 16 got 4"),
    ("damaged", "zipfile.BadZipFile: File is not a zip file"),
    ("damaged", "_pickle.UnpicklingError: invalid load key, '\\x1f'."),
    ("damaged", "RuntimeError: Invalid magic number; corrupt file?"),
    ("program", (
        "RuntimeError: PytorchStreamReader failed locating file constants.pkl: file "
        "not found ()"
    )),
    ("program", (
        "terminate called after throwing an instance of 'c10::Error' what(): "
        "PytorchStreamReader failed locating file constants.pkl: file not found"
    )),
    ("older-torch", (
        "RuntimeError: version_ <= kMaxSupportedFileFormatVersion INTERNAL ASSERT "
        "FAILED. Attempted to read a PyTorch file with version 10, but the maximum "
        "supported version for reading is 5."
    )),
    ("mmap", (
        "RuntimeError: mmap can only be used with files saved with "
        "`torch.save(_use_new_zipfile_serialization=True), please torch.save"
    )),
    ("newer-torch", (
        "AttributeError: Can't get attribute '_rebuild_tensor_v3' on <module "
        "'torch._utils' from '/x/torch/_utils.py'>"
    )),
    ("newer-torch", (
        "AttributeError: Can't get attribute '_rebuild_device_tensor_from_cpu_tensor' "
        "on <module 'torch._utils' from 'x'>"
    )),
    ("protocol", "ValueError: unsupported pickle protocol: 5"),
    ("numpy", "ModuleNotFoundError: No module named 'numpy._core.multiarray'"),
    ("numpy", (
        "TypeError: __randomstate_ctor() takes from 0 to 1 positional arguments but 2 "
        "were given"
    )),
    ("system", "NotImplementedError: cannot instantiate 'WindowsPath' on your system"),
    ("globals", (
        "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed "
        "the default value of the `weights_only` argument in `torch.load` from `False` "
        "to `True`."
    )),
    ("globals", (
        "FutureWarning: You are using `torch.load` with `weights_only=False` (the "
        "current default value), which uses the default pickle module implicitly."
    )),
    ("python2", (
        "UnicodeDecodeError: 'ascii' codec can't decode byte 0xcf in position 0: "
        "ordinal not in range(128)"
    )),
    ("code", (
        "ModuleNotFoundError: No module named "
        "'pytorch_lightning.callbacks.model_checkpoint'"
    )),
    ("persistent", (
        "_pickle.UnpicklingError: A load persistent id instruction was encountered,\n"
        "but no persistent_load function was specified."
    )),
    ("saving", (
        "RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 320 "
        "vs 214"
    )),
    ("parent", "RuntimeError: Parent directory checkpoints does not exist."),
    ("parent", (
        "RuntimeError: Parent directory ./output/coarse\\scene one does not exist."
    )),
    ("device-name", "RuntimeError: Invalid device string: 'cuda1'"),
    ("device-name", (
        "RuntimeError: Expected one of cpu, cuda, ipu, xpu device type at start of "
        "device string: gpu"
    )),
    ("shared", (
        "found no suitable name to keep for saving amongst: {'gru.weight_ih_l0'}. None "
        "is covering the entire storage.Refusing to save"
    )),
    ("meta", "NotImplementedError: Cannot copy out of meta tensor; no data!"),
    ("operator", (
        "Unknown builtin op: torchvision::_new_empty_tensor_op. Could not find any "
        "similar ops to"
    )),
    ("operator", "Unknown type name '__torch__.torch.classes.fbgemm.AtomicCounter':"),
    ("program", (
        "RuntimeError: Cannot use ``weights_only=True`` with TorchScript archives "
        "passed to ``torch.load``."
    )),
    ("damaged", "KeyError: \"filename 'storages' not found\""),
    ("saving", "OSError: [Errno 122] Disk quota exceeded"),
    ("file-name", (
        "OSError: [Errno 22] Invalid argument: './pretrained//best_04|18-23:10:14.pt'"
    )),
    ("file-name", "OSError: [Errno 22] Invalid argument: 'D:\\\\Data\\x08est.pt'"),
    ("path", (
        "open file failed because of errno 2 on fopen: No such file or directory, file "
        "path: models/model.pt"
    )),
    ("path", (
        "what():  open file failed, file path: ./lc_model.pt (FileAdapter at "
        "/pytorch/caffe2/serialize/file_adapter.cc:11)"
    )),
    ("pickling", "TypeError: cannot pickle '_thread.lock' object"),
    ("pickling", "AttributeError: Can't pickle local object 'get_model.<locals>.Net'"),
    ("pickling", (
        "_pickle.PicklingError: Can't pickle <class '__main__.Net'>: it's not the same "
        "object as __main__.Net"
    )),
    ("contiguous", (
        "ValueError: You are trying to save a non contiguous tensor: `encoder.weight` "
        "which is not allowed."
    )),
    ("cpu-memory", (
        "RuntimeError: unable to mmap 23802932552 bytes from file "
        "<./flux1-dev.safetensors>: Cannot allocate memory (12)"
    )),
    ("cpu-memory", (
        "safetensors_rust.SafetensorError: The paging file is too small for this "
        "operation to complete. (os error 1455)"
    )),
    ("cpu-memory", (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. "
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."
    )),
    ("cpu-memory", (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2.00 GiB"
    )),
    ("cpu-memory", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("mount", "RuntimeError: read(): fd 78 failed with Input/output error"),
    ("mount", "OSError: [Errno 11] Resource deadlock avoided"),
    ("gguf", (
        "llama_model_load: error loading model: check_tensor_dims: tensor "
        "'blk.0.ffn_gate.weight' has wrong shape; expected 768, 2048, got 768, 3072, "
        "1, 1"
    )),
    ("gguf", (
        "llama_model_load: error loading model: create_tensor: tensor "
        "'blk.0.attn_qkv.weight' not found"
    )),
    ("gguf", (
        "llama_model_load: error loading model: done_getting_tensors: wrong number of "
        "tensors; expected 2131, got 720"
    )),
    ("gguf", (
        "llama_model_load: error loading model: unknown model architecture: 'gemma4'"
    )),
    ("gguf", (
        "gpt2_model_load: tensor 'model/h0/attn/c_attn/w' has wrong shape in model "
        "file: got [1600, 4800], expected [4800, 1600]"
    )),
    ("quantized", (
        "RuntimeError: Loading a quantized checkpoint into non-quantized Linear8bitLt "
        "is not supported. Please call module.cuda()"
    )),
    ("quantized", (
        "ValueError: Blockwise 4bit quantization only supports 16/32-bit floats, but "
        "got torch.uint8"
    )),
    ("stateless", (
        "RuntimeError: The state of _OptimStateKey(unflat_param_names=('a.weight', "
        "'b.bias'), is_fsdp_managed=True) is empty. This should happen when"
    )),
    ("schedule", (
        "ValueError: Tried to step 60002 times. The specified number of total steps is "
        "60000"
    )),
    ("embedding", (
        "Notice: learned_embeds.bin was trained on a model with an incompatible token "
        "dimension: 768 vs 1."
    )),
    ("unscaled", "ValueError: Attempting to unscale FP16 gradients."),
    ("random", "RuntimeError: RNG state is wrong size"),
    ("pipeline", "RuntimeError: ERROR: clip input is invalid: None"),
    ("pipeline", (
        "If the VAE is from a checkpoint loader node your checkpoint does not contain "
        "a valid VAE."
    )),
    # modules and state dicts
    ("finished", (
        "FileNotFoundError: Resume checkpoint not found. Please pass a valid "
        "checkpoint to resume from, i.e. 'yolo train resume model=path/to/last.pt'"
    )),
    ("fairseq", "AttributeError: 'NoneType' object has no attribute 'task'"),
    ("fairseq", (
        "AssertionError: Could not infer task type from {'_name': "
        "'language_modeling'}. Available tasks: dict_keys([])"
    )),
    ("agent", (
        "UserWarning: Could not deserialize object lr_schedule. Consider using "
        "`custom_objects` argument to replace this object."
    )),
    ("loaded", (
        "AttributeError: 'collections.OrderedDict' object has no attribute 'seek'. You "
        "can only torch.load from a file that is seekable."
    )),
    ("settings", (
        "Checkpoint contains hyperparameters but IntrospectorModule's __init__ is "
        "missing the argument 'hparams'."
    )),
    ("unarchived", (
        "what():  [enforce fail at inline_container.cc:157] . archive does not contain "
        "any files"
    )),
    ("unarchived", (
        "RuntimeError: [enforce fail at inline_container.cc:222] . file not found: "
        "module/version"
    )),
    ("compiled", (
        "RuntimeError: Failed to find a generated cpp file or so file for model "
        "'model' in the zip archive."
    )),
    ("notice", (
        "UserWarning: Please also save or load the state of the optimzer when saving "
        "or loading the scheduler."
    )),
    ("notice", (
        "SourceChangeWarning: source code of class 'torch.nn.modules.conv.Conv2d' has "
        "changed. you can retrieve the original source"
    )),
    ("no-file", "ValueError: Can't find a valid checkpoint at /out/checkpoint-500"),
    ("distributed", (
        "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape "
        "mismatch for loaded ((1024, 48)) and expected ((512, 48)) tensor for key a.b"
    )),
    ("sizes", (
        "Skip loading parameter hm.2.weight, required shapetorch.Size([1, 64, 1, 1]), "
        "loaded shapetorch.Size([80, 64, 1, 1])."
    )),
    ("keys", (
        "UserWarning: The pretrained weights \"m.pth\" cannot be loaded, please check "
        "the key names manually (** ignored and continue **)"
    )),
    ("damaged", "tar: This does not look like a tar archive"),
    ("damaged", "gzip: checkpoint.pth.tar: not in gzip format"),
    ("zero", "AssertionError: No ZeRO files found in checkpoints/global_step1/"),
    ("world", (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'out/zero_pp_rank_3_mp_rank_00_optim_states.pt'"
    )),
    ("absent", (
        "FileNotFoundError: [Errno 2] No such file or directory: 'runs/best.pth'"
    )),
    ("absent", "FileNotFoundError: [Errno 2] No such file or directory: runs/best.pth"),
    ("code", "ModuleNotFoundError: No module named net"),
    ("not-finite", "WARNING Skipping checkpoint save at epoch 3: EMA contains NaN/Inf"),
    ("path", (
        "libc++abi.dylib: terminating with uncaught exception of type c10::Error: "
        "istream reader failed: reading file."
    )),
    ("finished", (
        "AssertionError: runs/train/exp/weights/last.pt training to 300 epochs is "
        "finished, nothing to resume."
    )),
    ("pipeline", (
        "ERROR: Could not detect model type of: D:\\ComfyUI\\flux1-dev-fp8.safetensors"
    )),
    ("key", (
        "KeyError: \"param 'initial_lr' is not specified in param_groups[0] when "
        "resuming an optimizer\""
    )),
    ("key", "KeyError: 'lr_lambdas'"),
    ("key", "KeyError: 'layers.0.mlp.down_proj.weight_scale'"),
    ("keys", (
        "KeyError: 'unexpected key \"module.bn1.num_batches_tracked\" in state_dict'"
    )),
    ("keys", (
        'RuntimeError: Error(s) in loading state_dict for DataParallel: Missing key(s) '
        'in state_dict: "module.conv1.weight".'
    )),
    ("keys", (
        "<All keys matched?> _IncompatibleKeys(missing_keys=['fc.weight'], "
        "unexpected_keys=['head.weight'])"
    )),
    ("attribute", (
        "AttributeError: 'collections.OrderedDict' object has no attribute 'cuda'"
    )),
    ("attribute", "AttributeError: 'dict' object has no attribute 'parameters'"),
    ("attribute", "TypeError: 'dict' object is not callable"),
    ("older-module", "AttributeError: 'Conv2d' object has no attribute 'padding_mode'"),
    ("older-module", (
        "torch.nn.modules.module.ModuleAttributeError: 'BatchNorm2d' object has no "
        "attribute '_non_persistent_buffers_set'"
    )),
    ("not-a-state-dict", (
        "TypeError: Expected state_dict to be dict-like, got <class 'NoneType'>."
    )),
    ("key", "KeyError: 'model_state_dict'"),
    ("key", "KeyError: 'params_ema'"),
    ("key", "KeyError: 'layers.0.mlp.gate_up_proj.weight'"),
    ("arguments", (
        "OSError: Checkpoint does not contain hyperparameters. Are your model "
        "hyperparameters storedin self.hparams?"
    )),
    ("keys", (
        "There were missing keys in the checkpoint model loaded: ['lm_head.weight']."
    )),
    ("mobile", (
        "com.facebook.jni.CppException: Lite Interpreter verson number does not match. "
        "The model version must be between 3 and 5But the model version is 7 ()"
    )),
    ("mobile", (
        "RuntimeError: The model is not generated from the api "
        "_save_for_lite_interpreter. Please regenerate the module"
    )),
    ("checkpointer", (
        "ValueError: Currently we only support reading from a single TorchTune "
        "checkpoint file. Got 4 files instead."
    )),
    ("agent", (
        'KeyError: "The observation_space and action_space were not given, can\'t '
        'verify new environments"'
    )),
    ("agent", (
        "ValueError: Observation spaces do not match: Box(4, 36, 36) != Box(36, 36, 4)"
    )),
    ("program", "TypeError: 'RecursiveScriptModule' object is not subscriptable"),
    ("unknown-type", "TypeError: Got unsupported ScalarType BFloat16"),
    ("unknown-type", "KeyError: 'I8'"),
    ("unknown-type", "KeyError: torch.bfloat16"),
    ("unknown-type", (
        "safetensors_rust.SafetensorError: Error while deserializing header: invalid "
        "JSON in header: unknown variant `F8_E8M0`, expected one of `BOOL`, `U8`"
    )),
    ("unknown-type", (
        "AttributeError: module 'torch' has no attribute 'float8_e4m3fn'"
    )),
    ("unknown-type", "TypeError: data type 'bfloat16' not understood"),
    ("unequal-ranks", (
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 2 params, "
        "while rank 0 has inconsistent 4 params."
    )),
    ("unequal-ranks", (
        "RuntimeError: params[0] in this process with sizes [2, 2, 3, 3] appears not to "
        "match strides of the same param in process 0."
    )),
    ("launcher", "KeyError: 'RANK'"),
    ("launcher", (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable MASTER_ADDR expected, but not set"
    )),
    ("launcher", (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    )),
    ("launcher", (
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned "
        "non-zero exit status 1."
    )),
    ("zero", (
        "AssertionError: Required universal_checkpoint_info state is missing in "
        "checkpoint. Verify that client creates this state."
    )),
    ("pipeline", (
        "SingleFileComponentError: Failed to load T5EncoderModel. Weights for this "
        "component appear to be missing in the checkpoint."
    )),
    ("arguments", (
        "TypeError: LitModel.__init__() missing 2 required positional arguments: "
        "'encoder' and 'decoder'"
    )),
    ("replicas", (
        "RuntimeError: module must have its parameters and buffers on device cuda:0 "
        "(device_ids[0]) but found one of them on device: cuda:1"
    )),
    ("replicas", (
        "RuntimeError: Expected all tensors to be on the same device, but got mat1 is "
        "on cuda:0, different from other tensors on cpu"
    )),
    # optimizers
    ("optimizer", (
        "ValueError: loaded state dict has a different number of parameter groups"
    )),
    ("elements", (
        "RuntimeError: The size of tensor a (512) must match the size of tensor b "
        "(256) at non-singleton dimension 0"
    )),
    ("capturable", (
        "AssertionError: If capturable=False, state_steps should not be CUDA tensors."
    )),
    ("capturable", (
        "RuntimeError: `state_steps` argument must contain a list of singleton tensors"
    )),
    ("key", "KeyError: 'exp_avg'"),
    ("key", "KeyError: \"betas\""),
    ("key", (
        "KeyError: 'Trying to restore learning rate scheduler state but checkpoint "
        "contains only the model.'"
    )),
    ("cpu-build", "AssertionError: Torch not compiled with CUDA enabled"),
    ("sides", (
        "RuntimeError: Input type (torch.cuda.HalfTensor) and weight type "
        "(torch.HalfTensor) should be the same or input should be a MKLDNN tensor and "
        "weight is a dense tensor"
    )),
    # types
    ("types", 'RuntimeError: "slow_conv2d_cpu" not implemented for \'Half\''),
    ("types", (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type "
        "(torch.cuda.HalfTensor) should be the same"
    )),
    ("types", (
        "RuntimeError: self and mat2 must have the same dtype, but got Float and "
        "BFloat16"
    )),
    ("not-finite", (
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    )),
    ("float64", (
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework "
        "doesn't support float64."
    )),
    ("float64", (
        "c10::TypeError: Cannot convert a float64 Tensor to MPS as the MPS framework "
        "doesn't support float64. Please use float32 instead."
    )),
    ("random", "TypeError: RNG state must be a torch.ByteTensor"),
    ("random", "TypeError: expected a torch.ByteTensor, but got torch.cuda.ByteTensor"),
    ("scaler", (
        "RuntimeError: The source state dict is empty, possibly because it was saved "
        "from a disabled instance of GradScaler."
    )),
    ("mount", "OSError: [Errno 5] Input/output error"),
    # safetensors and transformers
    ("header", (
        "safetensors_rust.SafetensorError: Error while deserializing header: "
        "MetadataIncompleteBuffer"
    )),
    ("header", (
        "safetensors_rust.SafetensorError: Error while deserializing header: "
        "InvalidHeaderDeserialization"
    )),
    ("header", "Error while deserializing header: header too small"),
    ("unlabelled", (
        "OSError: The safetensors archive passed at ./m.safetensors does not contain "
        "the valid metadata."
    )),
    ("shared", (
        "RuntimeError: The weights trying to be saved contained shared tensors [{'a', "
        "'b'}] which are not properly defined."
    )),
    ("upgrade", (
        "ValueError: Due to a serious vulnerability issue in `torch.load`, even with "
        "`weights_only=True`, we now require users to upgrade torch to at least v2.6"
    )),
    ("no-file", (
        "OSError: ./run does not appear to have a file named pytorch_model.bin, "
        "tf_model.h5, model.ckpt.index or flax_model.msgpack."
    )),
    ("no-file", (
        "OSError: Error no file named diffusion_pytorch_model.bin found in directory "
        "./unet."
    )),
    ("unreadable", (
        "OSError: Unable to load weights from pytorch checkpoint file for "
        "'./m/pytorch_model.bin' at './m/pytorch_model.bin'."
    )),
    ("unreadable", (
        "OSError: You seem to have cloned a repository without having git-lfs "
        "installed. Please install git-lfs"
    )),
    ("keys", (
        "Some weights of the model checkpoint at bert-base-uncased were not used when "
        "initializing BertForSequenceClassification: ['cls.predictions.bias']"
    )),
    ("keys", (
        "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an "
        "error. For details look at the above report!"
    )),
    ("sizes", (
        "- classifier.weight: found shape torch.Size([3, 768]) in the checkpoint and "
        "torch.Size([2, 768]) in the model instantiated"
    )),
    ("sizes", (
        'ValueError: Trying to set a tensor of shape torch.Size([0]) in "weight" '
        '(which has shape torch.Size([32000, 4096])), this looks incorrect.'
    )),
    # timm, mmcv, fvcore, diffusers, peft, vLLM, llama.cpp, fairseq
    ("keys", (
        "Unexpected keys (head.weight, head.bias) found while loading pretrained "
        "weights. This may be expected if model is being adapted."
    )),
    ("keys", "unexpected key in source state_dict: fc.weight, fc.bias"),
    ("keys", (
        "The checkpoint state_dict contains keys that are not used by the model:\n  "
        "anchor_generator.cell_anchors.{0, 1}"
    )),
    ("sizes", (
        "Skip loading parameter 'head.weight' to the model due to incompatible shapes: "
        "(81, 16) in the checkpoint but (6, 16) in the model!"
    )),
    ("sizes", (
        "ValueError: Cannot load unet because conv_in.weight expected shape "
        "torch.Size([320, 4, 3, 3]), but got torch.Size([320, 9, 3, 3])."
    )),
    ("keys", (
        "UserWarning: Found missing adapter keys while loading the checkpoint: "
        "['base_model.model.q.lora_A.default.weight']."
    )),
    ("keys", (
        "ValueError: There is no module or parameter named 'lm_head' in LlamaModel"
    )),
    ("keys", (
        "ValueError: Can not map tensor 'model.layers.0.mlp.down_proj.weight_scale_inv'"
    )),
    ("keys", (
        "Exception: Cannot load model parameters from checkpoint x.pt; please ensure "
        "that the architectures match."
    )),
    ("adapter", (
        "No LoRA keys associated to CLIPTextModel found with the prefix='text_encoder'."
    )),
    ("adapter", (
        "Failed to match keys when loading Lora C:\\models\\a.safetensors: "
        "['lora_unet_down.alpha']"
    )),
    ("valuehead", (
        "WARNING - Provided path (./checkpoint-1000) does not contain valuehead "
        "weights."
    )),
    ("valuehead", "AssertionError: Reward model is not correctly loaded."),
    ("merged-adapters", (
        "AssertionError: weights shape mismatch merging v1 and v2, different dims? / "
    )),
    ("single-file", (
        "OSError: It looks like the config file at '/app/a.safetensors' is not a valid "
        "JSON file."
    )),
    ("mount", "No such device (os error 19)"),
    ("not-renamed", "ValueError: The following keys have not been correctly renamed:"),
    ("keys", (
        "ValueError: The state dictionary of the model you are trying to load is "
        "corrupted. Are you sure it was properly saved?"
    )),
    ("keys", "    assert param_data.shape == loaded_weight.shape\nAssertionError"),
    ("no-file", (
        "ValueError: `checkpoint` should be the path to a file containing a whole "
        "state dict, or the index of a sharded checkpoint"
    )),
    ("world", (
        "AssertionError: num_layers value from checkpoint (24) is not equal to the "
        "input argument value (12)."
    )),
    ("zero", "ValueError: unknown zero stage 0"),
    ("adapter", "lora key not loaded: lora_unet_double_blocks_0_img_attn_proj.alpha"),
    ("adapter", (
        "ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model. "
        "Please check the target modules"
    )),
    # distributed checkpoints
    ("distributed", (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optimizer.state.fc.weight.exp_avg."
    )),
    ("distributed", (
        "ValueError: Size mismatch between saved torch.Size([8, 2]) and current: "
        "torch.Size([4, 2]) for model.fc.weight"
    )),
    ("distributed", (
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([0, 1])"
    )),
    ("folder", (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'/runs/step-10/.metadata'"
    )),
    ("folder", "IsADirectoryError: [Errno 21] Is a directory: 'checkpoint-500'"),
    ("world", "AssertionError: Loading a checkpoint for MP=8 but world size is 1"),
    ("world", (
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being "
        "loaded used a DP world size of 8 but the current world size is 4. Automatic "
        "adjustment is not supported."
    )),
    ("no-file", "ValueError: Unable to find 'latest' file at ./run/latest"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text"), MESSAGES, ids=[text[:50] for _, text in MESSAGES]
)
def test_a_message_belongs_to_its_family(kind: str, text: str) -> None:
    message = find_message(
        f'Traceback (most recent call last):\n  File "train.py", line 3\n{text}\n'
    )

    assert message is not None and message.kind == kind
    wrapped = "\n".join(text[at : at + 90] for at in range(0, len(text), 90))
    again = find_message(re.sub(r"(?<=\w)\n(?=\w)", "", wrapped))
    assert again is not None and again.kind == kind


def test_every_family_has_a_page_and_a_message() -> None:
    assert {kind for page in pages() for kind in page.kinds} == {*FAMILIES}
    assert {"sizes", "unreadable"} | {kind for kind, _ in MESSAGES} >= {*FAMILIES} - {
        "ddp",
        "twice",
        "memory",
    }
    used = {block.condition for page in pages() for block in page.body}
    assert used - {""} == {*CONDITIONS}


LOGS = [
    "2026-01-03 10:00:{:02} INFO trainer: epoch {} step {} loss {:.4f} lr 1e-4",
    (
        "Epoch {1}: 100%|##########| {2}/{2} [00:{0:02}<00:00, 41.3it/s, v_num=3, "
        "train_loss={3:.2f}]"
    ),
    "Downloading shards: 100%|#####| {1}/{1} [00:{0:02}<00:00]",
    "WARNING: the dataset has no attribute 'length_{2}', counting",
    "KeyError: 'image_{1}' was skipped by the collate function",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/{1}/{2}.jpg'",
    "ValueError: could not convert string to float: '{3}'",
    "IndexError: list index out of range in worker {1}",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    (
        "ConnectionError: HTTPSConnectionPool(host='host', port=443): Max retries "
        "exceeded with url: /{1}"
    ),
    "Saved checkpoint to runs/{1}/step-{2}.pt in {3:.1f} s",
    "loaded 128 parameters, the model has {2} parameters in {1} groups",
    "torch.distributed: rank {1} joined, world size is {0}",
    "missing {1} samples of the validation set, unexpected {2} duplicates",
    "module load cuda/12.{1}; module load python",
    "The number of steps is {2}, the optimizer has one group of {1}",
    "TypeError: forward() got an unexpected keyword argument 'mask_{1}'",
    "nvidia-smi: 40536MiB / 81559MiB, {1} C",
    "PermissionError: [Errno 13] Permission denied: '/data/x_{1}.lock'",
    "assert tensor.size(0) == batch, 'expected {1} got {2}'",
]


def unrelated(lines: int) -> str:
    rng = random.Random(5)
    return "\n".join(
        rng.choice(LOGS).format(
            rng.randrange(60), rng.randrange(99), rng.randrange(9_999), rng.random()
        )
        for _ in range(lines)
    )


def test_unrelated_logs_lead_to_no_page() -> None:
    assert search(unrelated(3_000)).page is None
    for line in set(unrelated(400).splitlines()):
        assert search(line).page is None, line
        with pytest.raises(UsageError):
            explain(line)


def test_an_error_between_unrelated_lines_is_found() -> None:
    for kind, text in MESSAGES:
        if not FAMILIES[kind].is_weak:
            message = find_message(f"{unrelated(20)}\n{text}\n{unrelated(20)}")
            assert message is not None and message.kind == kind, text
