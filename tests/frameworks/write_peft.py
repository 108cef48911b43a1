"""Adapters of PEFT: LoRA and others, saved by themselves, inside of a Trainer's folder,
and merged.
"""

from __future__ import annotations

import optional
import torch
from peft import IA3Config, LoHaConfig, LoraConfig, get_peft_model
from recorder import Case
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from zoo import DEVICE

optional.hide_gptqmodel()
WORDS = [
    {"input_ids": torch.randint(0, 30, (6,)), "labels": torch.randint(0, 30, (6,))}
    for _ in range(16)
]


def base() -> nn.Module:
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def adapt(case: Case, config: object) -> None:
    model = case.watch("net", get_peft_model(base(), config))
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], 1e-2
    )
    before = None
    for epoch in range(2):
        for _ in range(2):
            batch = {k: torch.stack([w[k] for w in WORDS[:2]]) for k in WORDS[0]}
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        whole = case.path(f"whole{epoch}.pth")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            },
            whole,
        )
        case.wrote(
            whole,
            {"model": ("model", "net", ""), "optimizer": "optimizer"},
            values={"epoch": epoch},
            after=before,
        )
        before = whole
        folder = case.path(f"adapter{epoch}")
        model.save_pretrained(str(folder))
        case.wrote(folder, {"?model": "model"}, optimizers=False)
        case.wrote(
            folder / "adapter_model.safetensors", {"": "model"}, optimizers=False
        )


def lora(case: Case) -> None:
    adapt(
        case,
        LoraConfig(
            r=2,
            lora_alpha=4,
            target_modules=["q_proj", "v_proj"],
            task_type="CAUSAL_LM",
        ),
    )


def lora_head(case: Case) -> None:
    adapt(
        case,
        LoraConfig(
            r=2,
            target_modules=["q_proj"],
            modules_to_save=["lm_head"],
            task_type="CAUSAL_LM",
        ),
    )


def dora(case: Case) -> None:
    adapt(
        case,
        LoraConfig(
            r=2, use_dora=True, target_modules=["q_proj"], task_type="CAUSAL_LM"
        ),
    )


def ia3(case: Case) -> None:
    adapt(
        case,
        IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"],
            task_type="CAUSAL_LM",
        ),
    )


def loha(case: Case) -> None:
    adapt(case, LoHaConfig(r=2, target_modules=["q_proj"]))


def merged(case: Case) -> None:
    model = get_peft_model(
        base(), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    whole = case.watch("net", model.merge_and_unload())
    folder = case.path("merged")
    whole.save_pretrained(str(folder))
    case.wrote(folder, {"": ("model", "net", "")}, optimizers=False)


def trainer(case: Case) -> None:
    model = case.watch(
        "net",
        get_peft_model(
            base(),
            LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        ),
    )

    class Truth(TrainerCallback):
        def on_save(
            self, args: object, state: object, control: object, **kwargs: object
        ) -> None:
            folder = case.path(f"checkpoint-{state.global_step}")
            case.wrote(folder, {"?optimizer": "optimizer", "?model": "model"})
            case.wrote(folder / "optimizer.pt", {"": "optimizer"})

    arguments = TrainingArguments(
        output_dir=str(case.folder),
        max_steps=2,
        save_steps=2,
        report_to=[],
        use_cpu=DEVICE == "cpu",
        disable_tqdm=True,
    )
    Trainer(
        model=model, args=arguments, train_dataset=WORDS, callbacks=[Truth()]
    ).train()


CASES = (lora, lora_head, dora, ia3, loha, merged, trainer)
