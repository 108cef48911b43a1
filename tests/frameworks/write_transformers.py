"""Folders of Hugging Face's Trainer: models made from their configuration, trained for
a few steps.
"""

from __future__ import annotations

import torch
from recorder import Case
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)
from zoo import BERT, DEVICE, LLAMA

WORDS = [
    {"input_ids": torch.randint(0, 30, (6,)), "labels": torch.randint(0, 30, (6,))}
    for _ in range(16)
]
LABELS = [
    {"input_ids": torch.randint(0, 30, (6,)), "labels": torch.tensor(1)}
    for _ in range(16)
]
PIXELS = [
    {"pixel_values": torch.randn(3, 8, 8), "labels": torch.tensor(1)} for _ in range(16)
]


class Truth(TrainerCallback):
    """Keeps the truth of the moment at which a folder was saved."""

    def __init__(self, case: Case, renamed: bool) -> None:
        self.case, self.before, self.renamed = case, None, renamed

    def on_save(
        self, args: TrainingArguments, state: object, control: object, **kwargs: object
    ) -> None:
        folder = self.case.path(f"checkpoint-{state.global_step}")
        model = "model" if self.renamed else ("model", "net", "")
        self.case.wrote(
            folder, {"?model": model, "?optimizer": "optimizer"}, after=self.before
        )
        self.before = folder
        for name in ("model.safetensors", "pytorch_model.bin"):
            if (folder / name).exists():
                self.case.wrote(folder / name, {"": model}, optimizers=False)
        self.case.wrote(folder / "optimizer.pt", {"": "optimizer"})
        self.case.wrote(
            folder / "scheduler.pt", {}, values={"last_epoch": state.global_step}
        )
        self.case.wrote(folder / "training_args.bin", {})
        if (folder / "rng_state.pth").exists():
            self.case.wrote(folder / "rng_state.pth", {})


def fit(
    case: Case,
    model: nn.Module,
    data: list[dict[str, torch.Tensor]],
    renamed: bool = False,
    **options: object,
) -> None:
    case.watch("net", model)
    arguments = TrainingArguments(
        output_dir=str(case.folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=DEVICE == "cpu",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_num_workers=0,
        **{"learning_rate": 1e-2, "weight_decay": 0.1, **options},
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        callbacks=[Truth(case, renamed)],
    ).train()


def bert(case: Case) -> None:
    fit(case, BertForSequenceClassification(BertConfig(**BERT)), LABELS)


def bert_frozen(case: Case) -> None:
    model = BertForSequenceClassification(BertConfig(**BERT))
    model.bert.embeddings.requires_grad_(False)
    fit(case, model, LABELS)


def gpt2(case: Case) -> None:
    """The head is tied to the embedding."""
    fit(
        case,
        GPT2LMHeadModel(
            GPT2Config(vocab_size=30, n_embd=8, n_layer=2, n_head=2, n_positions=16)
        ),
        WORDS,
    )


def llama(case: Case) -> None:
    config = LlamaConfig(**LLAMA, num_key_value_heads=1)
    fit(case, LlamaForCausalLM(config), WORDS)


def llama_compiled(case: Case) -> None:
    config = LlamaConfig(**LLAMA, num_key_value_heads=2)
    fit(
        case,
        LlamaForCausalLM(config),
        WORDS,
        optim="adamw_torch",
        gradient_accumulation_steps=2,
        lr_scheduler_type="cosine",
    )


def llama_bf16(case: Case) -> None:
    fit(case, LlamaForCausalLM(LlamaConfig(**LLAMA)), WORDS, bf16=True)


def adafactor(case: Case) -> None:
    config = LlamaConfig(**{**LLAMA, "num_hidden_layers": 1})
    fit(case, LlamaForCausalLM(config), WORDS, optim="adafactor")


def t5(case: Case) -> None:
    config = T5Config(
        vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2
    )
    config.decoder_start_token_id = 0
    fit(case, T5ForConditionalGeneration(config), WORDS)


def vit(case: Case) -> None:
    """transformers saves this one under the names of its earlier versions."""
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    fit(case, ViTForImageClassification(config), PIXELS, renamed=True)


def sharded(case: Case) -> None:
    """A model saved in shards with their index."""
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
    )
    model = case.watch("net", LlamaForCausalLM(config))
    folder = case.path("sharded")
    model.save_pretrained(folder, max_shard_size="10KB")
    case.wrote(folder, {"": ("model", "net", "")}, optimizers=False)
    case.wrote(
        folder / "model.safetensors.index.json",
        {"": ("model", "net", "")},
        optimizers=False,
    )


CASES = (
    bert,
    bert_frozen,
    gpt2,
    llama,
    llama_compiled,
    llama_bf16,
    adafactor,
    t5,
    vit,
    sharded,
)
