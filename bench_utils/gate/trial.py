"""A trial: which cases need another pair, looked at by the rule every now and then, until all are decided."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from bench_utils.gate.rule import DECIDED, Estimate, Judged, Rule, State, estimate, judge

# Wants the next pair of these cases, the most urgent ones first; is sent their log ratios, or None when time is up.
Trial = Generator[tuple[str, ...], Mapping[str, float] | None, dict[str, Judged]]
Logs = dict[str, list[float]]


def trial(min_effects: Mapping[str, float], rule: Rule) -> Trial:
    """Ask for pairs while a case is undecided, and at once for new ones of what became slower, to confirm it.

    `min_effects`: for each case, the smallest slowdown that matters. A case that a pair has no ratio for is not
    asked for again.
    """
    logs: Logs = {key: [] for key in min_effects}
    suspects: dict[str, Judged] = {}
    again: Logs = {}
    found: dict[str, Judged] = {}
    open_keys, confirming = list(min_effects), list[str]()
    while open_keys or confirming:
        pair = yield (*confirming, *open_keys)
        if pair is None:
            break
        open_keys, confirming = _append(pair, open_keys, logs), _append(pair, confirming, again)
        if open_keys and len(logs[open_keys[0]]) in rule.looks:
            judged = judge(_estimates(logs, rule), min_effects, rule.level)
            flagged = {key: judged[key] for key in open_keys if judged[key].state is State.SLOWER}
            suspects |= flagged
            again |= {key: [] for key in flagged}
            confirming += flagged
            found |= {key: judged[key] for key in open_keys if judged[key].state in DECIDED}
            is_last = len(logs[open_keys[0]]) == rule.looks[-1]
            open_keys = [] if is_last else [key for key in open_keys if key not in found]
        for key in confirming:
            second = _confirmed(again[key], suspects[key], min_effects[key], rule)
            if second is not None:
                found[key] = second
        confirming = [key for key in confirming if found[key] is suspects[key]]
    rest = judge(_estimates(logs, rule), min_effects, rule.level)
    unconfirmed = {key: _unconfirmed(judged) for key, judged in suspects.items() if found[key] is judged}
    unfinished = {key: replace(rest[key], num_pairs=len(logs[key])) for key in min_effects if key not in found}
    every = {**found, **unconfirmed, **unfinished}
    return {key: every[key] for key in min_effects}


def _append(pair: Mapping[str, float], keys: Sequence[str], logs: Logs) -> list[str]:
    """Keep the ratios of these cases; those that a pair has none for are not asked for again."""
    answering = [key for key in keys if key in pair]
    for key in answering:
        logs[key].append(pair[key])
    return answering


def _estimates(logs: Mapping[str, Sequence[float]], rule: Rule) -> dict[str, Estimate]:
    """Of the cases with as many pairs as the first look wants."""
    return {key: estimate(values) for key, values in logs.items() if len(values) >= rule.looks[0]}


def _confirmed(again: Sequence[float], first: Judged, min_effect: float, rule: Rule) -> Judged | None:
    """What new pairs say, as many as flagged it, or more where these do not decide; None: not yet."""
    if len(again) not in (look for look in rule.looks if look >= first.num_pairs):
        return None
    second = judge({"": estimate(again)}, {"": min_effect}, rule.level)[""]
    num_pairs = first.num_pairs + second.num_pairs
    if second.state is State.UNDECIDED and len(again) < rule.looks[-1]:
        return None
    if second.state is State.SLOWER:
        return replace(second, num_pairs=num_pairs)
    reason = f"slower in {first.num_pairs} pairs ({first.ratio_text}), and not in {second.num_pairs} new ones"
    return replace(second, num_pairs=num_pairs, reason=reason)


def _unconfirmed(first: Judged) -> Judged:
    reason = "slower at first, and there were not pairs enough to confirm it"
    return replace(first, state=State.UNDECIDED, reason=reason)
