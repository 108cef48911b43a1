"""A folder of sentence-transformers: a transformer, a pooling and a dense layer, each
in a folder of its own.
"""

from __future__ import annotations

from recorder import Case
from sentence_transformers import SentenceTransformer, models
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokens
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from zoo import BERT


def folder(case: Case) -> None:
    base = case.path("base")
    config = BertConfig(**{**BERT, "num_hidden_layers": 1})
    BertModel(config).save_pretrained(str(base))
    words = Tokenizer(
        tokens.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(str(base))
    first = models.Transformer(str(base), max_seq_length=8)
    net = SentenceTransformer(
        modules=[first, models.Pooling(8), models.Dense(8, 4)], device="cpu"
    )
    case.watch("net", net)
    net.encode(["a b", "b"])
    for safe in (True, False):
        path = case.path("safe" if safe else "pickled")
        net.save(str(path), safe_serialization=safe)
        case.wrote(
            path, {"0_Transformer": "model", "2_Dense": "model"}, optimizers=False
        )
        name = "model.safetensors" if safe else "pytorch_model.bin"
        for part in (path / name, path / "2_Dense" / name):
            if part.exists():
                case.wrote(part, {"": "model"}, optimizers=False)


CASES = (folder,)
