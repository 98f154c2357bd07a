"""Instances of classes that rules name live in an acceptor; compared with the same class here."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from offload_modules import UserModule, held

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import ClassRule, Config, FunctionRule
from remotegpu_offload.functions import client, containers
from remotegpu_offload.objects.codec import RefusedError

USER = UserModule(
    "user_models",
    ClassRule("user_models.Model", mutates="auto"),
    ClassRule("user_models.Slim"),
    ClassRule("user_models.Store"),
    FunctionRule("user_models.same_items"),
    FunctionRule("user_models.weigh"),
)


@pytest.fixture
def models(session: Session) -> Any:
    """The user's module as it is when it is imported under its rules: `Derived` finds its base class replaced."""
    module = USER.empty()
    source = USER.path.read_text()
    derived = source.index("class Derived")
    parts = source[:derived], "\n" * source[:derived].count("\n") + source[derived:]
    for part in parts:
        exec(compile(part, str(USER.path), "exec"), vars(module))
        client.install(module, USER.config, session)
    return module


def trips(session: Session) -> int:
    return session.peer.counters.round_trips


def test_it_is_a_real_class(session: Session, models: Any, local: Any) -> None:
    original = models.Model.__mro__[2]
    model = models.Model(3, name="x")
    assert isinstance(model, models.Model) and isinstance(model, original) and isinstance(model, models.Base)
    assert issubclass(models.Model, models.Base) and models.Model.__doc__ == "A model."
    assert inspect.signature(models.Model) == inspect.signature(local.Model)
    assert inspect.signature(models.Model.total) == inspect.signature(local.Model.total)
    assert (models.Model.__name__, models.Model.__qualname__, models.Model.__module__) == (
        "Model",
        "Model",
        "user_models",
    )


def test_methods_attributes_and_properties_are_the_acceptors(session: Session, models: Any) -> None:
    start = trips(session)
    model = models.Model(3, name="x")
    assert model.where() not in (0, os.getpid()) and model.total(extra=1) == 4
    assert trips(session) - start == 3
    assert (model.size, model.name, model.items, model.kind, model.double) == (3, "x", [0, 1, 2], "plain", 6)
    model.name, model.double, model.new = "y", 8, {"a": 1}
    assert (model.name, model.size, model.new) == ("y", 4, {"a": 1}) and model.describe() == "base y 3"
    del model.new
    assert not hasattr(model, "new") and hasattr(model, "size") and getattr(model, "other", 5) == 5
    with pytest.raises(AttributeError, match="nothing"):
        _ = model.nothing
    with pytest.raises(TypeError, match="size"):
        models.Model()
    with pytest.raises(LookupError, match="y"):
        model.fail()


def test_special_methods_are_the_acceptors(session: Session, models: Any) -> None:
    model, other = models.Model(3), models.Model(4)
    assert len(model) == 3 and model[1] == 1 and 2 in model and 9 not in model and list(model) == [0, 1, 2]
    model[0] = 7
    del model[1]
    assert list(model) == [7, 2] and model(5) == 15 and repr(model) == "Model(3)" and str(model) == "Model(3)"
    assert (model == other, model != other, model < other, bool(models.Model(0)), hash(model)) == (
        False,
        True,
        True,
        False,
        2,
    )
    assert {model: 1}[model] == 1
    with model as entered:
        assert entered is model and model.entered == 1
    with model:
        raise KeyError("swallowed there")
    with pytest.raises(ValueError, match="not"), model:
        raise ValueError("not")
    assert model.entered == 0
    assert list(model.numbers()) == [7, 2] and model.each(lambda item: item + 1) == [8, 3]
    array = np.ones(2)
    model.scale(array)
    assert array.tolist() == [3, 3]


