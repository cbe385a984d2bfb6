"""QScheduler's integer rules, and the windows that they look at."""

from __future__ import annotations

from npusim.zo.schedulers import (
    BEST_AT_START,
    Fixed,
    Observation,
    QScheduler,
    Schedule,
    Stall,
    State,
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
