"""Scaling laws L(N, D) = E + A / N^a + B / D^b, fitted to finished runs.

The log loss is fitted with a Huber loss, as in Hoffmann et al. (arXiv:2203.15556, D.2), to keep a
single failed run from distorting the law. Sizes and tokens are first divided by their geometric
means, which makes E, A and B similar in size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

Array = NDArray[np.float64]

USUAL_EXPONENT = 0.33
"""Exponent with no penalty. Published values are 0.34 and 0.28 (Hoffmann et al.), 0.35 and 0.37
(Besiroglu et al., 2404.10102).
"""
EXPONENT_PENALTY = 0.1
"""Residual added if an exponent is e times as large as usual.

With few rows, a small exponent cannot be distinguished from a high floor E.
"""
HUBER_SCALE = 0.003
"""Relative residual up to which the penalty is quadratic.

Losses from a small model with two seeds differ by about as much.
"""
START_EXPONENTS = (0.15, 0.25, 0.35, 0.5, 0.7)
STARTS_REFINED = 2
LOWEST_TERM = 1e-3
"""Starting value for a term the linear fit sets to zero. It must be above zero, since the fit uses
its logarithm.
"""
LOWER_BOUNDS = (-3.0, -12.0, -12.0, 0.03, 0.03)
UPPER_BOUNDS = (3.0, 4.0, 4.0, 2.0, 2.0)
"""Upper bounds for log E, log A, log B, a and b in the centred law."""


@dataclass(frozen=True)
class Runs:
    """Finished or planned training runs from one family, with one entry per run in each array."""

    params: Array
    """Number of parameters, including embeddings."""
    params_no_embed: Array
    """Number of parameters except embeddings; equal to `params` if a table does not list it."""
    tokens: Array
    flops: Array
    loss: Array
    """Final loss in nats; NaN for planned runs."""

    def __len__(self) -> int:
        return len(self.params)

    @property
    def largest_flops(self) -> float:
        """Return the FLOPs used in the largest run."""
        return float(self.flops.max())

    def take(self, rows: NDArray[Any]) -> "Runs":
        """Return the runs a mask or a list of positions selects."""
        return Runs(
            params=self.params[rows],
            params_no_embed=self.params_no_embed[rows],
            tokens=self.tokens[rows],
            flops=self.flops[rows],
            loss=self.loss[rows],
        )

    def sizes(self, *, embeddings: bool) -> Array:
        """Return the numbers of parameters, with or without embeddings."""
        return self.params if embeddings else self.params_no_embed


@dataclass(frozen=True)
class LawChoice:
    """One of the laws that have a vote."""

    embeddings: bool
    """Whether the number of parameters N includes the embeddings."""
    tied: bool
    """Whether the exponents a and b are equal."""
    weight_power: float
    """Rows are weighted by compute to this power."""
    exponent_penalty: float | None = None
    """Penalty to use instead of `EXPONENT_PENALTY`, unless it is None."""


WEIGHT_POWERS = (0.0, 0.5, 1.0, 2.0)


def law_choices(runs: Runs) -> list[LawChoice]:
    """Return the laws that give different results for these runs."""
    no_embeddings = np.allclose(runs.params, runs.params_no_embed)
    return list(_choices([True] if no_embeddings else [True, False]))


def _choices(embedding_counts: list[bool]) -> Iterator[LawChoice]:
    for embeddings in embedding_counts:
        for tied in (True, False):
            for weight_power in WEIGHT_POWERS:
                yield LawChoice(embeddings, tied, weight_power)


@dataclass(frozen=True)
class Law:
    """A fitted law, in terms of the original sizes and tokens."""

    floor: float
    """E: the loss that remains with any number of parameters and tokens."""
    size_term: float
    """A / N^a at `size_unit` parameters."""
    token_term: float
    """B / D^b at `token_unit` tokens."""
    size_exponent: float
    token_exponent: float
    size_unit: float
    token_unit: float

    def predict(self, sizes: Array, tokens: Array) -> Array:
        """Return the loss for runs with these sizes and numbers of tokens."""
        by_size = self.size_term * (sizes / self.size_unit) ** -self.size_exponent
        by_tokens = self.token_term * (tokens / self.token_unit) ** -self.token_exponent
        return self.floor + by_size + by_tokens


@dataclass(frozen=True)
class _Problem:
    """Rows to fit: centred log sizes and log tokens, loss, and the square root of the weight."""

    log_sizes: Array
    log_tokens: Array
    loss: Array
    root_weights: Array
    tied: bool
    exponent_penalty: float

    def terms(self, log_law: Array) -> tuple[Array, Array, Array]:
        """Return E, A / N^a and B / D^b for every row."""
        floor = np.full_like(self.loss, np.exp(log_law[0]))
        by_size = np.exp(log_law[1] - log_law[3] * self.log_sizes)
        by_tokens = np.exp(log_law[2] - log_law[-1] * self.log_tokens)
        return floor, by_size, by_tokens

    def residuals(self, log_law: Array) -> Array:
        """Return the weighted residuals in log loss, followed by a residual for each exponent."""
        floor, by_size, by_tokens = self.terms(log_law)
        residuals = self.root_weights * np.log((floor + by_size + by_tokens) / self.loss)
        penalties = self.exponent_penalty * np.log(log_law[3:] / USUAL_EXPONENT)
        return np.concatenate([residuals, penalties])

    def jacobian(self, log_law: Array) -> Array:
        """Return the derivatives of `residuals`."""
        floor, by_size, by_tokens = self.terms(log_law)
        loss = floor + by_size + by_tokens
        by_size_exponent = -self.log_sizes * by_size
        by_token_exponent = -self.log_tokens * by_tokens
        columns = [floor, by_size, by_tokens]
        if self.tied:
            columns.append(by_size_exponent + by_token_exponent)
        else:
            columns += [by_size_exponent, by_token_exponent]

        of_rows = np.stack(columns, axis=1) * (self.root_weights / loss)[:, None]
        exponents = log_law[3:]
        of_penalties = np.zeros((len(exponents), len(log_law)))
        of_penalties[:, 3:] = np.diag(self.exponent_penalty / exponents)
        return np.concatenate([of_rows, of_penalties])

    def starts(self) -> list[Array]:
        """Return the best starting points, found by linear fits for given exponents."""
        scored = []
        for size_exponent in START_EXPONENTS:
            for token_exponent in START_EXPONENTS:
                if self.tied and token_exponent != size_exponent:
                    continue
                cost, terms = self._linear_fit(size_exponent, token_exponent)
                if self.tied:
                    exponents = [size_exponent]
                else:
                    exponents = [size_exponent, token_exponent]

                scored.append((cost, np.concatenate([np.log(terms), exponents])))

        scored.sort(key=lambda start: start[0])
        return [start for _, start in scored[:STARTS_REFINED]]

    def _linear_fit(self, size_exponent: float, token_exponent: float) -> tuple[float, Array]:
        columns = [
            np.ones_like(self.loss),
            np.exp(-size_exponent * self.log_sizes),
            np.exp(-token_exponent * self.log_tokens),
        ]
        relative = np.stack(columns, axis=1) / self.loss[:, None]
        terms, cost = nnls(relative * self.root_weights[:, None], self.root_weights)
        return float(cost), np.maximum(terms, LOWEST_TERM)


def fit_law(runs: Runs, choice: LawChoice) -> Law:
    """Fit the chosen form of the law to the runs."""
    sizes = runs.sizes(embeddings=choice.embeddings)
    size_unit = float(np.exp(np.log(sizes).mean()))
    token_unit = float(np.exp(np.log(runs.tokens).mean()))
    weights = (runs.flops / runs.flops.max()) ** choice.weight_power
    problem = _Problem(
        log_sizes=np.log(sizes / size_unit),
        log_tokens=np.log(runs.tokens / token_unit),
        loss=runs.loss,
        root_weights=np.sqrt(weights / weights.mean()),
        tied=choice.tied,
        exponent_penalty=EXPONENT_PENALTY
        if choice.exponent_penalty is None
        else choice.exponent_penalty,
    )
    log_law = _solve(problem)
    return Law(
        floor=float(np.exp(log_law[0])),
        size_term=float(np.exp(log_law[1])),
        token_term=float(np.exp(log_law[2])),
        size_exponent=float(log_law[3]),
        token_exponent=float(log_law[-1]),
        size_unit=size_unit,
        token_unit=token_unit,
    )


def _solve(problem: _Problem) -> Array:
    """Return log E, log A, log B and the exponents for the best fit from all starting points."""
    count = 4 if problem.tied else 5
    lower = np.array(LOWER_BOUNDS[:count])
    upper = np.array(UPPER_BOUNDS[:count])
    solutions = []
    for start in problem.starts():
        inside = np.clip(start, lower + 1e-6, upper - 1e-6)
        solution = least_squares(
            problem.residuals,
            inside,
            jac=problem.jacobian,
            bounds=(lower, upper),
            loss="huber",
            f_scale=HUBER_SCALE,
            max_nfev=60,
        )
        solutions.append(solution)

    best = min(solutions, key=lambda solution: float(solution.cost))
    parameters: Array = best.x
    return parameters


def planned(runs: Runs) -> Runs:
    """Return the runs without their losses."""
    return replace(runs, loss=np.full_like(runs.params, np.nan))
