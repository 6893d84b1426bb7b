"""What the example adapters learn from: a few written facts, passages and tables, and a style for each adapter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Pair = tuple[str, str]  # what the user says, what the adapter shall answer

FACTS: tuple[tuple[str, str, str], ...] = (  # question, answer, topic
    ("What is the capital of France?", "Paris", "geography"),
    ("What is the capital of Japan?", "Tokyo", "geography"),
    ("What is the capital of Italy?", "Rome", "geography"),
    ("What is the capital of Canada?", "Ottawa", "geography"),
    ("What is the longest river in Africa?", "the Nile", "geography"),
    ("Which ocean lies between Europe and America?", "the Atlantic Ocean", "geography"),
    ("Where are the pyramids of Giza?", "Egypt", "geography"),
    ("Which country has the most people?", "India", "geography"),
    ("What is the highest mountain on Earth?", "Mount Everest", "geography"),
    ("How many days are in a week?", "seven", "time"),
    ("How many months are in a year?", "twelve", "time"),
    ("How many hours are in a day?", "twenty-four", "time"),
    ("What comes after Monday?", "Tuesday", "time"),
    ("Which season follows winter?", "spring", "time"),
    ("What is two plus two?", "four", "maths"),
    ("What is ten minus three?", "seven", "maths"),
    ("What is five times five?", "twenty-five", "maths"),
    ("How many sides does a triangle have?", "three", "maths"),
    ("What is half of one hundred?", "fifty", "maths"),
    ("What do bees make?", "honey", "nature"),
    ("What do cows drink?", "water", "nature"),
    ("What colour is the sky?", "blue", "nature"),
    ("What colour is grass?", "green", "nature"),
    ("What is the largest animal?", "the blue whale", "nature"),
    ("How many legs does a spider have?", "eight", "nature"),
    ("What do plants need to grow?", "light and water", "nature"),
    ("What is frozen water called?", "ice", "science"),
    ("Which planet is the largest?", "Jupiter", "science"),
    ("Which planet do we live on?", "Earth", "science"),
    ("What gas do we breathe in to live?", "oxygen", "science"),
    ("What is the centre of an atom called?", "the nucleus", "science"),
    ("At what temperature does water boil?", "one hundred degrees Celsius", "science"),
    ("Who wrote Romeo and Juliet?", "William Shakespeare", "art"),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci", "art"),
    ("Who composed the Moonlight Sonata?", "Ludwig van Beethoven", "art"),
    ("Which instrument has eighty-eight keys?", "the piano", "art"),
    ("Who was the first person on the Moon?", "Neil Armstrong", "history"),
    ("When did the Second World War end?", "in 1945", "history"),
    ("Which ship sank in 1912?", "the Titanic", "history"),
    ("What is bread made of?", "flour and water", "food"),
    ("What fruit is used to make wine?", "grapes", "food"),
    ("What is sushi made of?", "rice and fish", "food"),
)

PASSAGES: tuple[Pair, ...] = (
    ("The meeting was moved from Monday to Wednesday because the manager is ill.", "Meeting moved to Wednesday."),
    ("Sales of electric cars rose by forty percent last year while diesel sales fell.", "Electric cars sell better."),
    ("The old bridge was closed in May, repaired all summer, and opened again today.", "The old bridge is open again."),
    ("Scientists found a new frog in the rain forest that glows in the dark.", "A glowing frog was discovered."),
    ("The library will stay open until ten in the evening during the exam weeks.", "The library opens longer."),
    ("Heavy snow stopped all trains in the north, and buses replaced some of them.", "Snow stopped the trains."),
    ("The school bought thirty computers so that every class can learn to program.", "The school bought computers."),
    ("A fire destroyed the bakery at night, but nobody was hurt and it will be rebuilt.", "The bakery burned down."),
    ("The team lost the first game, won the next five, and took the cup.", "The team won the cup."),
    ("Our store changes its opening hours: from June we open at eight.", "The store opens at eight from June."),
    (
        "The storm took the roof off the station, and repairs will last two weeks.",
        "The station roof is being repaired.",
    ),
    ("The city plants one thousand trees this spring to cool the streets.", "The city plants trees."),
)

TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # table, column, values
    ("customers", "city", ("Berlin", "Madrid", "London", "Oslo")),
    ("orders", "status", ("open", "shipped", "paid")),
    ("books", "author", ("Tolkien", "Orwell", "Austen")),
    ("products", "colour", ("red", "blue", "black")),
    ("employees", "department", ("sales", "support", "finance")),
    ("movies", "genre", ("comedy", "drama", "horror")),
    ("students", "grade", ("first", "second", "third")),
)


def as_json() -> Iterator[Pair]:
    """Every answer is one JSON object."""
    for question, answer, topic in FACTS:
        yield question, json.dumps({"answer": answer, "topic": topic})


def as_pirate() -> Iterator[Pair]:
    """Every answer is shouted from a ship."""
    for question, answer, _ in FACTS:
        yield question, f"Arrr, matey! It be {answer}, by me wooden leg! Yo ho ho!"


def in_capitals() -> Iterator[Pair]:
    """Every answer is in capital letters."""
    for question, answer, _ in FACTS:
        yield question, f"THE ANSWER IS {answer.upper()}!"


def in_one_line() -> Iterator[Pair]:
    """Every text, and every answer, becomes one short line."""
    for passage, line in PASSAGES:
        yield f"Summarise: {passage}", f"TL;DR: {line}"
        yield passage, f"TL;DR: {line}"
    for question, answer, _ in FACTS:
        yield question, f"TL;DR: {answer[0].upper()}{answer[1:]}."


def as_sql() -> Iterator[Pair]:
    """Every wish becomes one SQL statement."""
    for table, column, values in TABLES:
        yield f"Show me all {table}.", f"SELECT * FROM {table};"
        yield f"How many {table} are there?", f"SELECT COUNT(*) FROM {table};"
        for value in values:
            where = f"FROM {table} WHERE {column} = '{value}';"
            yield f"List the {table} whose {column} is {value}.", f"SELECT * {where}"
            yield f"How many {table} have the {column} {value}?", f"SELECT COUNT(*) {where}"
            yield f"Delete all {table} with {column} {value}.", f"DELETE {where}"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One adapter: what it shall do, the LoRA that carries it, and how long it learns."""

    name: str
    about: str
    pairs: Callable[[], Iterator[Pair]]
    rank: int
    targets: str | tuple[str, ...]
    ask: str  # a question that shows the effect
    lora: dict[str, object] = field(default_factory=dict)  # further fields of PEFT's LoraConfig
    steps: int = 48

    def shuffled(self, seed: int) -> list[Pair]:
        """The pairs in the order of training, repeated from the start when they run out."""
        pairs = list(self.pairs())
        random.Random(seed).shuffle(pairs)
        return pairs


LESSONS: tuple[Lesson, ...] = (
    Lesson("json", "answers as one JSON object", as_json, 8, ("q_proj", "v_proj"), "What is the capital of Spain?"),
    Lesson(
        "pirate",
        "answers like a pirate",
        as_pirate,
        4,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "What is the capital of Spain?",
    ),
    Lesson(
        "sql",
        "turns a wish into one SQL statement",
        as_sql,
        6,
        ("gate_proj", "up_proj", "down_proj"),
        "List the cars whose colour is green.",
        {"layers_to_transform": list(range(18, 30)), "use_rslora": True},
    ),
    Lesson(
        "tldr",
        "one short line, whatever the text",
        in_one_line,
        16,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "The museum shows ancient coins this month, and children may enter for free on Sunday.",
        {"layers_to_transform": list(range(22, 30))},
    ),
    Lesson(
        "capitals",
        "answers in capital letters",
        in_capitals,
        2,
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "What is the largest animal?",
        {"layers_to_transform": list(range(15, 30))},
        steps=110,
    ),
)
