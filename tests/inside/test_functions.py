"""Functions with two behaviours: their effect while they are redirected, and their state afterwards."""

import math
import time
import weakref
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from simdist.inside.python import Batch, Redirection, can_be_redirected, code_with, looks_up


def _says(word: str) -> Any:
    return lambda original: lambda *args, **kwargs: word


def _many() -> list[BuiltinFunctionType]:
    found = [each for module in (math, time) for each in vars(module).values()]
    return [each for each in found if isinstance(each, BuiltinFunctionType) and can_be_redirected(each)]


def test_a_builtin_function_does_the_other_thing_and_then_its_own() -> None:
    batch = Batch([Redirection(math.sqrt, _says("redirected"))])

    batch.switch(on=True)
    during: Any = math.sqrt(4.0)
    batch.switch(on=False)

    assert during == "redirected"
    assert math.sqrt(4.0) == 2.0


def test_a_python_function_does_the_other_thing_and_then_its_own() -> None:
    def own() -> str:
        return "own"

    batch = Batch([Redirection(own, _says("redirected"))])

    batch.switch(on=True)
    during = own()
    batch.switch(on=False)

    assert (during, own()) == ("redirected", "own")


def test_more_functions_than_are_written_at_once_are_all_switched() -> None:
    functions = _many()
    batch = Batch([Redirection(each, _says(each.__name__)) for each in functions] * 2)

    batch.switch(on=True)
    during = [each() for each in functions]
    batch.switch(on=False)

    assert len(functions) * 2 > 100
    assert during == [each.__name__ for each in functions]
    assert math.floor(2.5) == 2


def test_weak_references_to_a_function_outlive_its_redirection() -> None:
    batch = Batch([Redirection(math.exp, _says("redirected"))])

    batch.switch(on=True)
    made_meanwhile = weakref.ref(math.exp)
    batch.switch(on=False)

    assert made_meanwhile() is math.exp
    assert weakref.ref(math.exp)() is math.exp


def test_a_function_keeps_its_name_and_module_while_it_is_redirected() -> None:
    function: Any = math.cos
    batch = Batch([Redirection(function, _says("redirected"))])

    batch.switch(on=True)
    during = function.__name__, function.__module__, isinstance(function.__self__, ModuleType)
    batch.switch(on=False)

    assert during == ("cos", "math", True)


_word = 1


def _says_a_word() -> int:
    return _word


says_a_word: Any = _says_a_word


def test_code_with_a_value_for_a_global_name_has_it_in_place_of_the_name() -> None:
    redirection = Redirection.to_code(says_a_word, _other_word)

    redirection.switch(on=True)
    while_on = says_a_word()
    redirection.switch(on=False)

    assert (while_on, says_a_word()) == (2, 1)
    assert Redirection.to_code(says_a_word, _other_word) is redirection


def _other_word(function: FunctionType) -> CodeType:
    code = code_with(function, {"_word": 2})
    assert code.co_filename == function.__code__.co_filename
    assert {line for _, _, line in code.co_lines()} == {line for _, _, line in function.__code__.co_lines()}
    return code


def test_a_name_that_is_used_as_something_else_too_is_no_mere_look_up() -> None:
    def attribute() -> object:
        return _word, says_a_word, math.says_a_word  # type: ignore[attr-defined]

    function: Any = attribute
    names = ("_word", "says_a_word", "missing")
    assert [looks_up(function, name) for name in names] == [True, False, False]
