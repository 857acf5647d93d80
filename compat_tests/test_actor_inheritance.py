"""Base classes, mixins, ``super()`` and the refusal to subclass actor classes."""

from __future__ import annotations

import abc

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


class Base:
    kind = "base"

    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value

    def who(self):
        return "base"

    @staticmethod
    def static():
        return "base static"

    @classmethod
    def cls_kind(cls):
        return cls.kind


class Mixin:
    def mixed(self):
        return f"mixed {self.value}"


@ray.remote
class Child(Mixin, Base):
    kind = "child"

    def __init__(self, value, extra):
        super().__init__(value)
        self.extra = extra

    def who(self):
        return "child of " + super().who()

    def both(self):
        return self.value, self.extra


def test_inherited_methods_are_remote_methods():
    child = Child.remote(1, 2)
    assert ray.get(child.get.remote()) == 1
    assert ray.get(child.mixed.remote()) == "mixed 1"
    assert ray.get(child.both.remote()) == (1, 2)


def test_super_reaches_the_base_class():
    assert ray.get(Child.remote(1, 2).who.remote()) == "child of base"


def test_inherited_static_and_class_methods():
    child = Child.remote(1, 2)
    assert ray.get(child.static.remote()) == "base static"
    assert ray.get(child.cls_kind.remote()) == "child"


def test_base_class_stays_a_plain_class():
    assert Base(3).get() == 3
    assert ray.get(ray.remote(Base).remote(4).get.remote()) == 4


def test_inherited_constructor_is_checked_at_the_call():
    @ray.remote
    class Sub(Base):
        pass

    with pytest.raises(TypeError, match="missing a required argument"):
        Sub.remote()
    assert ray.get(Sub.remote(5).get.remote()) == 5


def test_super_constructor_of_a_class_in_a_function():
    class Local:
        def __init__(self):
            self.steps = ["local"]

    @ray.remote
    class Deeper(Local):
        def __init__(self):
            super().__init__()
            self.steps.append("deeper")

        def get(self):
            return self.steps

    assert ray.get(Deeper.remote().get.remote()) == ["local", "deeper"]


def test_super_with_arguments_naming_the_base():
    class Low:
        def name(self):
            return "low"

    class Middle(Low):
        def name(self):
            return "middle " + super(Middle, self).name()

    @ray.remote
    class High(Middle):
        def name(self):
            return "high " + super().name()

    assert ray.get(High.remote().name.remote()) == "high middle low"


def test_diamond_follows_the_method_resolution_order():
    class Top:
        def trail(self):
            return ["top"]

    class Left(Top):
        def trail(self):
            return ["left", *super().trail()]

    class Right(Top):
        def trail(self):
            return ["right", *super().trail()]

    @ray.remote
    class Bottom(Left, Right):
        def trail(self):
            return ["bottom", *super().trail()]

    trail = ray.get(Bottom.remote().trail.remote())
    assert trail == ["bottom", "left", "right", "top"]


def test_abstract_base_class():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self):
            """Return the area."""

        def twice(self):
            return 2 * self.area()

    @ray.remote
    class Square(Shape):
        def __init__(self, side):
            self.side = side

        def area(self):
            return self.side**2

    assert ray.get(Square.remote(3).twice.remote()) == 18


def test_two_actor_classes_of_one_base():
    @ray.remote
    class One(Base):
        def who(self):
            return "one"

    @ray.remote
    class Two(Base):
        def who(self):
            return "two"

    actors = [One.remote(1), Two.remote(2)]
    assert ray.get([a.who.remote() for a in actors]) == ["one", "two"]
    assert ray.get([a.get.remote() for a in actors]) == [1, 2]


def test_ray_method_of_a_base_class_is_inherited():
    class Pair:
        @ray.method(num_returns=2)
        def pair(self):
            return 1, 2

    @ray.remote
    class Sub(Pair):
        pass

    first, second = Sub.remote().pair.remote()
    assert ray.get([first, second]) == [1, 2]


def test_properties_work_inside():
    @ray.remote
    class Celsius:
        def __init__(self):
            self.degrees = 20

        @property
        def kelvin(self):
            return self.degrees + 273

        @kelvin.setter
        def kelvin(self, value):
            self.degrees = value - 273

        def use(self):
            self.kelvin += 1
            return self.degrees, self.kelvin

    assert ray.get(Celsius.remote().use.remote()) == (21, 294)


def test_generic_base_class():
    from typing import Generic, TypeVar

    T = TypeVar("T")

    @ray.remote
    class Box(Generic[T]):
        def __init__(self, item: T):
            self.item = item

        def get(self) -> T:
            return self.item

    assert ray.get(Box.remote(3).get.remote()) == 3


def test_subclassing_an_actor_class_is_a_type_error():
    with pytest.raises(TypeError, match="subclass"):

        class Grandchild(Child):
            pass


def test_subclassing_an_actor_class_raises_its_own_error():
    from ray.actor import ActorClassInheritanceException

    with pytest.raises(ActorClassInheritanceException):

        @ray.remote
        class Grandchild(Child):
            pass


def test_isinstance_of_the_class_inside_the_actor():
    @ray.remote
    class Sub(Base):
        def check(self):
            return isinstance(self, Base), type(self).__name__

    is_base, name = ray.get(Sub.remote(1).check.remote())
    assert is_base
    assert name == "Sub"
