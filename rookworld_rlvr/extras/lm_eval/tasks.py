"""What the YAML files name: the prompts of a suite, and the suite's own values of each answer."""

from __future__ import annotations

from functools import cache
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from transformers import AutoConfig

from ...engine import EngineArguments
from ...evaluation.registry import SuiteArguments
from ...evaluation.suite import PromptSuite, SuiteUnavailableError, open_suites
from ...models.decoding import ANSWER_TOKENS
from ...models.loading import answer_room, load_tokenizer

ARGUMENTS = ("suite_rows", "suite_seed", "openings_file")
"""What `--metadata` may hold of `rookworld evaluate`'s keys."""


@cache
def _opened(name: str, *arguments: Any) -> PromptSuite[Any]:
    args = SuiteArguments(suites=[name], **dict(zip(ARGUMENTS, arguments, strict=True)))
    suites, left_out = open_suites(args, EngineArguments())
    for why in left_out.values():
        raise SuiteUnavailableError(why)
    (suite,) = suites
    assert isinstance(suite, PromptSuite)
    return suite


def prompts(
    suite: str,
    suite_rows: int = SuiteArguments.suite_rows,
    suite_seed: int = SuiteArguments.suite_seed,
    openings_file: str | None = None,
    pretrained: str = "",
    **more: Any,
) -> dict[str, Dataset]:
    """The suite's items as a data set.

    Args:
        suite: Its name; comes from the YAML file.
        suite_rows: See `SuiteArguments`.
        suite_seed: See `SuiteArguments`.
        openings_file: See `SuiteArguments`.
        pretrained: The model, of which a prompt and its answer may need all positions.
        more: The harness's other arguments of the model, and further metadata.
    """
    arguments = dict(zip(ARGUMENTS, (suite_rows, suite_seed, openings_file), strict=True))
    opened = _opened(suite, *arguments.values())
    asked = zip(opened.items, opened.prompts(), strict=True)
    docs: list[dict[str, Any]] = [
        {"item": i, "prompt": p, "suite": suite, **arguments} for i, p in asked
    ]
    if pretrained:
        config, tokenizer = AutoConfig.from_pretrained(pretrained), load_tokenizer(pretrained)
        for doc in docs:
            doc["room"] = answer_room(config, tokenizer, [doc["prompt"]], ANSWER_TOKENS)
    return {"test": Dataset.from_list(docs)}


def values(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The suite's metrics of one answer, those that apply to it."""
    suite = _opened(doc["suite"], *(doc[key] for key in ARGUMENTS))
    judged = suite.judge(suite.items[doc["item"]], results[0])
    return {metric: float(value) for metric, value in judged.items()}


class SuiteTask(ConfigurableTask):
    """A suite as the harness's task; an answer may have the tokens that the model has positions for.

    The harness would cut the beginning of a long prompt instead, to make room for the longest answer.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={key: each for key, each in config.items() if key != "class"})

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> Instance:
        """See `ConfigurableTask`."""
        request = super().construct_requests(doc, ctx, **kwargs)
        how = request.arguments[1]
        how["max_gen_toks"] = min(how["max_gen_toks"], doc.get("room", ANSWER_TOKENS))
        return request
