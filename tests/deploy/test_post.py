"""Who is there, and what is a reply: whatever order things come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.test_serve import hand
from polycentric.deploy.letters import packed
from polycentric.deploy.post import GREETING, Mail, Roster
from polycentric.deploy.roster import Hello


def test_a_node_that_says_twice_who_it_is_has_not_answered_a_letter(tmp_path: Path) -> None:
    """One that is busy is greeted again, and answers both: the second answer is no spoiled reply."""
    carrier, now = hand(tmp_path), [0.0]
    roster = Roster(carrier, lambda line: None, lambda: now[0])
    roster.look()
    now[0] += GREETING + 1
    late, carrier.replies = carrier.replies, []
    roster.look()
    assert len(late) == len(carrier.replies) == 4  # both times
    roster.wait(lambda r: len(r.present) == 4, 10, lambda r: None)
    welcomed: list[Any] = []
    mail = Mail(roster, sorted(carrier.clients), lambda k: packed(Hello(), {}), 10.0, lambda *who: welcomed.append(who))
    mail.send({0: [b"a letter"]})
    carrier.replies = [*late, ("id-ward-0", [b"a reply"])]
    assert mail.fetch() == [(0, b"a reply")] and welcomed == []
