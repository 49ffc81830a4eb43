"""There are no alarms on healthy curves. On training runs that went wrong, alarms come no later
than people noticed. Each names its evidence.
"""

import csv
import json
import math
import random
from collections import defaultdict
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from log_lines import parse_lines
from suite.messages import containing, says

from runbook.plan_file.alarms import (
    SLOW_FILE_SYSTEM,
    AlarmSettings,
    GrowthWatch,
    MetricWatch,
)
from runbook.plan_file.messages import AlarmMessage
from runbook.plan_file.recent_steps import RecentStep, read_recent_steps
from runbook.results.metrics import find_alarms, find_spikes
from runbook.tools.logs.log_summary import summary
from runbook.tools.logs.messages import SummaryMessage


def steps(values, name="loss", **others):
    return [
        SimpleNamespace(iteration=n, **{name: value}, **others) for n, value in enumerate(values, 1)
    ]


def kinds(alarms):
    return [(alarm.kind, alarm.metric, alarm.since, alarm.iteration) for alarm in alarms]


def curve(num_steps, noise, seed=1, power=0.25):
    source = random.Random(seed)
    return [1.7 + 9 * n**-power + source.gauss(0, noise) for n in range(1, num_steps)]


# Losses from BigScience's public chronicles (tr1-13B-base, tr8-104B-wide, tr8b-104B, tr11-176B-ml
# of bigscience-workshop/bigscience), up to the last iteration before people noticed the problem.
THIRTEEN = [
    (29020, 2.775923),
    (29030, 2.772822),
    (29040, 2.768131),
    (29050, 7.343709),
    (29060, 8.715872),
]
FIRST_104B = [
    (7000, 6.444662),
    (7010, 11.42026),
    *((n, 11.42 - 0.0203 * (n - 7010)) for n in range(7020, 7220, 10)),
]  # to 7.155
SECOND_104B = [
    (6900, 6.365808),
    (6910, 6.598378),
    (6920, 7.314456),
    (6930, 9.121927),
    (6940, 10.23865),
]
NORMED_104B = [
    (17060, 2.665295),
    (17061, 2.667121),
    (17062, 4.374269),
    (17063, 4.365822),
    (17064, 4.391485),
]
BLOOM = [
    (31214, 2.198845),
    (31215, 2.220424),
    (31216, 2.595213),
    (31217, 2.241558),
    (31218, 2.345279),
    (31219, 5.098124),
    (31220, 3.492029),
]


@pytest.mark.parametrize(
    ("told", "noticed"),
    [
        (THIRTEEN, 29050),
        (FIRST_104B, 7010),
        (SECOND_104B, 6940),
        (NORMED_104B, 17062),
        (BLOOM, 31219),
    ],
)
@pytest.mark.parametrize("before", [0, 200])
def test_spikes_of_public_chronicles_are_found_when_people_saw_them(told, noticed, before):
    """The records before these lines are not public, so they are replaced by a curve with the
    described level and slope.
    """
    source, start, (first, loss) = random.Random(3), told[0][0] - 10 * before, told[0]
    built = [
        (start + 10 * n, loss * (1 + 0.05 * (1 - n / before)) + source.gauss(0, 0.01))
        for n in range(before)
    ]
    rows = [SimpleNamespace(iteration=iteration, loss=loss) for iteration, loss in [*built, *told]]
    (alarm, *_) = [one for one in find_alarms(rows) if one.kind == "spike"]
    assert alarm.iteration <= (
        noticed if alarm.value > 2.2 * alarm.usual or not before else min(told[-1][0], noticed + 20)
    )
    assert first < alarm.since <= noticed
    assert says(
        alarm.evidence,
        AlarmMessage.AFTER_RECORDS,
        metric="loss",
        value=alarm.value,
        finding=containing(AlarmMessage.JUMPED.fill()),
        usual=alarm.usual,
    )


def test_one_record_is_no_base_for_a_spike():
    after_a_resume = [4.37, 6.90, 5.83, 5.11, 3.82, 5.19, 4.31, 5.64, 6.13, 6.23, 4.58, 5.61]
    assert find_alarms(steps(after_a_resume)) == []


