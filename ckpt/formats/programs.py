"""The files of other programs, recognised by their content or their name: what each is,
and what opens it.
"""

from __future__ import annotations

import os
import re

from ckpt.formats.format import Probe
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun


class Program(NamedTuple):
    """A file of another program: what it is, and what opens it, where that is known."""

    what: str
    opener: str | None = None


_KERAS = "keras.models.load_model opens it"
_TENSORFLOW = "tf.train.load_checkpoint opens it"
_TENSORRT = Program(
    "TensorRT engine", "the TensorRT that built it opens it, on the same kind of GPU"
)
_GGML = Program(
    "ggml (whisper.cpp, old llama.cpp)",
    "the program that it was converted for opens it",
)
_MAGICS: tuple[tuple[bytes, Program], ...] = (
    (
        b"GGUF",
        Program(
            "GGUF (llama.cpp)",
            "llama.cpp opens it, and from_pretrained(…, gguf_file=…) of transformers",
        ),
    ),
    (
        b"FUGG",
        Program("GGUF (llama.cpp) of big-endian machines", "llama.cpp opens it there"),
    ),
    (b"lmgg", _GGML),
    (b"fmgg", _GGML),
    (b"tjgg", _GGML),
    (b"algg", _GGML),
    (
        b"\x89HDF\r\n\x1a\n",
        Program("HDF5 (Keras?)", "h5py opens it, and Keras a model in it"),
    ),
    (b"ftrt", _TENSORRT),
    (b"ptrt", _TENSORRT),
    (b"\xba\x16\x4f\x2f", Program("fastText", "fasttext.load_model opens it")),
)
"""First bytes of files. llama.cpp and whisper.cpp write the number 0x67676d6c, so its
letters stand backwards.
"""

_TABLE_END = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"
"""The last bytes of a table of LevelDB, which TensorFlow's index is
(tensorflow/core/lib/io/format.h).
"""
_TABLE_FOOTER = 48
"""Bytes of the footer of such a table: a shorter file is none."""
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_SPEC = re.compile(rb"[\x01-\x20]\0\0\0[\x02-\x80]\0[A-Z]\w{3,100}Spec\0")
"""The version, and the length and the name of the specification
(ctranslate2/specs/model_spec.py).
"""
# A map of MessagePack whose first key is a short text.
_MAP = re.compile(rb"[\x81-\x8f\xde\xdf][\0-\xff]{0,4}?[\xa1-\xbf\xd9][\w./-]")
_DARKNET = re.compile(rb"\0\0\0\0[\x01\x02]\0\0\0[\0-\x05]\0\0\0")
"""The versions 0.1 and 0.2 of Darknet (load_weights_upto of its parser.c)."""
_ENGINE = (".engine", ".plan", ".trt")


def _darknet_program(head: bytes, size: int) -> Program:
    """The weights of Darknet, which have no names and no shapes: all that tells them is
    their number.
    """
    # From version 0.2 on the number of pictures has 8 bytes.
    header = 16 if head[4] == 1 else 20
    count, extra_bytes = divmod(max(0, size - header), 4)
    numbers = f"{count:,} float32 numbers"
    what = f"Darknet (YOLO), {numbers} behind a header of {header} bytes"
    if extra_bytes:
        what += f" and {counted_noun(extra_bytes, 'byte')} more"
        return Program(what, "an unfinished download")
    opener = (
        "darknet and cv2.dnn.readNet open it, with its .cfg: one that asks for another "
        "number is of another model, or the download is unfinished"
    )
    return Program(what, opener)


def program_of(probe: Probe) -> Program | None:
    """Return what another program has written, or None for a file that is none of those
    known here.
    """
    head = probe.head
    for magic, program in _MAGICS:
        if head.startswith(magic):
            return program
    name = os.path.basename(probe.path).lower()
    # The mark of a flatbuffer stands behind the four bytes of an offset.
    if head[4:8] == b"TFL3":
        return Program("TensorFlow Lite", "tf.lite.Interpreter opens it")
    # Ultralytics puts JSON and its length in front.
    if head[4:5] == b"{" and name.endswith(_ENGINE):
        return _TENSORRT
    if _SPEC.match(head):
        return Program(
            "CTranslate2",
            "ctranslate2 and faster-whisper open the folder that it lies in",
        )
    if name.endswith(".weights") and _DARKNET.match(head):
        return _darknet_program(head, probe.size)
    if name.endswith(".msgpack") and _MAP.match(head):
        return Program("msgpack (Flax?)", "flax.serialization.msgpack_restore opens it")
    return _of_tensorflow(probe, name) or _protobuf_program(head, name)


