"""QScheduler's integer rules, and the windows that they look at."""

from __future__ import annotations

import itertools

import pytest

from npusim.zo.schedulers import (
    BEST_AT_START,
    Collect,
    Decay,
    Fixed,
    Halving,
    Observation,
    QScheduler,
    Ramp,
    Schedule,
    Stall,
    State,
    Validated,
    Window,
)


def window_of(scheduler: Schedule, state: State, metric: int) -> State:
    """One whole window with this mean loss."""
    state, found = scheduler.update(state, Observation(metric * 100, 100, epoch_end=False))
    assert found == metric
    return state


def test_starts_at_the_smallest_q_with_the_worst_best() -> None:
    scheduler = Schedule(QScheduler())
    state = scheduler.init()
    assert scheduler.qs[scheduler.choice(state).q_index] == 1
    assert state.best == BEST_AT_START == 2**31 - 1


def test_better_means_1000_m_below_999_best() -> None:
    scheduler = Schedule(QScheduler(), window=Window(100))
    state = window_of(scheduler, scheduler.init(), 100_000)
    assert (state.best, state.wait) == (100_000, 0)
    state = window_of(scheduler, state, 99_900)  # 1000 m == 999 best: not better
    assert (state.best, state.wait) == (100_000, 1)
    state = window_of(scheduler, state, 99_899)
    assert (state.best, state.wait) == (99_899, 0)


def test_q_rises_after_patience_windows_and_never_falls() -> None:
    scheduler = Schedule(QScheduler((1, 2, 4)), window=Window(100))
    state, seen = window_of(scheduler, scheduler.init(), 1000), []
    for metric in (1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 10, 1, 1, 1, 1):
        state = window_of(scheduler, state, metric)
        seen.append(scheduler.qs[scheduler.choice(state).q_index])
    assert seen == [1, 1, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4]
    assert seen == sorted(seen)


def test_a_raise_keeps_the_best_and_restarts_the_wait() -> None:
    scheduler = Schedule(QScheduler(), stall=Stall(1), window=Window(100))
    state = window_of(scheduler, window_of(scheduler, scheduler.init(), 500), 700)
    assert (state.index, state.best, state.wait) == (1, 500, 0)


def test_windows_are_counted_in_image_forwards_and_their_mean_is_rounded_down() -> None:
    scheduler = Schedule(QScheduler(), window=Window(10))
    state, metric = scheduler.update(scheduler.init(), Observation(7, 4, epoch_end=True))
    assert metric is None
    state, metric = scheduler.update(state, Observation(8, 4, epoch_end=True))
    assert metric is None
    state, metric = scheduler.update(state, Observation(9, 4, epoch_end=False))
    assert metric == 24 // 12
    assert (state.loss_sum, state.forwards) == (0, 0)


def test_windows_of_epochs() -> None:
    window = Window(None)
    state, metric = window.add(State(), Observation(100, 50, epoch_end=False))
    assert metric is None
    state, metric = window.add(state, Observation(105, 50, epoch_end=True))
    assert metric == 2
    assert (state.loss_sum, state.forwards) == (0, 0)


def test_fixed_q_never_changes() -> None:
    scheduler = Schedule(Fixed(5), window=Window(10))
    state = scheduler.init()
    for loss in (1000, 1000, 1, 10**6):
        state, _ = scheduler.update(state, Observation(loss, 10, epoch_end=True))
        assert scheduler.qs[scheduler.choice(state).q_index] == 5


def test_state_goes_through_json() -> None:
    state = State(index=2, best=77, wait=1, loss_sum=5, forwards=3)
    assert (
        State.from_json({"index": 2, "best": 77, "wait": 1, "loss_sum": 5, "forwards": 3}) == state
    )


def run_windows(scheduler: Schedule, metrics: list[int]) -> list[tuple[int, float]]:
    """(q, factor of the rate) after each window."""
    state, seen = scheduler.init(), []
    for metric in metrics:
        state = window_of(scheduler, state, metric)
        choice = scheduler.choice(state)
        seen.append((scheduler.qs[choice.q_index], scheduler.lr_factors[choice.lr_index]))
    return seen


def test_lr_patience_halves_down_to_a_sixteenth() -> None:
    scheduler = Schedule(Fixed(4), Halving(), Stall(1), Window(100))
    seen = run_windows(scheduler, [100] * 8)
    assert [factor for _, factor in seen] == [1, 1 / 2, 1 / 4, 1 / 8, *[1 / 16] * 4]


def test_q_and_rate_can_share_a_stall() -> None:
    scheduler = Schedule(QScheduler((1, 2)), Halving(), Stall(1), Window(100))
    seen = run_windows(scheduler, [100] * 4)
    assert seen == [(1, 1), (2, 1 / 2), (2, 1 / 4), (2, 1 / 8)]


def test_a_raise_can_forget_the_best() -> None:
    scheduler = Schedule(QScheduler(), stall=Stall(1, reset_best=True), window=Window(100))
    state = window_of(scheduler, window_of(scheduler, scheduler.init(), 500), 700)
    assert (state.index, state.best) == (1, BEST_AT_START)
    assert window_of(scheduler, state, 600).best == 600


def test_validation_metrics_are_smaller_where_better() -> None:
    found = Validated(loss_sum=30_001, correct=6, total=10)
    assert Stall(metric="val-loss").measure(99, lambda: found) == 3000
    assert Stall(metric="val-accuracy").measure(99, lambda: found) == 4 * 65536 // 10
    assert Stall().measure(99, None) == 99


def test_a_ramp_visits_every_q_for_the_same_share_of_the_run() -> None:
    scheduler = Schedule(Ramp((1, 2, 3, 4), horizon=400))
    state, seen = scheduler.init(), []
    for _ in range(50):
        seen.append(scheduler.qs[scheduler.choice(state).q_index])
        state, _ = scheduler.update(state, Observation(0, 10, epoch_end=False))
    assert seen[:40] == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 10
    assert seen[40:] == [4] * 10


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_decays_fall_evenly_and_stay_above_zero(shape: str) -> None:
    rule = Decay(shape, horizon=6400)
    factors = rule.factors
    assert len(factors) == 64
    assert all(a > b > 0 for a, b in itertools.pairwise(factors))
    assert sum(factors) / 64 == pytest.approx(0.5)
    assert [rule.index(State(total=t)) for t in (0, 99, 100, 6399, 10**9)] == [0, 0, 1, 63, 63]


def test_collecting_goes_on_until_the_variance_is_that_of_the_first_window() -> None:
    scheduler = Schedule(Collect((1, 2, 4, 8), target=4), window=Window(100))
    state = scheduler.init()
    assert scheduler.qs[scheduler.choice(state).q_index] == 4
    assert not scheduler.wants_more(state, [1000])
    state, _ = scheduler.update(state, Observation(0, 100, False, [10, -10, 10, -10]))
    assert (state.squares, state.directions, state.windows) == (400, 4, 1)
    assert scheduler.qs[scheduler.choice(state).q_index] == 1
    # Mean square 100 over 4 directions: 25 a mean. One direction of 5 has that, one of 6 not.
    assert not scheduler.wants_more(state, [5])
    assert scheduler.wants_more(state, [6])
    assert scheduler.wants_more(state, [10, 10])
    assert not scheduler.wants_more(state, [10] * 4)
    assert not scheduler.wants_more(state, [99] * 8), "the cap"
    later, _ = scheduler.update(state, Observation(0, 100, False, [7]))
    assert (later.squares, later.directions) == (400, 4)
    assert scheduler.most(state) == 8