def test_results_that_are_instances_stay_in_the_acceptor(session: Session, models: Any) -> None:
    model = models.Model(2, name="x")
    assert model.itself() is model
    sibling = model.sibling()
    assert type(sibling) is models.Model and sibling.name == "sibling" and sibling.where() == model.where()
    total = model + sibling
    assert type(total) is models.Model and total.size == 5
    assert model.merge(sibling) is model and list(model) == [0, 1, 0, 1, 2]
    made = models.Model.of("4")
    assert type(made) is models.Model and made.size == 4 and made.name == "Model"
    assert models.Model.pid() == model.where()


def _use(store: Any) -> list[Any]:
    """Changes of a store's attributes, and what they return."""
    items, by_name, names = store.items, store.by_name, store.names
    told: list[Any] = [
        items.append(4),
        items.extend(each for each in (5, 6)),
        items.sort(key=lambda each: -each),
        items.pop(0),
        by_name.setdefault("b", []).append(2),
        by_name.setdefault("b", []),
        by_name.update({"c": 1}, d=2),
        by_name.pop("a"),
        names.add("y"),
        names.pop() in ("x", "y"),
        len(names),
    ]
    store.items += [7]
    store.items[0:2] = iter([8, 9])
    del store.items[-1]
    store.by_name["e"] = store.items is items
    store.by_name |= {"f": 1}
    store.names |= {"z"}
    names.clear()
    store.fresh.append("nowhere")
    vars(store)["added"] = [1]
    items.extend(items)
    wrongs: tuple[Callable[[], Any], ...] = (
        lambda: items.remove("absent"),
        lambda: by_name.pop("absent"),
        lambda: items.pop(99),
    )
    for wrong in wrongs:
        with pytest.raises((ValueError, LookupError)) as raised:
            wrong()
        told.append(type(raised.value))
    return [*told, items, by_name, names, store.added, list(vars(store)), *store.seen()]


def test_containers_of_an_instance_are_changed_in_the_acceptor(session: Session, models: Any, local: Any) -> None:
    store = models.Store()
    assert _use(store) == _use(local.Store())
    assert [attribute for attribute in dir(store) if attribute[0] != "_"] == [
        attribute for attribute in dir(_added(local.Store())) if attribute[0] != "_"
    ]
    # A copy is a plain one, and belongs to nobody.
    items = store.items
    for plain in (copy.copy(items), copy.deepcopy(items), pickle.loads(pickle.dumps(items)), [*items]):
        assert type(plain) is list and plain == items
    assert repr(items) == repr(list(items)) and isinstance(items, list)
    # It is the object there, for the calls to which it goes.
    assert store.has(items) and models.same_items(store, items) and not store.has(list(items))
    # What the object does is seen when it is asked again.
    store.change()
    assert items[-1] != "there" and store.items is items and items[-1] == "there"
    store.change()
    items.remove("there")
    assert items == store.items == store.seen()[0]
    del items, store
    assert held(session)[:2] == (0, 0)


def _added(store: Any) -> Any:
    store.added = [1]
    return store


def test_a_malformed_answer_for_an_attribute_is_refused(session: Session, models: Any) -> None:
    kept = models.Store().items
    answers: list[Any] = [[1], (1, 2), (1, 2, 3), ((), kept), ({}, kept), (None, kept), kept]
    for answer in answers:
        with pytest.raises(RefusedError):
            containers.taken(answer)
    assert kept == [3, 1] and containers.taken(([5], kept)) is kept == [5] and containers.taken((1, None)) == 1


def test_instances_are_arguments_of_functions_and_methods_in_the_acceptor(session: Session, models: Any) -> None:
    model = models.Model(3)
    start = trips(session)
    assert models.weigh(model) == 3 and trips(session) - start == 1


def test_copies_are_made_in_the_acceptor(session: Session, models: Any) -> None:
    model = models.Model(3)
    shallow, deep = copy.copy(model), copy.deepcopy({"m": model, "again": model})
    assert type(shallow) is models.Model and deep["m"] is deep["again"] is not model
    model[0] = 9
    assert shallow[0] == 9 and deep["m"][0] == 0


