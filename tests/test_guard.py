"""The guard: a hook that fails changes nothing for the engine."""

import logging

import pytest

from pdtrace.tracing.guard import Guard


class Engine:
    """Something with a method worth observing."""

    def step(self, value: int, *, double: bool = False) -> int:
        """Twice the value, or the value; negative ones are an error of the engine's own."""
        if value < 0:
            raise ValueError(value)
        return value * 2 if double else value


def broken(*_: object, **__: object) -> None:
    """A hook that fails."""
    raise RuntimeError("planted")


def test_hooks_see_arguments_and_result() -> None:
    """Before the call its arguments, behind it the result too."""
    engine, seen = Engine(), []
    Guard().observe(
        engine,
        "step",
        before=lambda *args, **kwargs: seen.append((args, kwargs)),
        after=lambda *args, **kwargs: seen.append((args, kwargs)),
    )
    assert engine.step(3, double=True) == 6
    assert seen == [((3,), {"double": True}), ((6, 3), {"double": True})]


def test_a_failing_hook_leaves_the_result_alone_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both sides fail every time; the engine's result is its own, and one line is logged."""
    engine, guard = Engine(), Guard()
    guard.observe(engine, "step", before=broken, after=broken)
    with caplog.at_level(logging.ERROR, "pdtrace"):
        assert [engine.step(i) for i in range(3)] == [0, 1, 2]
    assert guard.errors == {"step": 6}
    assert len(caplog.records) == 1
    assert "planted" in caplog.text


def test_a_hook_that_fails_too_often_switches_itself_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the third error: then only the engine's method runs; two lines say what is lost."""
    engine, guard, called = Engine(), Guard(error_limit=3), []

    def fails(*_: object, **__: object) -> None:
        called.append("before")
        raise RuntimeError("planted")

    guard.observe(
        engine,
        "step",
        before=fails,
        after=lambda *_, **__: called.append("after"),
        lost="the spans pd.kv_wait",
    )
    with caplog.at_level(logging.ERROR, "pdtrace"):
        assert [engine.step(i, double=True) for i in range(6)] == [0, 2, 4, 6, 8, 10]
    assert called == ["before", "after", "before", "after", "before"]
    assert guard.errors == {"step": 3}
    assert caplog.messages == [
        "pdtrace: hook step failed; the request is served as without tracing, but the spans "
        "pd.kv_wait are missing or wrong. Further errors of it are only counted",
        "pdtrace: hook step failed 3 times and is off until the process starts again: the spans "
        "pd.kv_wait are no longer recorded",
    ]


def test_the_engines_own_error_passes_unmodified() -> None:
    """Behind a call that raised nothing is observed."""
    engine, guard, seen = Engine(), Guard(), []
    guard.observe(engine, "step", after=lambda *args: seen.append(args))
    with pytest.raises(ValueError, match="-1"):
        engine.step(-1)
    assert not seen and not guard.errors


def test_an_error_of_the_engines_own_can_be_seen() -> None:
    """It passes all the same, also when the hook that sees it fails."""
    engine, guard, seen = Engine(), Guard(), []
    guard.observe(engine, "step", raised=lambda *args: seen.append(args))
    guard.observe(engine, "step", raised=broken)
    with pytest.raises(ValueError, match="-1") as raised:
        engine.step(-1)
    assert engine.step(1) == 1
    assert seen == [(raised.value, -1)] and guard.errors == {"step": 1}


def test_what_is_no_error_of_ours_passes() -> None:
    """Exit and interrupt are not swallowed."""

    def leaves() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Guard().isolate("leaves", leaves)()


def test_a_method_that_does_not_exist_is_not_observed() -> None:
    """That instant is absent; nothing is added to the object."""
    engine = Engine()
    assert Guard().observe(engine, "no_such_method", before=broken) is False
    assert not hasattr(engine, "no_such_method")


def test_a_strict_guard_raises() -> None:
    """So that tests of hooks see their errors."""
    engine = Engine()
    Guard(strict=True).observe(engine, "step", before=broken)
    with pytest.raises(RuntimeError, match="planted"):
        engine.step(1)
