"""The pieces of a sequence that a context-parallel rank reads, from every supported megatron-core."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns when it is imported
    from runbook.training import context_parallel

GROUP = object()
BATCH = {"tokens": "of these samples"}


@pytest.mark.parametrize(
    ("has_hybrid_groups", "options"),
    [
        (False, {"cp_group": GROUP}),  # megatron-core 0.16 and 0.17
        (True, {"cp_group": GROUP, "is_hybrid_cp": False}),  # 0.18 and newer
    ],
    ids=["0.16", "0.19"],
)
def test_the_group_is_named_lest_megatron_core_takes_all_ranks(
    has_hybrid_groups, options, monkeypatch
):
    calls = []

    def pieces_of(batch, **options):
        calls.append(options)
        return batch

    monkeypatch.setattr(context_parallel, "_HAS_HYBRID_GROUPS", has_hybrid_groups)
    monkeypatch.setattr(context_parallel, "get_batch_on_this_cp_rank", pieces_of)
    parallel_state = context_parallel.parallel_state
    monkeypatch.setattr(parallel_state, "get_context_parallel_group", lambda: GROUP)
    assert context_parallel.slice_sequences(BATCH) == BATCH
    assert calls == [options]