def test_pickles_have_the_state_and_load_without_offload(session: Session, models: Any, tmp_path: Path) -> None:
    model = models.Model(3, name="kept")
    model[0] = 5
    data = pickle.dumps([model, model])
    first, second = pickle.loads(data)
    assert first is second is not model and type(first) is models.Model
    assert list(first) == [5, 1, 2] and first.name == "kept" and first.where() == model.where()
    path = tmp_path / "model.pickle"
    path.write_bytes(data)
    program = f"import pickle; m, _ = pickle.load(open({str(path)!r}, 'rb')); print(type(m).__mro__, m.items, m.name)"
    environment = {**os.environ, "PYTHONPATH": str(USER.path.parent)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert "Shell" not in result.stdout and "[5, 1, 2] kept" in result.stdout


def test_a_class_with_slots(session: Session, models: Any) -> None:
    slim = models.Slim(4)
    assert slim.more() == 5 and slim.a == 4
    slim.b = 6
    assert slim.b == 6 and copy.deepcopy(slim).b == 6
    assert pickle.loads(pickle.dumps(slim)).b == 6


def test_a_derived_class_is_executed_in_the_acceptor_as_a_whole(session: Session, models: Any) -> None:
    model = models.Derived(3, name="d")
    assert isinstance(model, models.Model) and model.where() != os.getpid()
    assert model.total() == 1003 and model.describe() == "derived d 1003" and models.weigh(model) == 1003
    assert model.itself() is model and type(copy.copy(model)) is models.Derived
    assert type(models.Derived.of("2")) is models.Derived


def test_a_local_class_is_sent_by_value(session: Session, models: Any) -> None:
    class Mine(models.Model):  # type: ignore[misc]
        def __init__(self, size: int, more: int) -> None:
            super().__init__(size, name="mine")
            self.more = more

        def hook(self) -> str:
            return f"hook {self.more} {os.getpid()}"

        def total(self, extra: int = 0) -> int:
            return int(super().total(extra)) + self.more

        @property
        def triple(self) -> int:
            return self.size * 3  # type: ignore[no-any-return]

    model = Mine(3, more=50)
    assert model.total(1) == 54 and model.triple == 9
    assert model.describe() == f"hook 50 {model.where()} mine 53" and model.where() != os.getpid()
    assert model.itself() is model and models.weigh(model) == 53
    again = copy.deepcopy(model)
    assert type(again) is Mine and again.total() == 53
    assert list(inspect.signature(Mine).parameters) == ["size", "more"]


def test_instances_end_with_their_last_reference(session: Session, models: Any) -> None:
    assert held(session)[:2] == (0, 0)
    kept = [models.Model(1) for _ in range(20)]
    copies = [copy.copy(each) for each in kept]
    assert held(session)[:2] == (40, 40)
    del kept[5:], copies
    assert held(session)[:2] == (5, 5)
    kept.clear()
    assert held(session)[:2] == (0, 0)
    for _ in range(200):
        models.Model(2)
    assert held(session)[:2] == (0, 0)


def test_a_constructor_that_fails_leaves_nothing(session: Session, models: Any) -> None:
    with pytest.raises(TypeError):
        models.Model("not a number")
    assert held(session)[:2] == (0, 0)


def test_an_instance_of_a_class_without_a_rule_is_refused(session: Session, models: Any) -> None:
    from remotegpu_offload.functions import classes
    from remotegpu_offload.objects.table import Handle

    caller: Any = client.of(session)
    for kind in (int, object, "text", models.Base):
        with pytest.raises(RefusedError):
            classes.received(caller, Handle(1, "instance", caller.codec.held.dead), kind)
    caller.codec.held.dead.clear()


def test_a_final_class_cannot_be_replaced(session: Session) -> None:
    module = ModuleType("user_final")
    vars(module)["final"] = type(None)
    with pytest.raises(TypeError, match="NoneType"):
        client.install(module, Config(rules=(ClassRule("user_final.final"),)), session)
