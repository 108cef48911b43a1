"""All optimizers of a file against all of its models at once: GANs, critics, chains,
losses, Muon, GaLore.
"""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from torch import nn

from ckpt import formats
from ckpt.evidence.survey import Survey

pytestmark = oracle.QUIET

Names = list[list[str | None]]


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(one, two) for one, two in pairwise(widths)))


def adam(parameters: Any, cls: Any = torch.optim.Adam) -> dict[str, Any]:
    """The state of an optimizer that took one step."""
    optimizer = cls(list(parameters))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state: dict[str, Any] = optimizer.state_dict()
    return state


def names(key: str, *models: nn.Module) -> list[str | None]:
    keys = key.split("+")
    return [
        f"{key}.{name}"
        for key, model in zip(keys, models, strict=True)
        for name, _ in model.named_parameters()
    ]


def twins(keys: str) -> tuple[dict[str, Any], Names]:
    one, two, first, second = keys.split()
    generator, discriminator = mlp(4, 8, 4), mlp(4, 8, 4)
    thing = {
        one: generator.state_dict(),
        two: discriminator.state_dict(),
        first: adam(generator.parameters()),
        second: adam(discriminator.parameters()),
    }
    return thing, [names(one, generator), names(two, discriminator)]


def lists() -> tuple[dict[str, Any], Names]:
    one, two = mlp(4, 8, 4), mlp(4, 8, 4)
    thing = {
        "models": [one.state_dict(), two.state_dict()],
        "optimizers": [adam(one.parameters()), adam(two.parameters())],
    }
    return thing, [names("models.0", one), names("models.1", two)]


def cyclegan() -> tuple[dict[str, Any], Names]:
    one, two, three, four = mlp(4, 8, 4), mlp(4, 8, 4), mlp(4, 8, 1), mlp(4, 8, 1)
    thing = {
        "G_A": one.state_dict(),
        "G_B": two.state_dict(),
        "D_A": three.state_dict(),
        "D_B": four.state_dict(),
        "optimizer_G": adam(chain(one.parameters(), two.parameters())),
        "optimizer_D": adam(chain(three.parameters(), four.parameters())),
    }
    return thing, [names("G_A+G_B", one, two), names("D_A+D_B", three, four)]


def hifigan() -> tuple[dict[str, Any], Names]:
    mpd, msd = mlp(3, 5, 7), mlp(2, 9, 1)
    state = adam(chain(msd.parameters(), mpd.parameters()))
    thing = {"mpd": mpd.state_dict(), "msd": msd.state_dict(), "optim_d": state}
    return thing, [names("msd+mpd", msd, mpd)]


def sac() -> tuple[dict[str, Any], Names]:
    """A temperature of one element, twin critics with an optimizer each, and their
    targets.
    """
    actor, one, two = mlp(4, 6, 2), mlp(6, 6, 1), mlp(6, 6, 1)
    alpha = nn.Parameter(torch.zeros(1))
    thing = {
        "actor": actor.state_dict(),
        "critic1": one.state_dict(),
        "critic2": two.state_dict(),
        "target_critic1": mlp(6, 6, 1).state_dict(),
        "target_critic2": mlp(6, 6, 1).state_dict(),
        "actor_optimizer": adam(actor.parameters()),
        "critic1_optimizer": adam(one.parameters()),
        "critic2_optimizer": adam(two.parameters()),
        "alpha_optimizer": adam([alpha]),
    }
    return thing, [
        names("actor", actor),
        names("critic1", one),
        names("critic2", two),
        [None],
    ]


def critics() -> tuple[dict[str, Any], Names]:
    """One optimizer over twin critics."""
    one, two = mlp(6, 6, 1), mlp(6, 6, 1)
    thing = {
        "q1": one.state_dict(),
        "q2": two.state_dict(),
        "q1_target": mlp(6, 6, 1).state_dict(),
        "q2_target": mlp(6, 6, 1).state_dict(),
        "q_optim": adam(chain(one.parameters(), two.parameters())),
    }
    return thing, [names("q1+q2", one, two)]


def copies(trained: str, copied: str) -> tuple[dict[str, Any], Names]:
    net = mlp(6, 6, 1)
    thing = {
        copied: mlp(6, 6, 1).state_dict(),
        trained: net.state_dict(),
        "optimizer": adam(net.parameters()),
    }
    return thing, [names(trained, net)]


def arcface(groups: bool) -> tuple[dict[str, Any], Names]:
    """The parameters of the loss lie beside the model, in one group with it or in their
    own.
    """
    net, loss = mlp(4, 8, 3), nn.Linear(3, 10, bias=False)
    parts = [{"params": list(net.parameters())}, {"params": list(loss.parameters())}]
    thing = {
        "model": net.state_dict(),
        "criterion": loss.state_dict(),
        "optimizer": adam(
            parts if groups else chain(net.parameters(), loss.parameters())
        ),
    }
    return thing, [names("model+criterion", net, loss)]


