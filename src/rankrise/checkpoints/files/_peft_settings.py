"""What a PEFT config gives each module: a rank and an alpha, by pattern or by default.

PEFT matches each key of a pattern as a regular expression, and an expression from a file can take forever. The keys
that are read here consist of characters, `.`, `.*` and `|` only. Between two `.*` every match has one length, so that
looking from left to right finds a match without ever going back, in a time that grows with the product of the lengths.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankrise.checkpoints.files._folders import show

_LONGEST_KEY = 1000  # a name has up to 500 characters, and each may be escaped
_MOST_LENGTH = 500_000  # most characters of all keys together; a thousand modules have fifty thousand
_MOST_WORK = 1_000_000_000  # comparisons of a character; a thousand modules with a key each take forty million
_TOKEN = re.compile(r"(?P<gap>\.\*)|(?P<or>\|)|(?P<place>[\^$])|(?P<one>\\[^\w\s]|\\[dw]|[\w.-])")
_MEND = "Mend its config."


@dataclass(frozen=True)
class _Piece:
    """An expression that matches texts of one length."""

    expression: re.Pattern[str]
    length: int

    def ends(self, module: str) -> int:
        """Where it begins if the name ends in it; -1 if the name does not."""
        begin = len(module) - self.length
        return begin if begin >= 0 and self.expression.fullmatch(module, begin) else -1


def _matches(pieces: Sequence[_Piece], module: str) -> bool:
    """Whether pieces, with any text between them, match a name, or the end of a name behind a dot."""
    *before, last = pieces
    begin, end = last.ends(module), 0
    if not before:
        return begin == 0 or (begin > 0 and module[begin - 1] == ".")
    begins = [0, *(dot.end() for dot in re.finditer(r"\.", module))]
    found = next((match for place in begins if (match := before[0].expression.match(module, place))), None)
    for piece in before[1:]:
        found = found and piece.expression.search(module, found.end())
    end = found.end() if found else len(module) + 1
    return begin >= end


class PeftSettings:
    """The rank or the alpha of every module, as PEFT reads it: of the first key that matches, else the default.

    Args:
        config: An `adapter_config.json`; `rank_pattern` and `alpha_pattern` go before `r` and `lora_alpha`.
        kind: Which of the two settings.

    Raises:
        ValueError: The setting is of another type, or a key is more than a name with `.*` and `|`.

    >>> PeftSettings({"r": 8, "rank_pattern": {"q_proj": 4}}, "rank").of("layers.0.q_proj")
    4
    """

    def __init__(self, config: Mapping[str, Any], kind: Literal["rank", "alpha"]) -> None:
        self._name = f"{kind}_pattern"
        self._default = config.get("r" if kind == "rank" else "lora_alpha")
        pattern = config.get(self._name)
        if not isinstance(pattern, Mapping | None):
            raise ValueError(f"{self._name} of an adapter must be an object; got {show(pattern, 40)!r}. {_MEND}")
        self.values = (self._default, *(pattern or {}).values())
        if kind == "rank" and not all(type(value) is int and value > 0 for value in self.values if value is not None):
            raise ValueError(
                f"r and rank_pattern of an adapter must be whole numbers; got {show(self.values)}. {_MEND}"
            )
        if sum(map(len, pattern or ())) > _MOST_LENGTH:
            raise ValueError(f"{self._name} must have fewer keys; reading them takes too long. {_MEND}")
        self._keys = [(_alternatives(key, self._name), value) for key, value in (pattern or {}).items()]
        self._work = 0

    def of(self, module: str) -> Any:
        """What a module is given.

        Args:
            module: Name of the module in memory.

        Raises:
            ValueError: The keys are so many, and so long, that matching them would take too long.
        """
        for alternatives, value in self._keys:
            for pieces, length in alternatives:
                self._work += length * (len(module) if len(pieces) > 1 else 1)
                if self._work > _MOST_WORK:
                    raise ValueError(f"{self._name} must have fewer keys; matching them takes too long. {_MEND}")
                if _matches(pieces, module):
                    return value
        return self._default


def _alternatives(key: str, name: str) -> list[tuple[list[_Piece], int]]:
    """The pieces of each alternative of a key, and how long they are together."""
    tokens = list(_TOKEN.finditer(key))
    if len(key) > _LONGEST_KEY or "".join(token[0] for token in tokens) != key:
        raise ValueError(f"A key of {name} must be a plain name; got {show(key)!r}. Write full module names.")
    found: list[list[list[re.Match[str]]]] = [[[]]]
    for token in tokens:
        if token["or"]:
            found.append([[]])
        elif token["gap"]:
            found[-1].append([])
        else:
            found[-1][-1].append(token)
    read = [[_piece(piece) for piece in pieces] for pieces in found]
    return [(pieces, sum(piece.length for piece in pieces)) for pieces in read]


def _piece(tokens: Sequence[re.Match[str]]) -> _Piece:
    return _Piece(re.compile("".join(token[0] for token in tokens)), sum(bool(token["one"]) for token in tokens))
