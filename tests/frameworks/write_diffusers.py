"""Folders of diffusers: one model, its EMA, and a pipeline of several parts."""

from __future__ import annotations

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel
from recorder import Case


def unet() -> UNet2DModel:
    return UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )


def trained(case: Case) -> None:
    net = case.watch("net", unet())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    average = EMAModel(net.parameters(), model_cls=UNet2DModel, model_config=net.config)
    scheduler = DDPMScheduler(10)
    for _ in range(2):
        noise, x = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
        times = torch.randint(0, 10, (2,))
        optimizer.zero_grad()
        (
            net(scheduler.add_noise(x, noise, times), times).sample - noise
        ).square().mean().backward()
        optimizer.step()
        average.step(net.parameters())
    for safe in (True, False):
        folder = case.path("unet" if safe else "unet-bin")
        net.save_pretrained(str(folder), safe_serialization=safe)
        case.wrote(folder, {"?model": ("model", "net", "")}, optimizers=False)
        name = "diffusion_pytorch_model." + ("safetensors" if safe else "bin")
        case.wrote(folder / name, {"": ("model", "net", "")}, optimizers=False)
    folder = case.path("pipeline")
    DDPMPipeline(net, scheduler).save_pretrained(str(folder))
    case.wrote(folder, {"?model": ("model", "net", "")}, optimizers=False)
    path = case.path("training.pth")
    torch.save(
        {
            "unet": net.state_dict(),
            "ema": average.state_dict(),
            "optimizer": optimizer.state_dict(),
        },
        path,
    )
    case.wrote(
        path, {"unet": ("model", "net", ""), "optimizer": "optimizer", "ema": "average"}
    )
    folder = case.path("unet-ema")
    average.save_pretrained(str(folder))
    case.wrote(folder, {"?model": "model"}, optimizers=False)


CASES = (trained,)