def muon() -> tuple[dict[str, Any], Names]:
    """Muon takes the hidden matrices, AdamW the rest."""
    net = nn.Sequential(
        nn.Embedding(11, 6),
        nn.Linear(6, 6),
        nn.LayerNorm(6),
        nn.Linear(6, 6, False),
        nn.Linear(6, 11),
    )
    matrices = {"1.weight", "3.weight"}
    rows = dict(net.named_parameters())
    thing = {
        "model": net.state_dict(),
        "optimizers": [
            adam(
                [rows[name] for name in rows if name in matrices],
                lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            ),
            adam(
                [rows[name] for name in rows if name not in matrices], torch.optim.AdamW
            ),
        ],
    }
    return thing, [
        [f"model.{name}" for name in rows if name in matrices],
        [f"model.{name}" for name in rows if name not in matrices],
    ]


def galore() -> tuple[dict[str, Any], Names]:
    """The moments of matrices have the shape of their projection."""
    net = mlp(4, 8, 3)
    state = adam(net.parameters())
    for number in (0, 2):
        row = state["state"][number]
        row["projector"] = {"rank": 2}
        for field in ("exp_avg", "exp_avg_sq"):
            row[field] = torch.ones(2, row[field].shape[1])
    return {"model": net.state_dict(), "optimizer": state}, [names("model", net)]


def one_that_fits_in_part() -> tuple[dict[str, Any], Names]:
    """The chain fits to the last tensor, a larger model in part."""
    one, two = mlp(4, 8), mlp(8, 4)
    thing = {
        "big": mlp(4, 8, 4, 9).state_dict(),
        "encoder": one.state_dict(),
        "decoder": two.state_dict(),
        "optimizer": adam(chain(one.parameters(), two.parameters())),
    }
    return thing, [names("encoder+decoder", one, two)]


def what_the_other_leaves() -> tuple[dict[str, Any], Names]:
    """The second optimizer could hold either vector of four, if the first did not
    surely hold one.
    """
    rows = {
        name: nn.Parameter(torch.ones(size))
        for name, size in (("a.w", 4), ("b.w", 2), ("c.w", 4))
    }
    thing = {
        "model": {name: row.detach() for name, row in rows.items()},
        "one": adam([rows["b.w"], rows["c.w"]]),
        "two": adam([rows["a.w"]]),
    }
    return thing, [["model.b.w", "model.c.w"], ["model.a.w"]]


def temperature() -> tuple[dict[str, Any], Names]:
    """A temperature of one element is not the bias of the only model that has one."""
    net = mlp(4, 1)
    thing = {
        "net": net.state_dict(),
        "optimizer": adam(net.parameters()),
        "alpha_optimizer": adam([nn.Parameter(torch.zeros(1))]),
    }
    return thing, [names("net", net), [None]]


CASES = {
    "one that fits in part": one_that_fits_in_part,
    "what the other leaves": what_the_other_leaves,
    "temperature": temperature,
    "GAN": lambda: twins("netG netD optimizerG optimizerD"),
    "GAN, words": lambda: twins("generator discriminator optim_g optim_d"),
    "GAN, keys in front": lambda: twins("G D opt_gen opt_disc"),
    "lists": lists,
    "CycleGAN": cyclegan,
    "HiFi-GAN": hifigan,
    "SAC": sac,
    "twin critics": critics,
    "DQN": lambda: copies("policy_net", "target_net"),
    "teacher": lambda: copies("student", "teacher"),
    "average": lambda: copies("model", "model_ema"),
    "ArcFace": lambda: arcface(False),
    "ArcFace, groups": lambda: arcface(True),
    "Muon": muon,
    "GaLore": galore,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("turned", [False, True])
def test_every_parameter_has_its_tensor(
    case: str, turned: bool, tmp_path: Path
) -> None:
    thing, expected = CASES[case]()
    if turned:  # the optimizers before the models, the last one first
        thing = dict(reversed(thing.items()))

    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        found = [
            [
                None if index is None else checkpoint.tensors[index].name
                for index in match.indices
            ]
            for match in Survey(checkpoint).matches
        ]

    whole = [rows for rows in expected if None not in rows]
    chained = turned and case in (
        "CycleGAN",
        "twin critics",
    )  # twins in a chain stand in the order of the file
    for rows in whole:
        assert rows in found or (
            chained
            and sorted(map(str, rows)) in [sorted(map(str, row)) for row in found]
        )
    assert len(found) == len(expected)
    assert sum(None in rows for rows in found) == len(expected) - len(whole)


def test_one_optimizer_of_two_models_that_nothing_tells_apart(tmp_path: Path) -> None:
    one, two = mlp(4, 8, 4), mlp(4, 8, 4)
    thing = {
        "left": one.state_dict(),
        "right": two.state_dict(),
        "optimizer": adam(one.parameters()),
    }
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        (match,) = Survey(checkpoint).matches
        assert match.models == () and set(match.indices) == {None}


def test_many_models_take_little_time(tmp_path: Path) -> None:
    """No search over all subsets of the parts of a file."""
    thing: dict[str, Any] = {
        f"model_{number}": mlp(4, 8, 4).state_dict() for number in range(40)
    }
    thing |= {
        f"optimizer_{number}": adam(
            chain(*(mlp(4, 8, 4).parameters() for _ in range(9)))
        )
        for number in range(20)
    }
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        assert all(match.models == () for match in Survey(checkpoint).matches)
