"""What a client believes about where containers are, and whom it asks."""

from __future__ import annotations

from random import Random

from tierlog.actors.gateway.client.attempts import ClientContext, Send, refresh_map
from tierlog.actors.gateway.client.container_map import ContainerMapCache
from tierlog.actors.gateway.client.requests import Response, TransportFailure
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap, encode_json

BASE, ONE, TWO = "http://supervisor", "http://one", "http://two"


def known() -> ContainerMapCache:
    """As the supervisor reported it: the first container at one host, the second at the other."""
    cache = ContainerMapCache(BASE)
    cache.learn(ContainerMap(1, (ContainerAssignment(0, ONE, 5), ContainerAssignment(1, ONE, 7))), BASE)
    return cache


def test_a_host_is_trusted_about_the_containers_it_serves() -> None:
    cache = known()
    cache.learn(ContainerMap(3, (ContainerAssignment(0, ONE, None), ContainerAssignment(1, TWO, 8))), TWO)
    assert [cache.url_of(0), cache.url_of(1)] == [ONE, TWO]


def test_a_hosts_second_hand_entries_never_replace_known_ones() -> None:
    """It may be older: the supervisor was silent before it could tell of a move."""
    cache = known()
    cache.learn(ContainerMap(3, (ContainerAssignment(0, TWO, None), ContainerAssignment(1, TWO, None))), TWO)
    assert [cache.url_of(0), cache.url_of(1)] == [ONE, ONE]


def test_a_hosts_second_hand_entries_fill_gaps() -> None:
    cache = ContainerMapCache(BASE)
    cache.learn(ContainerMap(1, (ContainerAssignment(0, None, None),)), BASE)
    cache.learn(ContainerMap(3, (ContainerAssignment(0, TWO, None),)), ONE)
    assert cache.url_of(0) == TWO


def test_a_zombies_epoch_is_lower_than_the_owners() -> None:
    cache = known()
    cache.learn(ContainerMap(3, (ContainerAssignment(0, TWO, 4), ContainerAssignment(1, TWO, 6))), TWO)
    assert [cache.url_of(0), cache.url_of(1)] == [ONE, ONE]


def asked(cache: ContainerMapCache, answers: dict[str, ContainerMap]) -> list[str]:
    """Whom one refresh asks, one after the other; who is not in ``answers`` is silent."""
    program, urls = refresh_map(ClientContext(cache, 30, 0.5, lambda: 0.0, Random(0)), 5), []
    try:
        effect = next(program)
        while True:
            assert isinstance(effect, Send)
            urls.append(effect.url)
            found = answers.get(effect.url)
            effect = program.send(
                TransportFailure(sent=True, reason="silent")
                if found is None
                else Response(200, {}, encode_json(found))
            )
    except StopIteration:
        return urls


def test_a_supervisor_that_answers_is_enough() -> None:
    cache = known()
    assert asked(
        cache, {BASE: ContainerMap(2, (ContainerAssignment(0, ONE, 5), ContainerAssignment(1, TWO, 8)))}
    ) == [BASE]
    assert cache.url_of(1) == TWO


def test_every_host_is_asked_what_it_serves_if_the_supervisor_is_silent() -> None:
    """It froze in the moment of a move: the old host knows nothing better, and only the new one knows that it
    is the owner."""
    cache = ContainerMapCache(BASE)
    cache.learn(
        ContainerMap(
            1,
            (ContainerAssignment(0, ONE, 5), ContainerAssignment(1, ONE, 7), ContainerAssignment(2, TWO, 3)),
        ),
        BASE,
    )
    old = ContainerMap(
        9,
        (
            ContainerAssignment(0, ONE, 5),
            ContainerAssignment(1, ONE, None),
            ContainerAssignment(2, TWO, None),
        ),
    )
    new = ContainerMap(
        9, (ContainerAssignment(0, ONE, None), ContainerAssignment(1, TWO, 8), ContainerAssignment(2, TWO, 3))
    )
    assert asked(cache, {ONE: old, TWO: new}) == [BASE, ONE, TWO]
    assert [cache.url_of(index) for index in range(3)] == [ONE, TWO, TWO]
