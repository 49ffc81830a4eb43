"""Lets lm-evaluation-harness use our trainer as a model that answers questions in batches."""

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
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.tokens.tokenizer import load_tokenizer
from runbook.tools.evaluate.messages import EvaluationMessage

PORTION = 4096
"""Number of texts to score each time the trainer is started.

Progress is reported after each start.
"""
PROMPTS = 64
"""Number of texts to generate each time the trainer is started."""
MAX_NEW_TOKENS = 256
"""Limit on new tokens for a task that does not set one.

The `hf` model in the harness uses the same limit.
"""


class TrainerModel(TemplateLM):  # type: ignore[misc]
    """The newest complete checkpoint, evaluated in float32 with its training layout."""

    def __init__(
        self,
        folder: Path,
        spec: PhasePlan,
        tokenizer: str,
    ) -> None:
        super().__init__()
        if spec.sampling.end_of_document < 0:
            raise ParamsError(EvaluationMessage.NO_END_OF_DOCUMENT, tokenizer=tokenizer)

        self._folder = folder
        self._spec = spec
        # A literal <|endoftext|> in the text is read as the special token, as `transformers` does
        # with an exported folder.
        self._tokenizer = load_tokenizer(tokenizer, special_tokens=True)
        self.iteration = 0
        """Checkpoint iteration, once the trainer has answered."""

    @property
    def eot_token_id(self) -> int:
        """Return the id of the end-of-document token, which a document also begins with."""
        return self._spec.sampling.end_of_document

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        **others: Any,
    ) -> list[int]:
        """Return the token ids for a text, with no special tokens added."""
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
        """Return log-likelihoods for whole texts, cut into windows that do not overlap."""
        length = self._spec.model.shape.positions
        windows_by_text = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            rolling = get_rolling_token_windows(ids, self.prefix_token_id, length, 1)
            windows_by_text.append(list(map(make_disjoint_window, rolling)))

        all_windows = list(itertools.chain(*windows_by_text))
        answers = iter(self._log_likelihoods(all_windows))
        sums = []
        for windows in windows_by_text:
            answers_of_text = itertools.islice(answers, len(windows))
            sums.append(sum(likelihood for likelihood, _ in answers_of_text))

        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context until one of its stop words appears."""
        written: dict[int, str] = {}
        end = self._tokenizer.judge.piece(self.eot_token_id)
        for generation, numbers in _alike([request.args[1] for request in requests]):
            options = normalize_gen_kwargs(generation, MAX_NEW_TOKENS)
            stops = handle_stop_sequences(options.get("until"), eos=end)
            tokens = options["max_gen_toks"]
            max_prompt_tokens = self._spec.model.shape.positions - tokens
            if max_prompt_tokens <= 0:
                raise ParamsError(
                    EvaluationMessage.TOO_MANY_NEW_TOKENS,
                    tokens=tokens,
                    positions=self._spec.model.shape.positions,
                )

            temperature = 0.0
            if options.get("do_sample"):
                temperature = float(options.get("temperature") or 0.0)
            order = {
                "tokens": tokens,
                "stops": self._ending_tokens(stops),
                "exact": True,
                "temperature": temperature,
            }
            for portion in _portions(numbers, PROMPTS, "texts written"):
                prompts = []
                for number in portion:
                    ids = self.tok_encode(requests[number].args[0])
                    prompts.append(ids[-max_prompt_tokens:] or [self.eot_token_id])

                reply = ask_trainer("sample", self._folder, FULL, {"prompts": prompts, **order})
                self.iteration = reply["iteration"]
                for number, ids in zip(portion, reply["ids"], strict=True):
                    text = self._tokenizer.decode(ids)
                    written[number] = postprocess_generated_text(text, stops, None)

        return [written[number] for number in range(len(requests))]

    def _ending_tokens(self, stops: Sequence[str]) -> list[int]:
        """Return the tokens that contain a stop word.

        Generated text is cut after one of these tokens.
        """
        ending = []
        for number in range(self._spec.model.shape.vocabulary):
            text = self._tokenizer.decode((number,))
            if any(stop in text for stop in stops):
                ending.append(number)

        return ending

    def _log_likelihoods(
        self, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[tuple[float, bool]]:
        likelihoods: list[tuple[float, bool]] = []
        for portion in _portions(pairs, PORTION, "texts scored"):
            reply = ask_trainer(
                "score",
                self._folder,
                FULL,
                {"pairs": portion},
                num_processes(self._spec),
            )
            self.iteration = reply["iteration"]
            for likelihood, is_likeliest in reply["answers"][0]:
                likelihoods.append((likelihood, is_likeliest))

        return likelihoods


def _portions(work: Sequence[Any], size: int, title: str) -> Iterator[Sequence[Any]]:
    """Yield the requests in portions, and show a progress bar."""
    with tqdm(total=len(work), desc=title, disable=len(work) <= size) as bar:
        for start in range(0, len(work), size):
            part = work[start : start + size]
            yield part
            bar.update(len(part))


def _alike(generations: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[int]]]:
    """Return each distinct set of options once, with the indices of requests that use it."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for number, generation in enumerate(generations):
        groups.setdefault(repr(generation), (generation, []))[1].append(number)
    return list(groups.values())
