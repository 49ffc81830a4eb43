"""Which copies in node memory a start uses: pure functions, without a process group."""

from runbook.training.near.partners import NodeMap, transfer_rounds
from runbook.training.near.which_copy import (
    CopyKey,
    HeldCopy,
    LoadHistory,
    choose_copies,
    load_history,
)

TWO_NODES = (0, 0, 1, 1)
"""The node that each rank runs on."""
KNOWN = LoadHistory(frozenset({"a", "b"}), frozenset())


def held(node, ranks, iteration, lineage="a", shared=0):
    return [HeldCopy(CopyKey(node, rank, iteration, lineage), shared) for rank in ranks]


def with_partners(iteration, **about):
    """Return the copies that two nodes hold, both for their own ranks and for their partners."""
    return [*held(0, range(4), iteration, **about), *held(1, range(4), iteration, **about)]


def choose(copies, **about):
    wanted = {"newer_than": 4, "newest_shared": 4, **about}
    history = wanted.pop("history", KNOWN)
    return choose_copies(copies, TWO_NODES, history, **wanted)


def test_the_newest_copies_that_all_ranks_have_are_taken_from_their_own_nodes():
    choice = choose([*with_partners(6), *with_partners(8), *held(0, [0, 1], 10)])
    assert (choice.iteration, choice.from_other_nodes(TWO_NODES)) == (8, [])
    assert [copy.node for copy in choice.copies] == list(TWO_NODES)


def test_a_lost_node_is_served_by_its_partner():
    choice = choose(held(1, range(4), 8))
    assert choice.from_other_nodes(TWO_NODES) == [0, 1]
    assert choose(held(1, [0, 2, 3], 8)) is None


def test_a_damaged_copy_is_replaced_by_the_partners_and_then_by_older_ones():
    copies = [*with_partners(6), *with_partners(8)]
    own = CopyKey(0, 1, 8, "a")
    assert choose(copies, bad={own}).from_other_nodes(TWO_NODES) == [1]
    assert choose(copies, bad={own, CopyKey(1, 1, 8, "a")}).iteration == 6


def test_copies_of_two_segments_are_not_mixed():
    mixed = [*held(0, [0, 1], 8, "a"), *held(1, [2, 3], 8, "b")]
    assert choose(mixed) is None
    assert choose([*mixed, *held(1, [0, 1], 8, "b")]).lineage == "b"


def test_only_copies_newer_than_the_shared_checkpoint_count():
    copies = with_partners(8)
    assert choose(copies, newer_than=8, newest_shared=8) is None
    assert choose(copies, newer_than=7, newest_shared=7).iteration == 8


def test_copies_are_not_taken_after_a_newer_shared_checkpoint_was_removed():
    assert choose(with_partners(10, shared=8), newest_shared=4) is None
    assert choose(with_partners(10, shared=4), newest_shared=4).iteration == 10


def test_copies_of_another_training_or_course_are_not_taken():
    assert choose(with_partners(8, lineage="x")) is None


def loading(iteration=8, near="a", name="near_loading"):
    return {"event": name, "iteration": iteration, "near": near}


STARTED = {"event": "started", "near": "a"}


def test_copies_whose_load_led_to_no_step_are_not_tried_again():
    history = load_history([STARTED, loading(), {"event": "started", "near": "b"}])
    assert history.spent == {(8, "a")}
    assert choose(with_partners(8), history=history) is None
    assert choose([*with_partners(8), *with_partners(6)], history=history).iteration == 6


def test_a_third_start_does_not_begin_from_the_same_copies():
    continued = loading(name="near_continued")
    once = [STARTED, loading(), continued]
    assert load_history(once).spent == set()
    assert load_history([*once, loading(), continued]).spent == {(8, "a")}


def test_copies_over_which_two_starts_died_are_not_verified_a_third_time():
    """Two starts were killed while they verified the copies.

    They recorded no load and no broken copy.
    """
    look = loading(name="near_verifying")
    assert load_history([STARTED, look]).spent == set()
    assert load_history([STARTED, look, look]).spent == {(8, "a")}
    named = [STARTED, look, loading(name="near_broken"), look]
    assert load_history(named).spent == set(), "the first one lived on"
    a_torn_file = {"event": "near_broken", "message": "not a copy"}
    assert load_history([STARTED, look, a_torn_file, look]).spent == {(8, "a")}
    continued = loading(name="near_continued")
    assert load_history([STARTED, look, loading(), continued, look]).spent == set()


def test_no_partner_waits_while_the_other_one_is_busy():
    ring = [(rank, (rank + 1) % 7) for rank in range(7)]
    rounds = transfer_rounds(ring)
    assert sorted(pair for transfers in rounds for pair in transfers) == sorted(ring)
    for transfers in rounds:
        ranks = [rank for pair in transfers for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert len(rounds) == 3, "however long an odd ring is"


def test_a_rollback_makes_all_copies_before_it_unusable():
    events = [STARTED, {"event": "rolled_back", "near": "c"}, {"event": "started", "near": "d"}]
    assert load_history(events).lineages == {"c", "d"}
    assert load_history([{"event": "started"}, {"event": "resumed"}]).lineages == set()


def test_partners_are_ranks_of_the_same_place_on_the_next_node():
    nodes = NodeMap.of(["n1", "n1", "n2", "n2", "n3", "n3"])
    assert [nodes.partners(rank)[0] for rank in range(6)] == [2, 3, 4, 5, 0, 1]
    for rank in range(6):
        to, _ = nodes.partners(rank)
        assert nodes.partners(to)[1] == rank
        assert nodes.holder(rank, nodes.node_of_rank[to]) == to
    assert not NodeMap.of(["n1", "n1", "n2"]).is_even
