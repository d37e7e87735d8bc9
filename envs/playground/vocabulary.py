"""The words of Playground-Text: colours, object types, categories, and what feeds what.

An object is a colour and a type, numbered ``3 * type + colour``; its text is ``"<colour> <type>"``.
The vocabulary is that of the original Playground (Colas et al., 2020, IMAGINE).
"""

COLOURS = ("red", "blue", "green")
FURNITURE = tuple("door chair desk lamp table cupboard sink window sofa carpet".split())
PLANTS = tuple("cactus carnivorous flower tree bush grass algae tea rose bonsai".split())
ANIMALS = tuple("dog cat chameleon human fly parrot mouse lion pig cow".split())
SUPPLIES = ("food", "water")
TYPES = FURNITURE + PLANTS + ANIMALS + SUPPLIES

CATEGORIES: dict[str, tuple[str, ...]] = {
    "animal": ANIMALS,
    "plant": PLANTS,
    "furniture": FURNITURE,
    "supply": SUPPLIES,
    "living_thing": ANIMALS + PLANTS,
}

OBJECTS = tuple(f"{colour} {name}" for name in TYPES for colour in COLOURS)
"""The text of every object, indexed by object id (96 of them)."""

VERBS = ("Grasp", "Grow")


def type_of(object_id: int) -> str:
    """Returns the type of an object, such as ``"water"``."""
    return TYPES[object_id // len(COLOURS)]


def is_living(object_id: int) -> bool:
    """Whether an object is an animal or a plant, and so can grow."""
    return type_of(object_id) in CATEGORIES["living_thing"]


def feeds(supply: int, living: int) -> bool:
    """Whether one object makes another grow: water feeds animals and plants, food animals."""
    if type_of(supply) == "water":
        return is_living(living)
    return type_of(supply) == "food" and type_of(living) in ANIMALS
