"""The zip files of Stable-Baselines3: the policy, its optimizers, and the settings as
JSON.
"""

from __future__ import annotations

import zipfile

import torch
from recorder import Case
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm


def learn(case: Case, make: type[BaseAlgorithm], world: str, **options: object) -> None:
    algorithm = make(
        "MlpPolicy",
        world,
        policy_kwargs={"net_arch": [8]},
        device="cpu",
        seed=0,
        **options,
    )
    case.watch("policy", algorithm.policy)
    algorithm.learn(16)
    path = case.path("model.zip")
    algorithm.save(path)
    members = [
        name.removesuffix(".pth")
        for name in zipfile.ZipFile(path).namelist()
        if name.endswith(".pth")
    ]
    optimizers = {name: "optimizer" for name in members if "optimizer" in name}
    case.wrote(
        path, {"policy": ("model", "policy", ""), **optimizers}, optimizers=False
    )
    bare = case.path("policy.pth")
    algorithm.policy.save(str(bare))
    case.wrote(bare, {"state_dict": ("model", "policy", "")}, optimizers=False)
    parameters = case.path("parameters.pth")
    found = algorithm.get_parameters()
    torch.save(found, parameters)
    sections = {name: "optimizer" for name in found if "optimizer" in name}
    case.wrote(parameters, {"policy": ("model", "policy", ""), **sections})


def ppo(case: Case) -> None:
    learn(case, PPO, "CartPole-v1", n_steps=8, batch_size=4)


def a2c(case: Case) -> None:
    learn(case, A2C, "CartPole-v1", n_steps=8)


def dqn(case: Case) -> None:
    learn(case, DQN, "CartPole-v1", learning_starts=4, buffer_size=32, batch_size=4)


def sac(case: Case) -> None:
    learn(case, SAC, "Pendulum-v1", learning_starts=4, buffer_size=32, batch_size=4)


CASES = (ppo, a2c, dqn, sac)
