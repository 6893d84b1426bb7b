"""Who is next: priority, then the least served owner, adapter, arrival; nobody is passed for ever."""

from __future__ import annotations

from itertools import count

from aril.engine.params import SamplingParams
from aril.engine.queue import PATIENCE, Queue
from aril.engine.request import BACKGROUND, Request
from aril.lora.adapter import AdapterRef
from builders.world import adapter

numbers = count()


def request(ref: AdapterRef | None = None, *, priority: int = 0, owner: str = "") -> Request:
    """A request that arrives now."""
    number = next(numbers)
    return Request(f"r{number}", [1], SamplingParams(), ref, priority, owner=owner, arrival=number)


def serve(queue: Queue, rounds: int, *, refuse: frozenset[str] = frozenset(), cost: int = 10) -> list[Request]:
    """Takes one request a round; those on refused digests stay."""
    served: list[Request] = []
    for _ in range(rounds):
        for head in queue.offer(adapters_run=True):
            if head.adapter and head.adapter.digest in refuse:
                continue
            queue.take(head)
            queue.charge(head, cost)
            served.append(head)
            break
    return served


def filled(*requests: Request) -> Queue:
    """A queue to which they came in this order."""
    queue = Queue()
    for each in requests:
        queue.push(each)
    return queue


def test_a_lower_priority_number_goes_first() -> None:
    late, urgent = request(priority=1), request(priority=0)
    assert serve(filled(late, urgent), 2) == [urgent, late]


def test_within_an_adapter_the_first_come_goes_first() -> None:
    first, second = request(adapter("a")), request(adapter("a"))
    assert serve(filled(first, second), 2) == [first, second]


def test_a_crowd_on_one_adapter_leaves_every_second_turn_to_another() -> None:
    crowd = [request(adapter("a")) for _ in range(20)]
    few = [request(adapter("b")) for _ in range(4)]
    served = serve(filled(*crowd, *few), 8)
    assert sum(each in few for each in served) == 4


def test_the_base_counts_as_one_adapter() -> None:
    adapted = [request(adapter("a")) for _ in range(9)]
    base = [request() for _ in range(3)]
    assert sum(each in base for each in serve(filled(*adapted, *base), 6)) == 3


def test_owners_take_turns_however_many_adapters_one_of_them_has() -> None:
    crowd = [request(adapter(f"a{at}"), owner="crowd") for at in range(20)]
    few = [request(owner="few") for _ in range(4)]
    served = serve(filled(*crowd, *few), 8)
    assert sum(each in few for each in served) == 4


def test_an_owners_share_is_shared_by_its_adapters() -> None:
    busy = [request(adapter("a"), owner="one") for _ in range(20)]
    quiet = [request(adapter("b"), owner="one") for _ in range(4)]
    served = serve(filled(*busy, *quiet, *(request(owner="other") for _ in range(20))), 16)
    assert sum(each in quiet for each in served) == 4


def test_what_goes_before_them_all_does_not_set_background_work_back() -> None:
    first = [request(priority=BACKGROUND, owner="first") for _ in range(20)]
    queue = filled(*first)
    for _ in range(50):
        queue.push(request(owner="talks"))
    serve(queue, 51)
    later = [request(priority=BACKGROUND, owner="later") for _ in range(4)]
    for each in later:
        queue.push(each)
    assert sum(each in later for each in serve(queue, 8)) == 4


def test_an_adapter_that_was_away_has_saved_nothing_up() -> None:
    busy = [request(adapter("a")) for _ in range(40)]
    queue = filled(*busy)
    serve(queue, 20)
    back = [request(adapter("b")) for _ in range(20)]
    for each in back:
        queue.push(each)
    assert 4 <= sum(each in back for each in serve(queue, 10)) <= 6


def test_a_stream_of_newcomers_does_not_starve_an_adapter_that_owes() -> None:
    queue = filled(request(adapter("a")))
    serve(queue, 1, cost=100)
    owing = request(adapter("a"))
    queue.push(owing)
    for newcomer in range(200):
        queue.push(request(adapter(f"n{newcomer}")))
        queue.push(request(adapter(f"m{newcomer}")))
        if owing in serve(queue, 1):
            return
    raise AssertionError("starved")


def test_a_preempted_request_is_the_next_of_its_lane() -> None:
    waiting, preempted = request(adapter("a")), request(adapter("a"))
    queue = filled(waiting)
    queue.push_front(preempted)
    assert serve(queue, 1) == [preempted]


def test_a_request_without_room_for_its_adapter_lets_others_pass() -> None:
    stuck, other = request(adapter("a")), request(adapter("b"))
    assert serve(filled(stuck, other), 1, refuse=frozenset({stuck.adapter.digest})) == [other]


def test_after_so_many_no_adapter_passes_it_but_the_base_does() -> None:
    stuck = request(adapter("a"))
    others = [request(adapter("b")) for _ in range(PATIENCE + 10)]
    queue = filled(stuck, *others)
    assert len(serve(queue, PATIENCE + 10, refuse=frozenset({stuck.adapter.digest}))) == PATIENCE
    base = request()
    queue.push(base)
    assert serve(queue, 2, refuse=frozenset({stuck.adapter.digest})) == [base]


def test_an_empty_queue_offers_nothing() -> None:
    assert list(Queue().offer(adapters_run=False)) == []