def test_a_loss_that_stays_up_or_creeps_up_diverges():
    """The first curve is modelled on 104B's first attempt.

    Its loss rose from 6.4 to 11.4, and then stayed at 7.15.
    """
    source = random.Random(1)
    built = [6.9 - 0.0015 * n + source.gauss(0, 0.04) for n in range(300)]
    built += [11.42 - 0.2 * n for n in range(21)] + [
        7.15 + source.gauss(0, 0.03) for _ in range(60)
    ]
    assert [one[:3] for one in kinds(find_alarms(steps(built)))][:2] == [
        ("spike", "loss", 301),
        ("divergence", "loss", 301),
    ]
    creeping = [loss + max(0, n - 1000) * 0.0007 for n, loss in enumerate(curve(2000, 0.02))]
    assert ("divergence", "loss") in {
        (one.kind, one.metric) for one in find_alarms(steps(creeping))
    }


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.2])
def test_healthy_curves_are_silent(noise):
    for seed in range(6):
        assert find_alarms(steps(curve(1200, noise, seed, 0.15 + 0.05 * seed))) == []


def test_single_batches_of_odd_text_are_no_spike():
    """Healthy public runs have batches with 1.98 times the usual loss, and one run has two
    consecutive jumps.
    """
    odd = curve(600, 0.1)
    odd[200], odd[300], odd[301] = 1.98 * odd[200], 1.4 * odd[300], 1.2 * odd[301]
    assert find_alarms(steps(odd)) == []


EARLY_LOSSES = (10.8, 10.4, 10.0, 9.6, 9.2, 8.9, 8.6, 8.3, 8.1, 7.9, 9.59, 9.7, 8.8, 8.2, 7.9)
EARLY_NORMS = (3.0, 2.0, 1.6, 1.5, 1.4, 1.4, 1.4, 1.3, 1.5, 1.4, 24.0, 22.0, 6.0, 2.0, 1.4)


def test_a_jump_below_the_median_of_a_falling_curve_is_a_spike_by_its_gradient():
    """The loss jumps from 7.90 to 9.59 with a gradient norm of 24.

    Half of the earlier losses are higher.
    """
    rows = [
        SimpleNamespace(iteration=n, loss=loss, grad_norm=norm)
        for n, (loss, norm) in enumerate(zip(EARLY_LOSSES, EARLY_NORMS, strict=True), 1)
    ]
    (spike,) = find_alarms(rows)
    assert (spike.kind, spike.since, spike.value) == ("spike", 11, 9.59)
    assert says(
        spike.evidence, AlarmMessage.JUMPED_WITH_GRADIENT, grad_norm=24.0, factor=24.0 / 1.45
    )
    losses = [(row.iteration, row.loss) for row in rows]
    norms = {row.iteration: row.grad_norm for row in rows}
    assert find_spikes(losses, norms) == (spike,)
    assert find_spikes(losses) == (), "without a gradient it may be a batch of odd text"


def test_the_first_steps_raise_no_alarm_about_the_curve_if_the_run_file_says_so():
    quiet = AlarmSettings(alarms_after=11)
    rows = [
        SimpleNamespace(iteration=n, loss=loss, grad_norm=norm)
        for n, (loss, norm) in enumerate(zip(EARLY_LOSSES, EARLY_NORMS, strict=True), 1)
    ]
    losses = [(row.iteration, row.loss) for row in rows]
    norms = {row.iteration: row.grad_norm for row in rows}
    assert find_alarms(rows, settings=quiet) == []
    assert find_spikes(losses, norms, quiet) == ()
    assert kinds(find_alarms(rows, settings=AlarmSettings(alarms_after=5))) == [
        ("spike", "loss", 11, 11)
    ]
    evaluations = steps([5.0] * 10 + [12.0])
    assert kinds(find_alarms([], evaluations)) == [("spike", "validation_loss", 11, 11)]
    assert find_alarms([], evaluations, quiet) == []


