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
"""Texts scored by one start of the trainer; between them there is something to say of the progress.
"""
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
        return self._log_likelihoods(
            [(context, continuation) for _, context, continuation in requests]
        )

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Of whole texts, cut into windows that do not overlap."""
        length = self._spec.model.positions
        texts = [self.tok_encode(request.args[0]) for request in requests]
        windows = []
        for ids in texts:
            windows.append(
                list(
                    map(
                        make_disjoint_window,
                        get_rolling_token_windows(ids, self.prefix_token_id, length, 1),
                    )
                )
            )
        answers = iter(self._log_likelihoods(list(itertools.chain(*windows))))
        return [
            sum(likelihood for likelihood, _ in itertools.islice(answers, len(text_windows)))
            for text_windows in windows
        ]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context until one of its words to stop at."""
        written: dict[int, str] = {}
        end = self._tokenizer.judge.piece(self.eot_token_id)
        for generation, numbers in _alike([request.args[1] for request in requests]):
            options = normalize_gen_kwargs(generation, MAX_NEW_TOKENS)
            stops = handle_stop_sequences(options.get("until"), eos=end)
            tokens = options["max_gen_toks"]
            room = self._spec.model.positions - tokens
            if room <= 0:
                raise ParamsError(
                    f"A task asks for {tokens} new tokens; the model has "
                    f"{self._spec.model.positions}."
                )
            ending = []
            for number in range(self._spec.model.vocabulary):
                if self._ends(number, stops):
                    ending.append(number)
            choice = {
                "temperature": float(options.get("temperature") or 0.0)
                if options.get("do_sample")
                else 0.0
            }
            for portion in _portions(numbers, PROMPTS, "texts written"):
                prompts = [
                    self.tok_encode(requests[number].args[0])[-room:] or [self.eot_token_id]
                    for number in portion
                ]
                order = {
                    "prompts": prompts,
                    "tokens": tokens,
                    "stops": ending,
                    "exact": True,
                    **choice,
                }
                reply = ask_trainer("sample", self._folder, FULL, order)
                self.iteration = reply["iteration"]
                texts = map(self._tokenizer.decode, reply["ids"])
                cut_texts = (postprocess_generated_text(text, stops, None) for text in texts)
                written |= dict(zip(portion, cut_texts, strict=True))
        return [written[number] for number in range(len(requests))]

    def _ends(self, number: int, stops: Sequence[str]) -> bool:
        """Whether a token alone has a word to stop at, so that nothing after it is kept."""
        text = self._tokenizer.decode((number,))
        return any(stop in text for stop in stops)

    def _log_likelihoods(
        self, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[tuple[float, bool]]:
        likelihoods: list[tuple[float, bool]] = []
        for portion in _portions(pairs, PORTION, "texts scored"):
            reply = ask_trainer(
                "score", self._folder, FULL, {"pairs": portion}, num_processes(self._spec)
            )
            self.iteration = reply["iteration"]
            likelihoods += [
                (likelihood, is_likeliest) for likelihood, is_likeliest in reply["answers"][0]
            ]
        return likelihoods


def _portions(work: Sequence[Any], size: int, title: str) -> Iterator[Sequence[Any]]:
    """The work in parts, with a bar that says how far it is."""
    with tqdm(total=len(work), desc=title, disable=len(work) <= size) as bar:
        for start in range(0, len(work), size):
            part = work[start : start + size]
            yield part
            bar.update(len(part))


def _alike(generations: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[int]]]:
    """Each different wish once, with the numbers of those who have it."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for number, generation in enumerate(generations):
        groups.setdefault(repr(generation), (generation, []))[1].append(number)
    return list(groups.values())