def _of_tensorflow(probe: Probe, name: str) -> Program | None:
    """A checkpoint of TensorFlow: an index and files of data, or one table in its first
    version.
    """
    # A file of torch may be called so too: it begins as a zip archive or a pickle.
    if _DATA.search(name) and not probe.head.startswith((b"PK", b"\x80")):
        return Program(
            "the data of a TensorFlow checkpoint",
            f"{_TENSORFLOW}, by the name before .data-",
        )
    if probe.size >= _TABLE_FOOTER and probe.file.read(probe.size - 8, 8) == _TABLE_END:
        more = ", by the name before .index" if name.endswith(".index") else ""
        return Program("a TensorFlow checkpoint", f"{_TENSORFLOW}{more}")
    # TensorFlow's file `checkpoint` is a text.
    if probe.head.startswith(b"model_checkpoint_path:"):
        return Program("the list of TensorFlow's checkpoints in this folder")
    # The first field of a MetaGraphDef is a message: its tag 0x0A is a newline.
    if name.endswith(".meta") and probe.head.startswith(b"\n"):
        return Program(
            "the graph of a TensorFlow checkpoint",
            "its values lie in the files beside it",
        )
    return None


def _protobuf_program(head: bytes, name: str) -> Program | None:
    """A message of protobuf: the first field is a number in ONNX, CoreML and
    SavedModel, and a text or a message in others.

    A ModelProto of ONNX begins with ir_version, and then producer_name, the graph or
    opset_import.
    """
    if _begins_with_version(head):
        if name.endswith(".mlmodel"):
            return Program("CoreML", "coremltools.models.MLModel opens it")
        # producer_name is a text, and the second field of a SavedModel a message.
        if head[2:3] == _FIELD_2 and not _is_text(_field_content(head, 3)):
            return Program(
                "a TensorFlow SavedModel",
                "tf.saved_model.load opens the folder that it lies in",
            )
        return Program("ONNX", "onnxruntime opens it, and onnx.load")
    # Field 1 with a length has the tag 0x0A, which is a newline.
    if head[:1] != b"\n":
        return None
    if name.endswith(".caffemodel"):
        return Program("Caffe", "caffe and cv2.dnn.readNetFromCaffe open it")
    # MindSpore: a message for each parameter, whose first field is its name.
    parameter = _field_content(head, 1)
    if not name.endswith(".ckpt") or parameter[:1] != b"\n":
        return None
    if not _is_text(_field_content(parameter, 1)):
        return None
    return Program("MindSpore", "mindspore.load_checkpoint opens it")


_FIELD_2, _FIELD_7, _FIELD_8 = b"\x12", b"\x3a", b"\x42"
"""The byte before a field of protobuf whose content has a length."""


def _begins_with_version(head: bytes) -> bool:
    """Tell whether bytes begin with field 1 as a small number, and go on with a field
    that comes next in ONNX, CoreML or SavedModel.
    """
    if len(head) <= 3 or head[0] != 0x08 or head[1] >= 0x20:
        return False
    return head[2:3] in (_FIELD_2, _FIELD_7, _FIELD_8)


def _field_content(data: bytes, position: int) -> bytes:
    """The beginning of a field of protobuf, whose length stands at `position`."""
    length = shift = 0
    # Each byte has 7 bits of the length, so five of them hold any of 32 bits.
    for index in range(position, min(position + 5, len(data))):
        length |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            return data[index + 1 : index + 1 + length]
    return b""


def _is_text(data: bytes) -> bool:
    return all(0x20 <= byte < 0x7F for byte in data)


def keras_of(names: set[str]) -> Program | None:
    """Return the model of Keras 3 that a zip archive with these names is, or None."""
    is_keras = {"config.json", "model.weights.h5"} <= names
    return Program("Keras", _KERAS) if is_keras else None


def folder_of(names: set[str]) -> Program | None:
    """Return what another program has written into a folder with these names,
    or None.
    """
    if "saved_model.pb" in names:
        return Program("a TensorFlow SavedModel", "tf.saved_model.load opens it")
    if "Manifest.json" in names and "Data" in names:
        return Program("a CoreML package", "coremltools.models.MLModel opens it")
    stems = {_DATA.sub("", name) for name in names if _DATA.search(name)}
    if any(f"{stem}.index" in names for stem in stems):
        return Program("a TensorFlow checkpoint", _TENSORFLOW)
    return None
