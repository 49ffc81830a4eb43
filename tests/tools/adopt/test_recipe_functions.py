"""Functions in a recipe's own file are followed as text, and anything else that they may do is
reported.
"""

from __future__ import annotations

import warnings

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.tools.adopt.configs.recipe_source import default_factory, recipe_calls
from runbook.tools.adopt.messages import AdoptMessage

RECIPE = "recipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n"
STEPS = "trainer.max_steps"
GBS = "data.global_batch_size"


def values_of(text: str) -> dict[str, tuple[object, bool]]:
    """Return the values from the only recipe in a file."""
    (call,) = recipe_calls(text, "recipe.py")
    return {value.name: (value.value, value.known) for value in call.values}


FOLLOWED = {
    "a function changes it": (
        "def tune(r, steps):\n    r.trainer.max_steps = steps\n" + RECIPE + "tune(recipe, 5)\n",
        {STEPS: (5, True)},
    ),
    "and gives it back": (
        "def tune(r, steps=7):\n    r.trainer.max_steps = steps\n    return r\n"
        + RECIPE
        + "recipe = tune(recipe)\nrecipe.trainer.devices = 4\n",
        {STEPS: (7, True), "trainer.devices": (4, True)},
    ),
    "a part of it": (
        "def cut(s, *, tp):\n    s.tensor_model_parallel_size = tp\n"
        + RECIPE
        + "cut(recipe.trainer.strategy, tp=4)\n",
        {"trainer.strategy.tensor_model_parallel_size": (4, True)},
    ),
    "through two functions": (
        "def inner(x):\n    x.trainer.max_steps = 9\ndef outer(y):\n    inner(y)\n"
        + RECIPE
        + "outer(recipe)\n",
        {STEPS: (9, True)},
    ),
    "a branch that literals decide": (
        "def tune(r, big=False):\n    if big and 2 > 1:\n        r.trainer.max_steps = 9\n"
        "    else:\n        r.trainer.max_steps = 1\n" + RECIPE + "tune(recipe, big=True)\n",
        {STEPS: (9, True)},
    ),
    "a function makes a part": (
        "def data(gbs):\n    seq = 4096\n    return run.Config(D, seq_length=seq, global_batch_size=gbs)\n"
        + RECIPE
        + "recipe.data = data(8)\n",
        {"data._target_": ("D", True), "data.seq_length": (4096, True), GBS: (8, True)},
    ),
    "an object becomes a part": (
        RECIPE
        + "d = run.Config(D, global_batch_size=8)\nd.seq_length = 5\nrecipe.data = d\n"
        + "d.global_batch_size = 16\n",
        {"data._target_": ("D", True), "data.seq_length": (5, True), GBS: (16, True)},
    ),
    "callbacks are appended": (
        RECIPE
        + "recipe.trainer.callbacks.append(run.Config(Timing))\n"
        + "recipe.trainer.callbacks.extend([run.Config(Overlap, tp_comm_overlap=True), mine])\n",
        {
            "trainer.callbacks.append_2._target_": ("Timing", True),
            "trainer.callbacks.extend_3_0._target_": ("Overlap", True),
            "trainer.callbacks.extend_3_0.tp_comm_overlap": (True, True),
            "trainer.callbacks.extend_3_1": ("mine", False),
        },
    ),
    "a callback that is given parts": (
        RECIPE + "recipe.trainer.callbacks.append(run.Config(Flops, data=recipe.data))\n",
        {
            "trainer.callbacks.append_2._target_": ("Flops", True),
            "trainer.callbacks.append_2.data": ("recipe.data", False),
        },
    ),
    "one call's literals reach the recipe": (
        "def make(nodes=1, steps=2):\n    r = llm.llama3_8b.pretrain_recipe(num_nodes=nodes)\n"
        "    r.trainer.max_steps = steps\n    return r\nrecipe = make(nodes=1, steps=6)\n",
        {STEPS: (6, True)},
    ),
    "another name for nemo_run": (
        RECIPE + "nr.run(recipe, executor=nr.LocalExecutor())\n",
        {},
    ),
    "a value that has a name": (
        RECIPE + "d = run.Config(D)\nrecipe.data = d\nrecipe.other = d\n",
        {"data._target_": ("D", True), "other._target_": ("D", True)},
    ),
    "a recipe that is started at once": (
        "run.run(llm.llama3_8b.pretrain_recipe(num_nodes=1), executor=e)\n",
        {},
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_function_of_the_file_is_followed(name):
    text, expected = FOLLOWED[name]
    assert values_of(text) == {"pretrain_recipe.num_nodes": (1, True), **expected}


TUNE = "def tune(r, n=5):\n    r.trainer.max_steps = n\n"
OPEN = {
    "a value of the command line": (TUNE + RECIPE + "tune(recipe, args.n)\n", STEPS),
    "a branch of the caller": (TUNE + RECIPE + "if x:\n    tune(recipe)\n", STEPS),
    "a branch of the function": (
        "def tune(r):\n    if x:\n        r.trainer.max_steps = 5\n" + RECIPE + "tune(recipe)\n",
        STEPS,
    ),
    "an early return": (
        "def tune(r):\n    if x:\n        return\n    r.trainer.max_steps = 5\n"
        + RECIPE
        + "tune(recipe)\n",
        STEPS,
    ),
    "a decorated function": ("@wrap\n" + TUNE + RECIPE + "tune(recipe)\n", "line 5"),
    "a function defined twice": (TUNE + TUNE + RECIPE + "tune(recipe)\n", "line 6"),
    "a function of an argument's name": (
        TUNE + RECIPE + "tune(recipe)\ndef other(tune):\n    pass\n",
        "line 4",
    ),
    "a generator": (TUNE + "    yield r\n" + RECIPE + "tune(recipe)\n", "line 5"),
    "arguments in a list": (TUNE + RECIPE + "tune(*[recipe])\n", "line 4"),
    "a function without end": (
        "def tune(r):\n    tune(r)\n" + RECIPE + "tune(recipe)\n",
        "line 2",
    ),
    "another function inside": (
        "def tune(r):\n    mystery(r)\n" + RECIPE + "tune(recipe)\n",
        "line 2",
    ),
    "a recipe inside a call": (
        TUNE + "tune(llm.llama3_8b.pretrain_recipe(num_nodes=1))\n",
        "line 3",
    ),
    "a maker inside a call": (
        "def make():\n    r = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n    return r\n"
        "recipe = mystery(make())\n",
        "line 4",
    ),
    "something else comes back": (
        "def tune(r):\n    return copy(r)\n" + RECIPE + "recipe = tune(recipe)\n",
        "line 4",
    ),
    "a part of which two may be meant": (
        RECIPE + "d = run.Config(D, a=1)\nif x:\n    d = load\nrecipe.data = d\n",
        "data",
    ),
    "a part that a loop sets": (
        RECIPE + "d = run.Config(D, a=1)\nfor d in all:\n    pass\nrecipe.data = d\n",
        "data",
    ),
    "a part that a function changes": (
        RECIPE + "d = run.Config(D, a=1)\nmystery(d)\nrecipe.data = d\n",
        "line 3",
    ),
    "a part that a function may make": (
        "def data():\n    if x:\n        return A()\n    return B()\n"
        + RECIPE
        + "recipe.data = data()\n",
        "data",
    ),
    "an element of an unknown list": (
        RECIPE + "recipe.trainer.callbacks.append(Mine(recipe))\n",
        "line 2",
    ),
    "a number that is set again": (
        "N = 5\ndef tune(r):\n    r.trainer.max_steps = N\n" + RECIPE + "tune(recipe)\nN = 6\n",
        STEPS,
    ),
    "a part that a stranger makes of it": (RECIPE + "recipe.optim = mine(r=recipe)\n", "line 2"),
    "a maker that gets a recipe": (
        "def make(r):\n    mine(r)\n    return llm.llama3_8b.pretrain_recipe(num_nodes=1)\n"
        "recipe = make(None)\nother = make(recipe)\n",
        "line 5",
    ),
    "two names at once": (
        RECIPE + "recipe.data, steps = data(recipe.data.seq_length)\n",
        "line 2",
    ),
    "another name for it": (
        "recipe = other = llm.llama3_8b.pretrain_recipe(num_nodes=1)\nmystery(other)\n",
        "line 2",
    ),
    "a return with the recipe": (
        "def make():\n    r = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n    if x:\n        return r\n"
        "    r.trainer.max_steps = 5\n    return r\n",
        STEPS,
    ),
}

CALL = "llm.llama3_8b.pretrain_recipe(num_nodes=1)"
MADE_IN_CLASS = f"class A:\n    def __init__(self):\n        self.recipe = {CALL}\n"
MADE_GLOBAL = f"recipe = None\ndef make():\n    global recipe\n    recipe = {CALL}\n"
CHANGE_LATER = "    recipe.trainer.max_steps = 5\n"
OPEN |= {
    "an attribute that another method changes": (
        MADE_IN_CLASS + "    def tune(self):\n        self.recipe.trainer.max_steps = 5\n",
        STEPS,
    ),
    "an attribute that a method above changes": (
        "class A:\n    def tune(self):\n        self.recipe.trainer.max_steps = 5\n"
        + MADE_IN_CLASS.removeprefix("class A:\n"),
        STEPS,
    ),
    "an attribute that a method gives away": (
        MADE_IN_CLASS + "    def tune(self):\n        mystery(self.recipe)\n",
        "line 5",
    ),
    "an attribute in a loop of another method": (
        MADE_IN_CLASS
        + "    def tune(self):\n        for c in self.recipe.parts:\n            c.x = 1\n",
        "line 5",
    ),
    "a global name that another function changes": (
        MADE_GLOBAL + "def tune():\n" + CHANGE_LATER + "make()\ntune()\n",
        STEPS,
    ),
    "a global name that the file changes": (
        MADE_GLOBAL + "make()\nrecipe.trainer.max_steps = 5\n",
        STEPS,
    ),
    "a function above the recipe": ("def tune():\n" + CHANGE_LATER + RECIPE + "tune()\n", STEPS),
    "a function below the recipe": (RECIPE + "def tune():\n" + CHANGE_LATER + "tune()\n", STEPS),
    "a function that declares the name": (
        RECIPE + "def tune():\n    global recipe\n" + CHANGE_LATER + "tune()\n",
        STEPS,
    ),
    "a loop in a function below": (
        RECIPE + "def tune():\n    for c in recipe.parts:\n        c.x = 1\n",
        "line 3",
    ),
    "a default": (
        RECIPE + "def tune(r=recipe):\n    r.trainer.max_steps = 5\ntune()\n",
        "line 2",
    ),
    "an element of a dictionary": (
        f"recipes['a'] = {CALL}\nrecipes['a'].trainer.max_steps = 5\n",
        "line 1",
    ),
    "an element that a function made": (
        f"def make():\n    r = {CALL}\n    return r\n"
        "recipes['a'] = make()\nrecipes['a'].trainer.max_steps = 5\n",
        "line 4",
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_a_function_may_do_otherwise_is_not_lost(name):
    text, unknown = OPEN[name]
    values = values_of(text)
    assert values[unknown][1] is False
    assert not any(known for name, (_, known) in values.items() if name == STEPS)


READ_ONLY = {
    "a method starts it": MADE_IN_CLASS + "    def run(self):\n        run.run(self.recipe)\n",
    "a method has a name of its own": MADE_IN_CLASS
    + "    def tune(self, recipe):\n        recipe.trainer.max_steps = 5\n",
    "a function has its own recipe": "def tune(recipe):\n" + CHANGE_LATER + RECIPE,
    "the file names it first": MADE_GLOBAL + "make()\nrun.run(recipe)\n",
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_a_function_that_changes_nothing_in_a_shared_recipe_adds_nothing(name):
    assert values_of(READ_ONLY[name]) == {"pretrain_recipe.num_nodes": (1, True)}


def test_the_function_that_makes_a_shared_recipe_is_sure_of_it():
    values = values_of(MADE_IN_CLASS + "        self.recipe.trainer.max_steps = 5\n")
    assert values[STEPS] == (5, True)


DOUBLED = "".join(f"d{n} = run.Config(D, a=d{n - 1}, b=d{n - 1})\n" for n in range(1, 60))
LONG = "def f(r):\n" + "    r.trainer.max_steps = 5\n" * 3000
NAMES = [f"r{n}" for n in range(290)]
MANY = RECIPE + "".join(f"{name} = C()\nrecipe.{name} = {name}\n" for name in NAMES)
WITHOUT_END = {
    "doubled objects": RECIPE + "d0 = run.Config(D)\n" + DOUBLED + "recipe.data = d59\n",
    "a long function": LONG + RECIPE + "f(recipe)\n" * 1000,
    "many objects": RECIPE
    + "".join(f"a{n} = C(x={n})\nif x:\n    recipe.y{n} = a{n}\n" for n in range(400)),
    "a loop over many recipes": MANY + f"for {', '.join(NAMES)} in x:\n" + "    y = 1\n" * 2000,
}


@pytest.mark.parametrize("name", WITHOUT_END)
def test_a_file_that_grows_without_end_is_named_or_refused(name):
    try:
        values = values_of(WITHOUT_END[name])
    except ParamsError:
        return
    assert not all(known for _, known in values.values())


EARLY_RETURNS = (
    f"def make():\n    {RECIPE}"
    + "    if recipe:\n        return\n" * 2000
    + "    recipe.trainer.max_steps = 5\n"
)
ALL_NAMES = f"f({', '.join(NAMES)})\n"
REFUSED = [
    (
        MANY + ALL_NAMES * 80,
        AdoptMessage.MANY_RECIPES_IN_A_STATEMENT.of(line=1 + MANY.count("\n"), most=50),
    ),
    (EARLY_RETURNS, AdoptMessage.MANY_BRANCHES.of(line=3 + 2 * 200, most=200)),
]


@pytest.mark.parametrize(("text", "refusal"), REFUSED, ids=["recipes", "branches"])
def test_a_file_whose_reading_would_take_hours_is_refused_with_its_limit(text, refusal):
    with refuses(ParamsError, refusal):
        values_of(text)


def test_a_name_of_very_many_recipes_is_refused():
    makers = "".join(f"    def f{n}(self):\n        self.recipe = make()\n" for n in range(101))
    text = f"def make():\n    r = {CALL}\n    return r\nclass A:\n{makers}"
    with refuses(ParamsError, AdoptMessage.MANY_RECIPES_OF_A_NAME, most=100, name="self.recipe"):
        values_of(text)


def test_a_loop_is_named_by_its_head_alone():
    head = "for part in recipe.parts:"
    values = values_of(f"{RECIPE}{head}\n    part.x = 1\n")
    assert values["line 2"] == (head, False)


def test_the_work_on_one_file_has_an_end():
    functions = "".join(
        f"def f{number}(r):\n" + f"    f{number + 1}(r)\n" * 8 for number in range(30)
    )
    values = values_of(functions + RECIPE + "f0(recipe)\n")
    assert any(name.startswith("line ") for name in values)


def test_a_backslash_in_a_string_of_a_recipe_warns_nobody():
    text = "from nemo.collections import llm\nr = llm.llama3_8b.pretrain_recipe(num_nodes=1)\nx = '\\d'\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(recipe_calls(text, "recipe.py")) == 1
        assert default_factory(text) == ""
