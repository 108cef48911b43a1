"""The settings of an adapter: `adapter_config.json` of PEFT, or what diffusers notes in
the metadata of safetensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from ckpt.bytes.location import locate, read_file
from ckpt.model.errors import UnsupportedError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.text import Json, show
from ckpt.surface.api.opening import NAMELESS

CONFIG = "adapter_config.json"
_NOTED = "lora_adapter_metadata"
"""The key of the metadata under which diffusers writes the settings of each part of a
pipeline.
"""
_METHODS = ("LORA", "TRAINABLE_TOKENS")
_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that subtract the first B @ A from the weights of the base, so that
the base is another one.
"""
_VARIANTS = {
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "aLoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "layer_replication": "layer replication",
}
"""Key of the settings -> the variant of LoRA, whose layers are not base + scale * B @
A.
"""


_FLAGS = ("use_rslora", "use_dora", "fan_in_fan_out")
"""The settings that are true or false. PEFT takes any text for true, also "false"."""


class Settings:
    """The settings that decide what is added to which tensor."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self.values = values
        self._patterns: dict[str, Patterns] = {}

    def text(self, key: str) -> str | None:
        """A setting that is text."""
        value = self.values.get(key)
        return value if isinstance(value, str) and value else None

    def flag(self, key: str) -> bool:
        """A setting that is true or false, or 1 or 0. Others are refused before."""
        return bool(self.values.get(key))

    @property
    def rank(self) -> float | None:
        """The rank of most layers."""
        return number_in(self.values.get("r"))

    @property
    def alpha(self) -> float | None:
        """The alpha of most layers."""
        return number_in(self.values.get("lora_alpha"))

    @property
    def is_from_peft(self) -> bool:
        """Tell whether PEFT wrote the settings: it lays out its tensors in one way."""
        return "peft_type" in self.values

    @property
    def targets(self) -> list[str]:
        """The ends of the names of the parameters that are changed directly."""
        listed = self.values.get("target_parameters")
        return list(listed_texts(listed)) if isinstance(listed, list) else []

    @cached_property
    def saved_modules(self) -> set[str]:
        """The modules that were trained as a whole."""
        listed = self.values.get("modules_to_save")
        return set(listed_texts(listed)) if isinstance(listed, list) else set()

    def rank_of(self, module: str) -> float | None:
        """The rank of a layer."""
        return self._pattern_value("rank_pattern", module, self.rank)

    def scale_of(self, module: str, rank: int) -> float | None:
        """The factor of B @ A for a layer of this rank, or None where no alpha is
        recorded.
        """
        alpha = self._pattern_value("alpha_pattern", module, self.alpha)
        # rsLoRA divides by the root of the rank.
        if alpha is None or rank < 1:
            return None
        return alpha / math.sqrt(rank) if self.flag("use_rslora") else alpha / rank

    def _pattern_value(
        self,
        key: str,
        module: str,
        usual: float | None,
    ) -> float | None:
        values = self.values.get(key)
        if not isinstance(values, dict) or not values:
            return usual
        if key not in self._patterns:
            self._patterns[key] = Patterns(key, values)
        found = self._patterns[key].first_at_end(module)
        return usual if found is None else number_in(values[found])

    def token_indices(self, module: str) -> list[int] | None:
        """The rows of an embedding that are trained, or None where they are not
        recorded.
        """
        # TrainableTokensModel has a list of its own; LoRA notes the rows by module.
        values = self.values
        noted = values.get("trainable_token_indices", values.get("token_indices"))
        if isinstance(noted, dict):
            found = Patterns("trainable_token_indices", noted).first_at_end(module)
            noted = None if found is None else noted[found]
        if not isinstance(noted, list):
            return None
        # `True` is an int in Python, and no row.
        return [row for row in noted if type(row) is int]


def number_in(value: Json) -> float | None:
    """A setting as a number, or None for what is none."""
    # JSON's true is a number in Python.
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_end(pattern: str, module: str) -> bool:
    """Tell whether a pattern of PEFT is the end of the name of a module: text, or a
    regular expression.

    One that is not known matches as text alone.
    """
    if module == pattern or module.endswith(f".{pattern}"):
        return True
    # A pattern of words and dots matches as text: `.` for any letter is not meant.
    if _PLAIN.fullmatch(pattern) or not is_known(pattern):
        return False
    # An expression may begin at the name itself, or behind any of its dots.
    begins = {0} | {place + 1 for place, letter in enumerate(module) if letter == "."}
    ends, _ = _match_choices(_TOKEN.findall(pattern), 0, module, begins)
    return len(module) in ends


class Patterns:
    """The patterns of a setting. The first one that is the end of a name counts."""

    def __init__(self, key: str, patterns: Iterable[str]) -> None:
        self._key = key
        self._places = {pattern: place for place, pattern in enumerate(patterns)}
        self._names = list(self._places)
        # Names are looked up; only expressions are tried, one by one.
        self._expressions: list[int] = []
        for place, pattern in enumerate(self._names):
            if not _PLAIN.fullmatch(pattern):
                self._expressions.append(place)
        self._left = _EVALUATED

    def first_at_end(self, module: str) -> str | None:
        """Return the first pattern that is the end of the name of a module, or None.

        Raises UnsupportedError for an expression that is not evaluated, and for too
        many of them.
        """
        ends = [module, *_ends_behind_dots(module)]
        known = [self._places[end] for end in ends if end in self._places]
        first = min(known, default=len(self._names))
        # An expression that stands before the first name counts before it.
        for place in self._expressions:
            if place >= first:
                break
            pattern = self._names[place]
            self._refuse_expression(pattern)
            if is_end(pattern, module):
                return pattern
        return self._names[first] if first < len(self._names) else None

    def _refuse_expression(self, pattern: str) -> None:
        hint = "names of layers in its place"
        if not is_known(pattern):
            problem = (
                f"{self._key} of {CONFIG} has {show(pattern, 60)}, an expression that "
                "is not evaluated"
            )
            raise UnsupportedError(problem, hint=hint)
        # Each try costs: an expression for each of many layers would take hours.
        self._left -= 1
        if self._left < 0:
            problem = (
                f"{self._key} of {CONFIG} has {len(self._expressions):,} expressions, "
                "too many to try for each layer"
            )
            raise UnsupportedError(problem, hint=hint)


def _ends_behind_dots(module: str) -> Iterator[str]:
    """Yield what follows each dot of a name."""
    place = module.find(".")
    while place >= 0:
        yield module[place + 1 :]
        place = module.find(".", place + 1)


_EVALUATED = 100_000
"""The most times that expressions of a setting are tried: each takes up to a
millisecond, and adapters have a few of them.
"""
_PLAIN = re.compile(r"[\w.]*")
"""A pattern that is text alone."""
_LONGEST = 200
_TOKEN = re.compile(r"\(\?:|[()|^$]|(?:[\w.:]|\\[.d]|\[[\w-]+\])[+*?]?")
"""Parts of the expressions that names of layers need: a letter of a kind, perhaps
repeated, a group, a choice. `re` would take hours for some that a stranger writes.
"""


def is_known(pattern: str) -> bool:
    """Tell whether an expression is one that is evaluated."""
    if _PLAIN.fullmatch(pattern):
        return True
    # Only if the tokens are all of it: anything else has a meaning that is not known.
    if len(pattern) > _LONGEST or "".join(_TOKEN.findall(pattern)) != pattern:
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _match_choices(
    tokens: list[str],
    first: int,
    text: str,
    begins: set[int],
) -> tuple[set[int], int]:
    """Return where the choices from a token on can end in a text, and the token behind
    them: one that closes their group, or none.

    All places are followed at once, so that each token takes one look at the text.
    """
    ends: set[int] = set()
    places, index = begins, first
    while index < len(tokens) and tokens[index] != ")":
        token = tokens[index]
        if token == "|":
            ends |= places
            places = begins
        elif token in ("(", "(?:"):
            # `index` comes back at the bracket that closes the group.
            places, index = _match_choices(tokens, index + 1, text, places)
        elif token in ("^", "$"):
            places = places & {0 if token == "^" else len(text)}
        else:
            places = _match_letters(token, text, places)
        index += 1
    return ends | places, index


def _match_letters(token: str, text: str, places: set[int]) -> set[int]:
    """Return where letters of a kind can end that begin in some places."""
    has_sign = len(token) > 1 and token[-1] in "+*?"
    letter = re.compile(token[:-1] if has_sign else token)
    sign = token[-1] if has_sign else ""
    fits = [letter.match(each) is not None for each in text]
    ends = {place + 1 for place in places if place < len(text) and fits[place]}
    if sign in ("*", "+"):
        # From left to right: each repeated letter may begin behind the one before.
        for place in range(min(ends, default=len(text)), len(text)):
            if place in ends and fits[place]:
                ends.add(place + 1)
    return ends | places if sign in ("*", "?") else ends


def settings_at(path: str, limits: Limits) -> Settings | None:
    """Return the settings beside an adapter, or None where it has none. Raises
    UnreadableError, UnsupportedError.
    """
    # Nothing lies beside bytes.
    if path in NAMELESS:
        return None
    place = locate(path)
    folder = place if place.is_folder() else place.parent()
    child = folder.child(CONFIG, "cache")
    if not child.is_file():
        return None
    parsed = parse_json(read_file(child, limits, CONFIG), CONFIG, Budget(limits))
    settings = Settings(parsed if isinstance(parsed, dict) else {})
    refuse_settings(settings, path)
    return settings


def noted_settings(metadata: Mapping[str, str], limits: Limits) -> dict[str, Settings]:
    """Return the settings that diffusers notes in the metadata: the part of the
    pipeline -> its settings. A model that was saved by itself has the part ``.
    """
    text = metadata.get(_NOTED)
    if text is None:
        return {}
    parsed = parse_json(text.encode(), _NOTED, Budget(limits))
    parts: dict[str, dict[str, Json]] = {}
    for key, value in (parsed if isinstance(parsed, dict) else {}).items():
        component, dot, name = key.partition(".")
        if not dot:
            component, name = "", key
        parts.setdefault(component, {})[name] = value
    return {component: Settings(values) for component, values in parts.items()}


def refuse_settings(settings: Settings, path: str) -> None:
    """Raise UnsupportedError for a method that is not LoRA, or for a base that the
    adapter changed itself.
    """
    method = settings.values.get("peft_type")
    if method is not None and method not in _METHODS:
        named = show(str(method), 40)
        problem = f"{CONFIG} says peft_type {named}, and only LoRA is merged"
        raise UnsupportedError(problem, path=path, hint="merge_and_unload() of PEFT")
    for key, variant in _VARIANTS.items():
        if settings.values.get(key):
            raise UnsupportedError(
                f"{CONFIG} says {key}: {variant} is not merged", path=path
            )
    # PEFT takes any text for true: "false" would be merged as true.
    for key in _FLAGS:
        value = settings.values.get(key)
        if value is not None and value not in (True, False):
            problem = f"{CONFIG} says {key}: {show(str(value), 40)}"
            raise UnsupportedError(f"{problem}, which is not true or false", path=path)
    # Such adapters are the difference to a base that is stored nowhere.
    start = settings.text("init_lora_weights") or ""
    if start.lower().startswith(_CHANGING):
        problem = (
            f"init_lora_weights is {show(start, 40)}, which changed the weights of the "
            "base before training"
        )
        hint = "save it in PEFT with path_initial_model_for_weight_conversion"
        raise UnsupportedError(
            f"{problem}: added to BASE, it gives another model",
            path=path,
            hint=hint,
        )


def listed_texts(value: Json) -> Sequence[str]:
    """The texts of a setting that is a text or a list of texts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    return [text for text in value if isinstance(text, str)]
