"""Judging a replay: truth of each round, comparison with a reference, the summary's verdict."""

from __future__ import annotations

import pytest

from ampd.bench.replay import Replayed, Script, compare, judge
from ampd.bench.rounds import RoundFacts, RoundResult
from ampd.bench.text_report import summarize
from ampd.bench.text_trace import FittedPrompt


def _result(number: int, ids: list[int], l_hist: int = 0, error: str | None = None) -> RoundResult:
    facts = RoundFacts(path="local", reason="decode_slack", l_hist=l_hist)
    return RoundResult(session="s", number=number, text=str(ids), token_ids=ids, facts=facts, error=error)


def _rounds(results: list[RoundResult], prompts: list[list[int]]) -> list[Replayed]:
    script = Script("s", [FittedPrompt("", p) for p in prompts])
    return judge([script], [results], 32)


def test_truth_comes_from_the_round_before() -> None:
    prompts = [list(range(40)), [*range(40), 900, 901, *range(100, 130)], list(range(70))]
    rounds = _rounds([_result(1, [900, 901]), _result(2, [5], 32), _result(3, [6], 0)], prompts)
    assert [r.true_history for r in rounds] == [0, 32, 32]
    assert [r.short_history for r in rounds] == [False, False, True]


def test_the_answer_counts_as_history() -> None:
    prompts = [list(range(60)), [*range(60), 900, 901, 902, 903, 7]]
    rounds = _rounds([_result(1, [900, 901, 902, 903, 904]), _result(2, [1], 64)], prompts)
    assert rounds[1].true_history == 64
    assert not rounds[1].wrong_history


def test_nobody_knows_the_truth_after_a_failure() -> None:
    prompts = [list(range(64)), list(range(96))]
    rounds = _rounds([_result(1, [], error="gone"), _result(2, [1], 0)], prompts)
    assert rounds[1].true_history is None
    assert not rounds[1].short_history
    assert summarize(rounds, 1.0).ok is False


def test_other_tokens_or_a_failure_on_either_side_differ() -> None:
    rounds = _rounds([_result(n, [n], error="cut" if n == 4 else None) for n in range(1, 5)], [[1]] * 4)
    compare(rounds, [[_result(1, [1]), _result(2, [9]), _result(3, [3], error="HTTP 500"), _result(4, [4])]])
    assert [r.differs for r in rounds] == [False, True, True, True]
    summary = summarize(rounds, 1.0)
    assert (summary.compared, summary.differing, summary.ok) == (4, 3, False)


@pytest.mark.parametrize(("mine", "other", "differs"), [([1], [1], False), ([], [1], True), ([1], [], True)])
def test_texts_count_only_without_token_ids(mine: list[int], other: list[int], differs: bool) -> None:
    one, two = _result(1, mine), _result(1, other)
    one.text, two.text = "half a char \ufffd", "half a char "
    rounds = _rounds([one], [[1]])
    compare(rounds, [[two]])
    assert rounds[0].differs is differs


def test_equal_answers_are_ok() -> None:
    rounds = _rounds([_result(1, [1])], [[1]])
    compare(rounds, [[_result(1, [1])]])
    assert summarize(rounds, 1.0).ok is True
