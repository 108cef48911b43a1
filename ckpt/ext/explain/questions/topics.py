"""Questions in plain words about a file, by what they ask for: a row of the table is a
topic, its words and the part of the file that answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ckpt.ext.explain.asking import is_asking
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.averages import (
    ASKS_OF_DISTANCE,
    of_distance,
    of_no_averages,
    of_own_averages,
)
from ckpt.ext.explain.families.runs import (
    ASKS_OF_MIXED_PRECISION,
    ASKS_OF_UNTRAINED,
    BEGINS_AT,
    counts_statements,
    frozen_statements,
    of_later_starts,
    of_mixed_precision,
    recorded_counters,
)
from ckpt.ext.explain.questions.adapters import (
    ASKS_OF_ADAPTER,
    ASKS_OF_STRENGTH,
    ASKS_TO_TRAIN_ON,
    ASKS_WHETHER_LEARNT,
    of_asked_adapter,
    of_further_training,
    of_learnt_adapter,
    of_strength,
)
from ckpt.ext.explain.questions.cards import (
    ASKS_FOR_PLAIN,
    ASKS_OF_ORDER,
    of_base,
    of_comparing,
    of_contents,
    of_devices,
    of_functions,
    of_intactness,
    of_loading,
    of_merged,
    of_model,
    of_numbers,
    of_order,
    of_outputs,
    of_plain_weights,
    of_safety,
    of_state,
    of_symbols,
    of_ties,
    of_types,
    of_versions,
    of_wrapper,
)
from ckpt.ext.explain.questions.curves import (
    ASKS_OF_COURSE,
    ASKS_OF_GRADIENTS,
    of_course,
    of_gradients,
)
from ckpt.ext.explain.questions.files import (
    ASKS_OF_FILES,
    ASKS_OF_PRIVACY,
    ASKS_WHEN,
    of_files,
    of_privacy,
    of_time,
)
from ckpt.ext.explain.questions.groups import ASKS_OF_GROUPS, of_groups
from ckpt.ext.explain.questions.inputs import (
    of_exports,
    of_head,
    of_inputs,
    of_memory,
    of_values,
)
from ckpt.ext.explain.questions.layers import (
    ASKS_OF_EXPERTS,
    ASKS_OF_LAYERS,
    of_experts,
    of_layers,
)
from ckpt.ext.explain.questions.meanings import of_meaning
from ckpt.ext.explain.questions.measures import (
    ASKS_OF_SETTINGS,
    of_best,
    of_settings_asked,
)
from ckpt.ext.explain.questions.named_absent import (
    ASKS_OF_USE,
    LACKS,
    of_absent_names,
    of_other_keys,
    of_recorded_parts,
)
from ckpt.ext.explain.questions.named_parts import (
    ASKS_OF_TRAINING,
    ASKS_TO_RENAME,
    ASKS_WHETHER_THERE,
    of_presence,
    of_renaming,
    of_trained_part,
)
from ckpt.ext.explain.questions.numbers import ASKS_OF_NUMBERS, of_numbers_asked
from ckpt.ext.explain.questions.plans import (
    ASKS_OF_REST,
    ASKS_WHY_ENDED,
    of_end,
    of_remaining,
)
from ckpt.ext.explain.questions.ranks import (
    ASKS_FOR_ONE_FILE,
    ASKS_OF_RANKS,
    of_one_file,
    of_ranks,
)
from ckpt.ext.explain.questions.transformers import (
    ASKS_FOR_TRANSFORMERS,
    of_transformers,
)
from ckpt.model.rows import NamedTuple


class Topic(NamedTuple):
    """A thing that a question may be about.

    `is_first` is true where words of other topics stand in such questions as well, so
    that this one decides. `is_last` is true for words of nearly any question, which
    count where nothing else was named.
    """

    words: re.Pattern[str]
    answer: Callable[[str, Case], Iterator[Statement]]
    is_first: bool = False
    is_last: bool = False


def _topic(
    words: str,
    answer: Callable[[str, Case], Iterator[Statement]],
    *,
    is_first: bool = False,
    is_last: bool = False,
) -> Topic:
    return Topic(re.compile(f"(?i){words}"), answer, is_first, is_last)


_FILE = r"(?:files?|checkpoints?|ckpts?|weights?|models?|pth?|\.ckpt|\.pth?|states?)"


def _of_averages(text: str, case: Case) -> Iterator[Statement]:
    del text
    rows = list(of_own_averages(case))
    yield from rows or of_no_averages(case)


def _of_later(text: str, case: Case) -> Iterator[Statement]:
    # A question how to begin there is no complaint that a run does.
    asks_how = re.search(r"(?i)\bhow (?:do|to|can|should|would)\b", text)
    if asks_how and not re.search(r"(?i)\bwhy\b|\balways\b", text):
        return
    rows = list(of_later_starts(text, case))
    yield from rows
    if not rows and not recorded_counters(case):
        yield from counts_statements(case)


_TOPICS = (
    _topic(ASKS_TO_RENAME, of_renaming, is_first=True),
    _topic(ASKS_OF_STRENGTH, of_strength, is_first=True),
    _topic(ASKS_WHETHER_LEARNT, of_learnt_adapter, is_first=True),
    _topic(ASKS_OF_GROUPS, of_groups, is_first=True),
    _topic(ASKS_OF_EXPERTS, of_experts, is_first=True),
    _topic(ASKS_OF_FILES, of_files, is_first=True),
    _topic(ASKS_WHEN, of_time, is_first=True),
    _topic(ASKS_OF_PRIVACY, of_privacy),
    _topic(ASKS_OF_LAYERS, of_layers),
    _topic(ASKS_OF_RANKS, of_ranks, is_first=True),
    _topic(ASKS_FOR_ONE_FILE, of_one_file),
    _topic(ASKS_OF_MIXED_PRECISION, of_mixed_precision, is_first=True),
    _topic(ASKS_OF_DISTANCE, of_distance, is_first=True),
    _topic(ASKS_OF_ORDER, of_order, is_first=True),
    _topic(ASKS_FOR_PLAIN, of_plain_weights),
    _topic(ASKS_OF_GRADIENTS, of_gradients, is_first=True),
    _topic(ASKS_WHY_ENDED, of_end, is_first=True),
    _topic(ASKS_OF_REST, of_remaining, is_first=True),
    _topic(ASKS_OF_COURSE, of_course, is_first=True),
    _topic(LACKS, of_absent_names, is_first=True),
    _topic(ASKS_OF_USE, of_other_keys, is_first=True),
    _topic(
        r"\b(?:space )?(?:characters?|symbols?|letters?|alphabet|charset|phonemes?)\b"
        r"[^\n]{0,80}\b(?:includ\w{1,4}|contain\w{0,3}|support\w{0,3}|has|have|know\w?"
        r"|recogni[sz]e\w?|list)\b|\b(?:includ\w{1,4}|contain\w{0,3}|support\w{0,3}|has"
        r"|have|know\w?|recogni[sz]e\w?|which|what|how many)\b[^\n]{0,40}\b(?:space )?"
        r"(?:characters?|symbols?|letters?|alphabet|charset|phonemes?)\b",
        of_symbols,
        is_first=True,
    ),
    _topic(
        r"\b(?:get|extract|separate|take|find|load|use|where|which|updated)\b",
        of_recorded_parts,
        is_first=True,
    ),
    _topic(ASKS_OF_NUMBERS, of_numbers_asked, is_first=True),
    _topic(ASKS_FOR_TRANSFORMERS, of_transformers, is_first=True),
    _topic(ASKS_TO_TRAIN_ON, of_further_training, is_first=True),
    _topic(ASKS_OF_TRAINING, of_trained_part, is_first=True),
    _topic(
        rf"{BEGINS_AT}[1-9]",
        _of_later,
        is_first=True,
    ),
    _topic(
        r"\b(?:input|image|picture|observation)s? (?:size|shape|dim\w*|resolution"
        r"|channels?|features?|length)\b|\bhow many (?:input )?channels\b"
        r"|\bin_channels\b"
        r"|\b(?:latents?|noise|z) (?:vectors?|dim\w*|size|shape|space)\b"
        r"|\b(?:size|dim\w*|length) of (?:the )?(?:latents?|noise|z|inputs?)\b"
        r"|\bsequence length\b|\bcontext (?:length|size|window)\b"
        r"|\b(?:what|which) (?:kind of )?inputs?\b|输入尺寸|输入大小",
        of_inputs,
        is_first=True,
    ),
    _topic(
        r"\bnans?\b|\binfs?\b|\b(?:all|only|just) (?:zeros?|0s?)\b|\bexplod\w{1,3}\b"
        r"|\bdead (?:neurons?|channels?|units?|relus?|filters?|kernels?)\b",
        of_values,
    ),
    _topic(
        r"\b(?:how much|enough|needed|required|requires?|needs?|fit\w{0,2} in\w{0,2})"
        r"\b[^\n]{0,40}\b(?:memory|ram|vram)\b|\b(?:memory|ram|vram)\b[^\n]{0,40}"
        r"\b(?:need\w{0,3}|requir\w{1,8}|enough)\b|显存|内存",
        of_memory,
        is_first=True,
    ),
    _topic(
        r"\b(?:onnx|tensorrt|trt|core ?ml|tflite|openvino|torch ?script|ncnn)\b",
        of_exports,
    ),
    _topic(
        r"\b(?:remov\w{1,3}|drop\w{0,4}|without|delet\w{1,3}|strip\w{0,4}|cut\w{0,4}"
        r"|exclud\w{1,3}|discard\w{0,3}|replac\w{1,3}|get rid of)\b[^\n]{0,40}"
        r"\b(?:heads?|classifier|fc|(?:last|final|output|classification) layers?)\b"
        r"|\b(?:different|other|another|new|more|fewer|change the) (?:number of )?"
        r"(?:classes|labels|categories|outputs)\b",
        of_head,
        is_first=True,
    ),
    _topic(
        r"\b(?:tied|tie|tying|shared?)\b[^\n]{0,60}\b(?:embed\w*|lm_head|head"
        r"|weights?)\b"
        r"|\b(?:embed\w*|lm_head)\b[^\n]{0,60}\b(?:tied|tie|tying|shared?|same)\b",
        of_ties,
        is_first=True,
    ),
    _topic(
        r"\b(?:activations?(?: functions?)?|relu|gelu|silu|dropout layers?|pooling"
        r"|forward (?:pass|function|method)|loss function|pre-?process\w{1,4}"
        r"|normali[sz]ation (?:mean|std|values))\b[^\n]{0,60}\b(?:used?|does|is|are"
        r"|model"
        r"|network)\b|\b(?:which|what) (?:activation|loss function|pre-?processing)\b"
        r"|激活函数",
        of_functions,
    ),
    _topic(
        r"\b(?:lora|adapters?|peft|qlora)\b[^\n]{0,80}\b(?:merged?|fused?|baked"
        r"|combined"
        r"|included)\b|\b(?:merged?|fused?|combined)\b[^\n]{0,80}\b(?:lora|adapters?"
        r"|peft|base model|original model)\b|\bmerge_and_unload\b|\b(?:full|whole"
        r"|complete) model\b[^\n]{0,60}\b(?:lora|adapter)|合并[^\n]{0,20}lora",
        of_merged,
        is_first=True,
    ),
    _topic(
        r"\bbest(?:[ _-]?(?:performing|model|checkpoint|epoch|weights?))?\b[^\n]{0,120}"
        r"\b(?:last|final|latest)\b|\b(?:last|final|latest)\b[^\n]{0,120}\bbest\b"
        r"|\bearly[ -]?stop\w{0,4}\b"
        r"|\b(?:is|hold\w*|contain\w*|sav\w+) (?:this |it |the )?best\b|\bbest (?:model"
        r"|checkpoint|epoch|one)\b|\b(?:which|what)\b[^\n]{0,60}\b(?:accuracy|scores?"
        r"|metrics?|mAP|performance|fitness|val\w*[ _]loss)\b|最[好佳]",
        of_best,
        is_first=True,
    ),
    _topic(
        r"\bwhat(?:'s| is| are| does| do)\b[^\n]{0,40}\b\w+(?:[._]\w+)+"
        r"|[`'\"]?\b\w+(?:[._]\w+)+\b[`'\"]?[^\n]{0,60}\b(?:mean\w{0,3}|stands? for"
        r"|used for|refers? to|purpose)\b|\b(?:explain|clarify|understand) what\b"
        r"[^\n]{0,40}\b\w+(?:[._]\w+)+"
        r"|\b(?:key|tensor|entry|parameter|buffer)\b[^\n]{0,40}\bmean\w{0,3}\b"
        r"|\bwhat (?:is|are|does) (?:the )?[`'\"]?\w+[`'\"]?(?: for| mean)?\s*\??$",
        of_meaning,
        is_first=True,
    ),
    _topic(
        rf"{ASKS_OF_ADAPTER}|\b(?:lora_r|network[_ ]dim)\b|\b(?:lora|adapters?)\b"
        r"[^\n]{0,80}\blayers?\b|\bwithout (?:the |its |a )?base(?:[ _-]?model)?\b",
        of_asked_adapter,
    ),
    _topic(
        r"\b(?:which|what|the) (?:is the )?base(?:[ _-]?(?:model|checkpoint))?\b"
        r"|\bbase[ _-]?model\b|\b(?:fine-?tuned|trained|initiali[sz]ed|start\w*) from\b"
        r"(?! (?:the )?(?:epoch|step|iter|zero|\d))"
        r"|\bpre-?trained or\b|\bfrom scratch\b"
        r"|\btrained (?:on top of|against|for which)\b|\b(?:which|what) (?:sd|sdxl|flux"
        r"|llama|version) ?(?:model|version)?\b[^\n]{0,40}\btrained\b|基座|底模",
        of_base,
    ),
    _topic(
        r"\boptimi[sz]ers?\b|\bschedulers?\b|\b(?:enough|needed|everything)\b[^\n]{0,40}"
        r"\b(?:continu\w{1,4}|resum\w{1,4}|train\w{0,4} further)\b"
        r"|\b(?:resum\w{1,4}|continu\w{1,4} (?:the )?train\w*)\b"
        r"[^\n]{0,60}\b(?:from|with) (?:this|it|the)\b|\bcan (?:i|it|we|this) (?:be )?"
        r"(?:resum\w*|continu\w*)|优化器|断点|继续训|恢复训|接着训",
        of_state,
    ),
    _topic(
        r"\b(?:which|what) (?:layers?|parts?|weights|param\w{0,7}"
        r"|modules?)\b[^\n]{0,40}"
        r"\b(?:train|updat|tun|chang|learn)ed\b"
        r"|\b(?:frozen|froze|freez\w{1,3}|trainable|requires_grad)\b"
        r"|\bfix(?:ed|es|ing)?\b[^\n]{0,30}\b(?:weights?|layers?|embeddings?"
        r"|param\w{0,7}|backbone|encoder|blocks?)\b|\b(?:train|updat"
        r"|chang|tun)(?:ed|e)\b[^\n]{0,60}\b(?:or|vs\.?|versus)\b[^\n]{0,30}\b(?:fixed"
        r"|frozen|kept|unchanged|not)\b|\b(?:backbone|encoder|layers?|embeddings?|head"
        r"|weights?)\b[^\n]{0,40}\b(?:updat|chang|mov|learn"
        r"|tun)ed\b[^\n]{0,40}\b(?:dur\w+"
        rf"|train\w*|fine-?tun\w*)|冻结|{ASKS_OF_UNTRAINED}",
        lambda text, case: frozen_statements(case),
    ),
    _topic(
        r"\b(?:two|both|2|these) (?:two |\w+ )?(?:checkpoints|files|models"
        r"|ckpts?)"
        r"\b|\bcompar\w{1,4}\b|\bsame (?:model|weights?|as)\b|\bidentical\b"
        r"|\bdifferen\w{1,3} (?:between|from)\b|\bdiffers?\b",
        of_comparing,
    ),
    _topic(
        r"\b(?:\w{1,30}[_-])?ema(?:[_-]\w{1,30})?\b|\b(?:moving|weight|averaged?) "
        r"averages?\b|\baveraged (?:weights|model)\b|滑动平均",
        _of_averages,
    ),
    _topic(
        r"\b(?:repair\w{0,3}|recover\w{0,4}|corrupt\w{0,4}|damag\w{1,3}|broken|truncat\w{1,3}|incomplete|complete"
        r"|intact|integrity|valid|checksum)\b|损坏|完整",
        of_intactness,
    ),
    _topic(
        r"\b(?:safe|unsafe|malicious|virus|malware|trust\w{0,5}|dangerous|security"
        r"|arbitrary code|pickle scan\w*)\b|安全|病毒",
        of_safety,
    ),
    _topic(
        r"\b(?:without|no) (?:a |an )?(?:gpu|cuda)\b|\bcpu\b|\bwhich (?:gpu|device)\b"
        r"|\bmap_location\b|\b(?:gpu|cuda|device)\b[^\n]{0,40}\b(?:saved|load\w*"
        r"|stored)\b"
        r"|\bmps\b|没有(?:显卡|GPU)",
        of_devices,
    ),
    _topic(
        r"\b(?:f(?:loat|p)[ -]?(?:16|32|8)|bf(?:loat)?16|half|precision|dtypes?|int8"
        r"|4-?bit|8-?bit|quanti[sz]ed?)\b|半精度|精度",
        of_types,
    ),
    _topic(
        r"\b(?:pytorch|torch|transformers|lightning|library|package)[ _-]?versions?\b"
        r"|\bversions? of (?:py)?torch\b|\b(?:which|what|old\w*|newer"
        r"|another) versions?\b"
        r"|\b(?:py)?torch ?(?:==|<|>)?=? ?\d\.\d|\bcompatib\w*|\b(?:old\w*"
        r"|newer) (?:py)?torch\b|哪个版本",
        of_versions,
    ),
    _topic(
        r"\b(?:data ?parallel|ddp|multi-?gpu|multiple gpus|module\.)",
        of_wrapper,
    ),
    _topic(
        r"\b(?:how many|number of|count|total) (?:\w+ )?(?:param\w{0,7}|tensors"
        r"|weights)\b|\bparam\w{0,7} (?:count|number)\b"
        r"|\bhow (?:big|large) is (?:the|this) (?:model|network)\b"
        r"|\bsize in param\w{0,7}\b|\b(?:which|what) (?:layers?|tensors?"
        r"|part)\b[^\n]{0,40}"
        r"\b(?:most|largest|biggest|heaviest)\b|参数量|多少参数",
        of_numbers,
        is_first=True,
    ),
    _topic(
        r"\bconfig\w{0,9}\b|\barchitectures?\b|\b(?:is|was) (?:it|this)(?: model)? "
        r"(?:an? |really )*(?:res\w*net\w*|vit|bert|gpt\w{0,3}|yolo\w{0,4}|u-?net|swin"
        r"|llama|transformer|lstm|cnn)\b|\b(?:which|what) (?:kind of "
        r"|type of |sort of"
        r" )?(?:model|network|backbone|class|variant|size)\b|\bmodel (?:type|class|name"
        r"|structure|definition|size|variant)\b|\bhidden[ _]?(?:size|dim)\b|\bhow many "
        r"(?:layers?|blocks?|heads?)\b|\bnumber of (?:layers|blocks|heads)\b|结构|配置",
        of_model,
    ),
    _topic(
        r"\boutput (?:dim\w*|size|channels?|features?|shape|classes)\b"
        r"|\bhow many (?:outputs?"
        r"|classes|categories|labels|actions|speakers|keypoints|tokens)\b|\bnumber of "
        r"(?:outputs?|classes|categories|labels|actions|speakers|keypoints)\b|类别",
        of_outputs,
    ),
    _topic(
        r"\b(?:which|what|at what|how many) (?:training )?(?:epochs?|steps?|iter\w*)\b"
        r"|\b(?:epochs?|iterations?|training steps?) (?:numbers? )?(?:of|for|in) (?:the"
        r"|this|your|these|my)\b|\bnumber of (?:training )?(?:epochs?|steps?|iter\w*)"
        r"|\bhow (?:long|far)\b[^\n]{0,40}\btrain\w*|\btrained for\b|哪个epoch|多少轮",
        lambda text, case: counts_statements(case),
    ),
    _topic(ASKS_OF_SETTINGS, of_settings_asked),
    _topic(ASKS_WHETHER_THERE, of_presence),
    _topic(
        r"\b(?:two|2|both|several|multiple) (?:copies|sets|versions) of\b|\btwice\b"
        rf"|\b(?:inside|contents?|contains?|consists?|holds?|stored|structure|keys)\b"
        rf"|\bwhat(?:'s| is| are)? (?:in|saved|this|the)\b[^\n]{{0,40}}\b{_FILE}\b"
        r"|\bwhich part\b|\bin (?:here|there)\b|里面|包含|内容",
        of_contents,
        is_last=True,
    ),
    _topic(
        rf"\b(?:load|open|read|import|use|initiali[sz]e|run|test|infer\w*|evaluat\w*"
        rf"|predict\w*)\b[^\n]{{0,80}}\b(?:{_FILE}|it|this|that|them)\b|怎么(?:用|加载|读)|如何加载",
        of_loading,
        is_last=True,
    ),
)


def asks_of_topic(text: str, *, first: bool = False) -> bool:
    """Tell whether a short text asks for something that a file may say of itself."""
    return is_asking(text) and any(
        topic.words.search(text) for topic in _TOPICS if topic.is_first or not first
    )


def of_topics(text: str, case: Case, *, first: bool = False) -> Iterator[Statement]:
    """Answer a question by the first topics that it names and that the file has
    something to say to.
    """
    if not is_asking(text):
        return
    # A topic whose part has nothing to say of this file leaves the room to the next.
    told = 0
    # Two topics may say one thing: the ends of a model, its settings.
    said: list[Statement] = []
    for topic in _TOPICS:
        if topic.is_first is not first or topic.words.search(text) is None:
            continue
        if topic.is_last and told:
            return
        rows = [row for row in topic.answer(text, case) if row not in said]
        yield from rows
        said += rows
        told += bool(rows)
        if told == (1 if first else _MOST):
            return


_MOST = 2
"""Topics of a question that are answered: the first ones say it most exactly."""