def test_a_loss_without_a_number_is_reported_in_the_first_steps_too():
    quiet = AlarmSettings(alarms_after=100)
    lost = SimpleNamespace(iteration=6, loss=None, nan=1)
    zero = SimpleNamespace(iteration=7, loss=0.0)
    alarms = find_alarms([*steps([5.0] * 5), lost, zero], settings=quiet)
    assert kinds(alarms) == [("NaN", "loss", 6, 6), ("zero loss", "loss", 7, 7)]
    evaluation = SimpleNamespace(iteration=8, loss=math.nan)
    known = SimpleNamespace(iteration=101, loss=4.0)
    later = SimpleNamespace(iteration=102, loss=math.nan)
    assert kinds(find_alarms([], [evaluation, known, later], quiet)) == [
        ("NaN", "validation_loss", 102, 102)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_odd_text_with_noisy_gradients_is_no_spike(seed):
    source = random.Random(seed)
    rows = []
    for n, loss in enumerate(curve(1200, 0.1, seed), 1):
        odd = source.uniform(1.1, 1.9) if n % 97 == 0 else 1.0
        norm = (1.4 + 2 / n) * source.lognormvariate(0, 0.4) * (2 if odd > 1 else 1)
        rows.append(SimpleNamespace(iteration=n, loss=odd * loss, grad_norm=norm))
    assert [alarm for alarm in find_alarms(rows) if alarm.kind == "spike"] == []


def test_a_loss_that_falls_no_more_is_a_plateau_and_one_that_is_none_is_told_once():
    flat = [
        loss if n < 700 else 3.4 + loss * 0.002 * (-1) ** n
        for n, loss in enumerate(curve(3000, 0.01))
    ]
    assert {(one.kind, one.metric) for one in find_alarms(steps(flat))} == {("plateau", "loss")}
    rows = [
        SimpleNamespace(iteration=n, loss=None if n > 5 else 3.0, nan=int(n > 5))
        for n in range(1, 20)
    ]
    assert kinds(find_alarms(rows)) == [("NaN", "loss", 6, 6)]


def test_a_loss_of_exactly_zero_is_an_alarm_once():
    rows = [SimpleNamespace(iteration=n, loss=0.0 if n > 5 else 3.0) for n in range(1, 9)]
    assert ("zero loss", "loss", 6, 6) in kinds(find_alarms(rows))
    zeros = [SimpleNamespace(iteration=n, loss=0.0) for n in range(1, 6)]
    assert kinds(find_alarms(zeros)) == [("zero loss", "loss", 1, 1)]


def rows_of(**columns):
    """Return 2 s steps with loss 3. Keyword arguments replace or add columns."""
    length = len(next(iter(columns.values())))
    usual = {
        "loss": [3.0] * length,
        "seconds": [2.0] * length,
        "data_wait_seconds": [0.01] * length,
    }
    names = usual | columns
    rows = zip(*names.values(), strict=True)
    return [
        SimpleNamespace(iteration=n, **dict(zip(names, row, strict=True)))
        for n, row in enumerate(rows, 1)
    ]


def not_of_the_loss(rows):
    return [alarm for alarm in find_alarms(rows) if alarm.metric != "loss"]


@pytest.mark.parametrize(("metric", "usual"), [("grad_norm", 0.5), ("seconds", 2.0)])
def test_a_number_that_creeps_up_is_a_drift_and_its_evidence_is_named(metric, usual):
    source = random.Random(4)
    creeping = [usual * (1 + n / 1000) * source.lognormvariate(0, 0.1) for n in range(1600)]
    alarm = not_of_the_loss(rows_of(**{metric: creeping}))[0]
    assert (alarm.kind, alarm.metric.split("_per")[0], alarm.iteration) == (
        "drift",
        metric,
        800 if metric == "seconds" else 1600,
    )
    assert alarm.usual == pytest.approx(usual, rel=0.1) and alarm.value > 1.25 * alarm.usual
    assert says(
        alarm.evidence,
        AlarmMessage.GREW,
        first=f"{alarm.usual:.4g}",
        last=f"{alarm.value:.4g}",
        spread=containing("0.0"),
    )
    assert (
        not_of_the_loss(
            rows_of(seconds=[2.0 + n / 100 for n in range(900)], global_batch=range(200, 1100))
        )
        == []
    )


def test_what_warms_up_or_jumps_once_or_wanders_is_no_growth():
    """Try caches that fill up, allocator jumps, an epoch rhythm, and noise from a shared
    machine.
    """

    def growths(values, **how):
        watch = GrowthWatch("memory", **how)
        return [growth for n, value in enumerate(values, 1) if (growth := watch.look(n, value))]

    for widens, steps in ((False, range(1, 801)), (True, range(1, 8001))):
        for healthy in (
            [1 - math.exp(-n / 800) for n in steps],
            [math.log(n) for n in steps],
            [n**0.4 for n in steps],
            [float(n > 300) + float(n > 600) for n in steps],
            [math.sin(n / 300) for n in steps],
            [5.0 for _ in steps],
        ):
            assert growths(healthy, widens=widens) == []
    found = []
    for seed in range(200):
        source = random.Random(seed)
        level = 0.0
        values = []
        for _ in range(3200):
            level = 0.98 * level + source.gauss(0, 1)
            values.append(level)
        found += growths(values, widens=True)
    assert len(found) <= 2, "of 600 looks at noise that wanders"
    leak = [100.0 + 3 * n + random.Random(n).gauss(0, 20) for n in range(1, 801)]
    (growth,) = growths(leak)
    assert (growth.value - growth.usual) / 780 == pytest.approx(3, rel=0.01)
    assert (growth.since, growth.iteration) == (20, 800)


def test_a_file_system_that_becomes_slow_is_reported_once():
    waits = [0.01] * 300 + [1.0] * 100 + [0.02] * 100 + [1.5] * 100
    alarms = not_of_the_loss(rows_of(data_wait_seconds=waits))
    assert [(alarm.kind, alarm.iteration) for alarm in alarms] == [
        (SLOW_FILE_SYSTEM, 330),
        (SLOW_FILE_SYSTEM, 530),
    ]
    assert alarms[0].evidence == AlarmMessage.AFTER_RECORDS.fill(
        metric="data_wait_seconds".replace("_", " "),
        value=1.0,
        finding=AlarmMessage.WAITS.fill(num_steps=10, share=0.5),
        num_before=30,
        usual=0.01,
        spread=0.0,
    )
    single = [5.0 if n % 97 == 0 else 0.01 for n in range(600)]
    assert not_of_the_loss(rows_of(data_wait_seconds=single)) == [], (
        "a shuffled index is read now and then"
    )
    assert not_of_the_loss(rows_of(data_wait_seconds=[1.0] * 600)) == [], (
        "always so: 05-analysis shows it"
    )


def test_a_save_that_takes_many_times_as_long_is_reported():
    watch = MetricWatch()
    told = [
        [*watch.look_at_save(n, seconds)]
        for n, seconds in enumerate([3.0, 4.0, 3.0, 12.0, 61.0, 3.5])
    ]
    assert [len(alarms) for alarms in told] == [0, 0, 0, 0, 1, 0]
    assert told[4][0].evidence == AlarmMessage.AFTER_RECORDS.fill(
        metric="save seconds",
        value=61.0,
        finding=AlarmMessage.LONG_SAVE.fill(),
        num_before=4,
        usual=3.5,
        spread=0.74,
    )


def test_a_log_file_shows_its_alarms():
    numbers = count(29000, 10)
    lines = [
        f" iteration {next(numbers):8d}/  311541 | consumed samples: 0 | elapsed time per iteration (ms): 22306.6"
        f" | learning rate: 9.850E-05 | global batch size:  1024 | lm loss: {loss:.6E} | loss scale: 32768.0 |"
        for loss in (2.78, 2.775923, 2.772822, 2.768131, 7.343709, 8.715872)
    ]
    alarm = AlarmMessage.JUMPED.fill()
    assert says(
        summary(parse_lines(lines)),
        SummaryMessage.ALARM,
        kind="spike",
        iteration=29040,
        evidence=containing("loss 7.344", alarm),
    )


def test_growth_begins_again_where_iterations_come_again():
    """Iterations repeat after a rollback, or in the log of a restarted run."""
    steps = [*range(1, 201), *range(101, 1300)]
    rows = [
        SimpleNamespace(iteration=n, loss=3.0, grad_norm=0.5 + n / 1000, seconds=2.0 + n / 100)
        for n in steps
    ]
    assert {alarm.metric for alarm in find_alarms(rows)} >= {"seconds_per_sequence"}
    watch = GrowthWatch("memory", 2)
    growths = [
        growth for n in [*range(1, 60), *range(20, 99)] if (growth := watch.look(n, float(n)))
    ]
    assert growths == [], "neither part alone is long enough"


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_a_loss_that_rises_record_by_record_diverges(noise):
    """The loss rises from 11.65 to 20.44 over 31 records, without a jump.

    Each record is close to the median of the previous ones.
    """
    source = random.Random(2)
    rising = [11.65 + 8.79 * n / 30 + source.gauss(0, noise) for n in range(31)]
    (alarm,) = [alarm for alarm in find_alarms(steps(rising)) if alarm.kind == "divergence"]
    assert alarm.iteration <= 31
    assert alarm.value > 1.1 * alarm.usual
    assert says(
        alarm.evidence, AlarmMessage.RISES, metric="loss", value=alarm.value, num_records=20
    )


def test_a_rise_is_reported_again_only_once_the_loss_was_back():
    rising = [4.0 + 0.15 * n for n in range(60)]
    assert [alarm.kind for alarm in find_alarms(steps(rising))].count("divergence") == 1
    back = [3.9] * 40
    kinds_of_both = [alarm.kind for alarm in find_alarms(steps(rising + back + rising))]
    assert kinds_of_both.count("divergence") >= 2


def test_a_log_of_evaluations_alone_has_alarms():
    losses = [3.6, 3.4, 3.3, 3.25, 3.2, 3.18, 3.17, 3.16, 3.15, 3.14, 3.13, 9.4, 9.1]
    lines = [
        f" validation loss at iteration {1000 * n} | lm loss value: {loss:.6E} | lm loss PPL: 2.3E+01 |"
        for n, loss in enumerate(losses, 1)
    ]
    log = parse_lines(lines)
    assert not log.records
    (spike,) = find_alarms(log.records, log.evaluations_in_order)
    assert (spike.kind, spike.metric, spike.since) == ("spike", "validation_loss", 12000)
    assert says(
        summary(log),
        SummaryMessage.ALARM,
        kind="spike",
        iteration=12000,
        evidence=containing("validation loss 9.4"),
    )
    broken = parse_lines([*lines[:4], lines[4].replace("3.200000E+00", "NAN")])
    (lost,) = find_alarms(broken.records, broken.evaluations_in_order)
    assert (lost.kind, lost.metric, lost.iteration) == ("NaN", "validation_loss", 5000)
    assert len(broken.validation) == 4, "as before, only numbers are evaluations"


def test_evaluations_that_rise_by_a_little_each_time_diverge():
    """The validation loss rises by 60 % in total. In any twelve records, the median rises by less
    than a quarter from the first four to the last four.
    """
    evaluations = [SimpleNamespace(iteration=1000 * n, loss=3 + 0.08 * n) for n in range(1, 25)]
    (alarm,) = find_alarms([], evaluations)
    assert (alarm.kind, alarm.metric) == ("divergence", "validation_loss")
    assert alarm.iteration <= 20_000


def healthy_curve(kind: str, seed: int) -> list[SimpleNamespace]:
    """Return the records of a healthy training run. `kind` names what makes its curve uneven."""
    source = random.Random(seed)
    num_steps = source.choice((200, 400, 700))
    noise = source.choice((0.005, 0.02, 0.06))
    scale = source.uniform(4, 9)
    records = []
    for n in range(1, num_steps + 1):
        done = n / num_steps
        loss = 2.0 + scale * (n + 5) ** -0.3
        norm = (0.3 + 3 * n**-0.5) * math.exp(source.gauss(0, 0.15))
        batch = 64
        if kind == "warm restarts" and done > 1 / 3:
            loss += 0.1 * math.exp(-15 * (done % (1 / 3)))
        elif kind == "decay at the end" and done > 0.8:
            loss -= 0.25 * ((done - 0.8) / 0.2) ** 0.7
        elif kind == "batch ramp":
            batch = 16 * min(8, 1 + int(16 * done))
        elif kind == "other text" and done > 0.5:
            loss *= 1 + source.choice((0.01, 0.02, 0.03))
        if source.random() < 0.004:
            loss += source.uniform(0.1, 0.35)
            norm *= source.uniform(1.5, 4)
        loss += source.gauss(0, noise)
        seconds = batch / 64 * math.exp(source.gauss(0, 0.03))
        record = SimpleNamespace(iteration=n, loss=loss, grad_norm=norm, seconds=seconds)
        record.global_batch = batch
        records.append(record)
    return records


@pytest.mark.parametrize("kind", ["warm restarts", "decay at the end", "batch ramp", "other text"])
def test_curves_that_are_uneven_for_a_good_reason_are_silent(kind):
    for seed in range(20):
        assert find_alarms(healthy_curve(kind, seed)) == [], seed


def test_an_evaluation_without_a_number_before_the_first_is_no_alarm():
    """Progress bars show NaN until there is a validation loss."""
    evaluations = [SimpleNamespace(iteration=n, loss=loss) for n, loss in ((1, math.nan), (2, 3.1))]
    assert find_alarms([], evaluations) == []


def test_gradient_norms_that_are_no_number_are_an_alarm_where_the_loss_says_nothing():
    lost = [SimpleNamespace(iteration=n, loss=None, grad_norm=math.nan) for n in range(1, 501)]
    assert kinds(find_alarms(lost)) == [("NaN", "grad_norm", 1, 3)]
    marked = steps([3.0] * 9, states=("infinite_grad_norm",))
    assert kinds(find_alarms(marked)) == [("NaN", "grad_norm", 1, 3)]
    single = steps([3.0] * 9, grad_norm=1.0)
    single[3].grad_norm = math.inf
    assert find_alarms(single) == []


def test_overflows_in_fp16_are_healthy_until_nothing_but_overflows_is_seen():
    """Each of the first steps is skipped and halves a loss scale of 2^32."""
    overflows = [
        SimpleNamespace(iteration=n, loss=10.9, grad_norm=math.inf, skipped=1, loss_scale=2.0**-n)
        for n in range(1, 60)
    ]
    healthy = [
        SimpleNamespace(iteration=n, loss=10.9, grad_norm=1.0, skipped=0) for n in range(34, 60)
    ]
    assert find_alarms(overflows[:33] + healthy) == []
    assert kinds(find_alarms(overflows)) == [("NaN", "grad_norm", 1, 50)]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_gradient_norm_that_grows_by_a_hundredth_of_itself_each_step_is_a_drift(noise):
    source = random.Random(6)
    norms = [0.4 * 1.01**n * source.lognormvariate(0, noise) for n in range(500)]
    alarm = not_of_the_loss(rows_of(grad_norm=norms))[0]
    assert (alarm.kind, alarm.metric) == ("drift", "grad_norm")
    assert alarm.iteration <= 200
    assert says(
        alarm.evidence,
        AlarmMessage.GREW_BY_SHARE,
        metric="grad norm",
        first=alarm.usual,
        last=alarm.value,
        iterations=190,
    )
    assert math.log(alarm.value / alarm.usual) / 190 == pytest.approx(0.01, rel=0.08)


def test_gradient_norms_that_wander_grow_by_no_share_of_themselves():
    num_alarms = 0
    for seed in range(100):
        source = random.Random(seed)
        level = 0.0
        norms = []
        for _ in range(1600):
            level = 0.98 * level + source.gauss(0, 0.1)
            norms.append(math.exp(level))
        num_alarms += len(not_of_the_loss(rows_of(grad_norm=norms)))
    assert num_alarms <= 1


CURVES = Path(__file__).parents[2] / "benchmarks" / "forecast" / "curves.csv"


def test_the_published_healthy_curves_are_silent():
    """Read 150 validation and 22 training loss curves of KellerJordan/modded-nanogpt (MIT)."""
    curves = defaultdict(list)
    for row in csv.DictReader(CURVES.read_text(encoding="utf-8").splitlines()):
        for name in ("val_loss", "train_loss"):
            if row[name]:
                record = SimpleNamespace(iteration=int(row["step"]), loss=float(row[name]))
                curves[row["run"], name].append(record)
    assert len(curves) == 172
    for (run, name), records in curves.items():
        alarms = find_alarms(records)
        if name == "val_loss":
            alarms = find_alarms([], records) + alarms
        assert alarms == [], run


def test_a_training_that_goes_on_knows_what_was_usual():
    """A jump within the first steps after a resume counts only if earlier records are known."""
    before = [RecentStep(n, loss=3.0 + 0.01 * (n % 3), grad_norm=0.5) for n in range(1, 41)]
    after = [
        SimpleNamespace(iteration=n, loss=loss, grad_norm=0.5, seconds=99.0)
        for n, loss in enumerate([3.01, 3.8, 3.8, 3.8], 41)
    ]
    watch = MetricWatch()
    watch.remember([RecentStep(0, nan=1), *before])
    assert kinds(alarm for step in after for alarm in watch.look(step)) == [
        ("spike", "loss", 42, 44)
    ]
    fresh = MetricWatch()
    assert not [alarm for step in after for alarm in fresh.look(step)]


def test_what_a_rollback_left_behind_is_not_usual(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    rows = [*range(1, 9), *range(5, 8)]
    lines = [json.dumps({"iteration": n, "loss": float(row)}) for row, n in enumerate(rows)]
    metrics.write_text("\n".join([*lines, '{"iteration": 8, "torn']))
    recent = read_recent_steps(metrics, 7, 5)
    assert [(step.iteration, step.loss) for step in recent] == [
        (3, 2.0),
        (4, 3.0),
        (5, 8.0),
        (6, 9.0),
        (7, 10.0),
    ]
    assert [step.iteration for step in read_recent_steps(metrics, 4, 9)] == [1, 2, 3, 4]
    assert read_recent_steps(tmp_path / "absent", 7, 5) == []


def test_a_step_that_was_passed_over_hides_no_nan_after_a_resume(tmp_path):
    """A skipped step has no loss because it was not computed, not because its loss was NaN."""
    computed = {"forward_backward_seconds": 1.0}
    rows = [{"iteration": n, "loss": 3.0, "nan": 0, **computed} for n in range(1, 12)]
    bad = {"iteration": 12, "loss": None, "nan": 1, **computed}
    passed_over = {"iteration": 12, "loss": None, "nan": 1, "segment": 1}
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("\n".join(json.dumps(row) for row in [*rows, bad, passed_over]))
    recent = read_recent_steps(metrics, 12, 40)
    assert [step.iteration for step in recent] == [*range(1, 12)]
    watch = MetricWatch()
    watch.remember(recent)
    first = SimpleNamespace(iteration=13, loss=None, nan=1)
    assert kinds(watch.look(first)) == [("NaN", "loss", 13, 13)]


def test_a_nan_before_a_resume_was_reported_then(tmp_path):
    row = {"iteration": 12, "loss": None, "nan": 1, "forward_backward_seconds": 1.0}
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(row))
    watch = MetricWatch()
    watch.remember(read_recent_steps(metrics, 12, 40))
    assert kinds(watch.look(SimpleNamespace(iteration=13, loss=None, nan=1))) == []
