"""Checkpoints of timm: its saver with EMA, weight decay groups, and its own
optimizers.
"""

from __future__ import annotations

import timm
import torch
from recorder import Case
from timm.optim import create_optimizer_v2
from timm.utils import CheckpointSaver, ModelEmaV2, ModelEmaV3
from torch import nn


def fit(
    case: Case,
    name: str,
    opt: str = "adamw",
    ema: type | None = None,
    **options: object,
) -> None:
    net = case.watch(
        "net", timm.create_model(name, pretrained=False, num_classes=3, **options)
    )
    optimizer = create_optimizer_v2(net, opt=opt, lr=1e-2, weight_decay=0.05)
    average = ema(net, decay=0.9) if ema else None
    saver = CheckpointSaver(
        net,
        optimizer,
        model_ema=average,
        checkpoint_dir=str(case.folder),
        recovery_dir=str(case.folder),
        max_history=3,
    )
    before = None
    size = options.get("img_size", 32)
    for epoch in range(2):
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                net(torch.randn(2, 3, size, size)), torch.randint(0, 3, (2,))
            )
            loss.backward()
            optimizer.step()
            if average is not None:
                average.update(net)
        saver.save_checkpoint(epoch, metric=float(epoch))
        path = case.path(f"checkpoint-{epoch}.pth.tar")
        sections = {"state_dict": ("model", "net", ""), "optimizer": "optimizer"}
        if average is not None:
            sections["state_dict_ema"] = ("ema", "net", "")
        case.wrote(
            path,
            sections,
            values={"epoch": epoch, "metric": float(epoch)},
            after=before,
        )
        before = path


def resnet(case: Case) -> None:
    fit(case, "test_resnet", "sgd")


def resnet_ema(case: Case) -> None:
    fit(case, "test_resnet", "adamw", ModelEmaV2)


def vit(case: Case) -> None:
    fit(
        case,
        "vit_tiny_patch16_224",
        ema=ModelEmaV3,
        img_size=32,
        patch_size=16,
        embed_dim=24,
        depth=2,
        num_heads=2,
    )


def lamb(case: Case) -> None:
    fit(case, "test_resnet", "lamb")


def lion(case: Case) -> None:
    fit(
        case,
        "vit_tiny_patch16_224",
        "lion",
        img_size=32,
        patch_size=16,
        embed_dim=24,
        depth=2,
        num_heads=2,
    )


def swin(case: Case) -> None:
    fit(
        case,
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=2,
        embed_dim=12,
        depths=(1, 1, 1, 1),
        num_heads=(2, 2, 2, 2),
        patch_size=4,
    )


def mobilenet(case: Case) -> None:
    fit(case, "mobilenetv3_small_050", "rmsproptf", ModelEmaV2)


def convnext(case: Case) -> None:
    fit(case, "convnext_atto", "nadamw", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))


CASES = (resnet, resnet_ema, vit, lamb, lion, swin, mobilenet, convnext)
