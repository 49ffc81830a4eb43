"""Our trainer as a model of lm-evaluation-harness: each kind of question goes to it in portions."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from runbook.core.errors import ParamsError
from runbook.phases.p06_evaluation.phase import num_processes
from runbook.phases.trained_model import ask_trainer
from runbook.plan_file.schema import PhasePlan
from runbook.planning import FULL
from runbook.tokens.tokenizer import load_tokenizer

PORTION = 4096
"""Texts scored by one start of the trainer; between them there is something to say of the progress."""
PROMPTS = 64
"""The same for texts that are written."""
MAX_NEW_TOKENS = 256
"""Of a task that does not say; the harness's own `hf` model has the same."""


class TrainerModel(TemplateLM):  # type: ignore[misc]
    """The newest whole checkpoint of a run, computed in float32 in the layout of its training."""

    def __init__(self, folder: Path, spec: PhasePlan, tokenizer: str) -> None:
        super().__init__()
        if spec.sampling.end_of_document < 0:
            raise ParamsError(
                f"The tokenizer {tokenizer} has no end of document, with which a text begins here."
            )
        self._folder = folder
        self._spec = spec
        # A literal <|endoftext|> is the token, as `transformers` reads it for an exported folder.
        self._tokenizer = load_tokenizer(tokenizer, special_tokens=True)
        self.iteration = 0
        """Of the checkpoint, once it has answered."""

    @property
    def eot_token_id(self) -> int:
        """The end of a document, which also begins one."""
        return self._spec.sampling.end_of_document

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **others: Any
    ) -> list[int]:
        """The ids of a text, none added."""
        return list(self._tokenizer.encode(string))

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], **others: Any
    ) -> list[tuple[float, bool]]:
        return self._log_likelihoods([(context, more) for _, context, more in requests])

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Of whole texts, cut into windows that do not overlap."""
        length = self._spec.model.positions
        texts = [self.tok_encode(one.args[0]) for one in requests]
        windows = [
            list(
                map(
                    make_disjoint_window,
                    get_rolling_token_windows(ids, self.prefix_token_id, length, 1),
                )
            )
            for ids in texts
        ]
        answers = iter(self._log_likelihoods(list(itertools.chain(*windows))))
        return [
            sum(likelihood for likelihood, _ in itertools.islice(answers, len(own)))
            for own in windows
        ]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context until one of its words to stop at."""
        written: dict[int, str] = {}
        end = self._tokenizer.judge.piece(self.eot_token_id)
        for wish, numbers in _alike([one.args[1] for one in requests]):
            known = normalize_gen_kwargs(wish, MAX_NEW_TOKENS)
            stops = handle_stop_sequences(known.get("until"), eos=end)
            tokens = known["max_gen_toks"]
            if (room := self._spec.model.positions - tokens) <= 0:
                raise ParamsError(
                    f"A task asks for {tokens} new tokens; the model has {self._spec.model.positions}."
                )
            ending = [
                number for number in range(self._spec.model.vocabulary) if self._ends(number, stops)
            ]
            choice = {
                "temperature": float(known.get("temperature") or 0.0)
                if known.get("do_sample")
                else 0.0
            }
            for portion in _portions(numbers, PROMPTS, "texts written"):
                prompts = [
                    self.tok_encode(requests[number].args[0])[-room:] or [self.eot_token_id]
                    for number in portion
                ]
                wanted = {
                    "prompts": prompts,
                    "tokens": tokens,
                    "stops": ending,
                    "exact": True,
                    **choice,
                }
                answer = ask_trainer("sample", self._folder, FULL, wanted)
                self.iteration = answer["iteration"]
                texts = map(self._tokenizer.decode, answer["ids"])
                made = (postprocess_generated_text(text, stops, None) for text in texts)
                written |= dict(zip(portion, made, strict=True))
        return [written[number] for number in range(len(requests))]

    def _ends(self, number: int, stops: Sequence[str]) -> bool:
        """Whether a token alone has a word to stop at, so that nothing after it is kept."""
        text = self._tokenizer.decode((number,))
        return any(stop in text for stop in stops)

    def _log_likelihoods(
        self, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = []
        for portion in _portions(pairs, PORTION, "texts scored"):
            answer = ask_trainer(
                "score", self._folder, FULL, {"pairs": portion}, num_processes(self._spec)
            )
            self.iteration = answer["iteration"]
            found += [
                (likelihood, is_likeliest) for likelihood, is_likeliest in answer["answers"][0]
            ]
        return found


def _portions(work: Sequence[Any], size: int, what: str) -> Iterator[Sequence[Any]]:
    """The work in parts, with a bar that says how far it is."""
    with tqdm(total=len(work), desc=what, disable=len(work) <= size) as bar:
        for start in range(0, len(work), size):
            part = work[start : start + size]
            yield part
            bar.update(len(part))


def _alike(wishes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[int]]]:
    """Each different wish once, with the numbers of those who have it."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for number, wish in enumerate(wishes):
        groups.setdefault(repr(wish), (wish, []))[1].append(number)
    return list(groups.values())
