"""A longer run starts with exactly the samples of a shorter one, however many epochs they have."""

import numpy
import pytest

from . import specs

pytestmark = pytest.mark.training

LENGTH = 32
DOCUMENTS = 60
EPOCH = (DOCUMENTS * 100 - 1) // LENGTH  # samples of all documents
HELD_OUT = {"validation": [{"weight": 1.0, "prefix": "data/held"}]}
BLEND = {
    "train": [{"weight": 0.7, "prefix": "data/text"}, {"weight": 0.3, "prefix": "data/other"}],
    **HELD_OUT,
}
ALONE = {"train": [{"weight": 1.0, "prefix": "data/text"}], **HELD_OUT}
SPLIT = {"train": ALONE["train"], "split": "900,100,0"}


@pytest.fixture
def folder(tmp_path):
    """Write three texts without repeated tokens, so that a sample shows where it was read."""
    for number, (name, documents) in enumerate([("text", DOCUMENTS), ("other", 20), ("held", 10)]):
        tokens = numpy.arange(documents * 100).reshape(documents, 100) + 10_000 * number
        specs.write_tokens(tmp_path / "data" / name, tokens)
    return tmp_path


def read(zygote, folder, data, samples, *, evaluated=0, by="write", **options):
    """Return the samples that a run of this length reads, one per row, and with evaluation also the
    validation samples.
    """
    content = specs.spec(
        iterations=samples,
        global_batch=1,
        data=data,
        model={"vocabulary": 30_000, "padded_vocabulary": 30_080},
        evaluation={"interval": 1 if evaluated else 0, "iterations": evaluated},
        **options,
    )
    job = zygote.train(folder, content, patch=f"training.sample_order:{by}")
    assert job.code == 0, job.err
    train = numpy.load(folder / "train.npy")
    return (train, numpy.load(folder / "validation.npy")) if evaluated else train


@pytest.mark.parametrize("data", [ALONE, BLEND, SPLIT], ids=["alone", "blend", "split"])
def test_a_longer_training_starts_with_the_samples_of_a_shorter_one(data, zygote, folder):
    lengths = [EPOCH // 2, EPOCH, EPOCH + 20, 2 * EPOCH - 10, 2 * EPOCH + 30, 3 * EPOCH]
    longest = read(zygote, folder, data, 3 * EPOCH + 5)
    for samples in lengths:  # in one folder, with the caches of the earlier lengths
        assert numpy.array_equal(read(zygote, folder, data, samples), longest[:samples]), samples


def test_samples_of_a_longer_evaluation_begin_with_those_of_a_shorter_one(zygote, folder):
    _, longest = read(zygote, folder, ALONE, 8, evaluated=100)  # about three passes over the text
    for count in (10, 31, 50, 70):
        assert numpy.array_equal(
            read(zygote, folder, ALONE, 8, evaluated=count)[1], longest[:count]
        )


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_each_epoch_reads_every_token_once_but_for_the_beginning_of_a_last_sample(
    epochs, zygote, folder
):
    samples = (epochs * DOCUMENTS * 100 - 1) // LENGTH
    times = numpy.bincount(
        read(zygote, folder, ALONE, samples)[:, :-1].reshape(-1), minlength=DOCUMENTS * 100
    )
    assert times.max() == epochs and times.min() >= epochs - 1
    assert (times < epochs).sum() == epochs * DOCUMENTS * 100 - samples * LENGTH <= LENGTH


def test_epochs_are_in_different_orders_and_another_seed_in_another(zygote, folder):
    both = read(zygote, folder, ALONE, 2 * EPOCH)
    assert not numpy.array_equal(both[:EPOCH], both[EPOCH:])
    assert not numpy.array_equal(both[:EPOCH], read(zygote, folder, ALONE, EPOCH, seed=4321))


@pytest.mark.parametrize(("data", "samples"), [(ALONE, EPOCH), (BLEND, 60), (SPLIT, EPOCH // 2)])
def test_one_epoch_is_in_megatron_cores_own_order(data, samples, zygote, folder):
    ours = read(zygote, folder, data, samples)
    assert numpy.array_equal(ours, read(zygote, folder, data, samples, by="write_megatron"))


@pytest.mark.parametrize("engine", ["megatron-core", "deepspeed"])
@pytest.mark.rotate(2)
def test_a_training_that_is_made_longer_has_the_losses_of_one_planned_at_that_length(
    engine, zygote, tmp_path
):
    """Twelve documents of 100 tokens yield 37 samples.

    One epoch has 4 iterations of 8 samples, so ten iterations need three epochs.
    """

    def content(iterations):
        return specs.spec(
            engine=engine,
            copies=2,
            iterations=iterations,
            data={"validation": ALONE["train"]},
            checkpoint={"interval": 2},
            learning_rate={"schedule": "constant", "decay_samples": 80},
            fingerprint=f"{iterations:064d}",
        )

    for name in ("whole", "longer"):
        specs.write_corpus(
            tmp_path / name / "data" / "corpus_text_document", documents=12, length=99
        )
        specs.write_corpus(tmp_path / name / "data" / "text", documents=12, length=99)
    whole = zygote.train(tmp_path / "whole", content(10)).losses()
    short = zygote.train(tmp_path / "longer", content(4)).losses()
    assert short == whole[:4]
    assert zygote.train(tmp_path / "longer", content(10)).losses() == whole
