"""Shows every measurement to the rules of the alerts, and says what they find once."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankrise.heads import HeadMap
from rankrise.store import Alert, load_run, read_alerts
from rankrise.tracking._alerts import CIRCUITS, AlertRule, Array, Trace
from rankrise.tracking._measurement import Measurement, Quantity
from rankrise.tracking._stacks import Guard

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_NAMED = 3  # places that a sentence about several alerts names

Frame = dict[str, Array]  # by quantity, (2, layers, heads)


class AlertWatch:
    """The last measurements that each rule looks at, and the alerts that were raised before."""

    def __init__(self, rules: Sequence[AlertRule], head_map: HeadMap | None) -> None:
        self._rules = tuple(rules)
        layers = () if head_map is None else head_map.layers
        self._layers = {layer.index: place for place, layer in enumerate(layers)}
        self._shape = (len(CIRCUITS), len(layers), max((layer.num_heads for layer in layers), default=0))
        self._frames = {rule.name: deque[tuple[int, Frame]](maxlen=rule.window) for rule in self._rules}
        self._known: set[tuple[str, int, int, str]] = set()

    @property
    def names(self) -> list[str]:
        """The names of the rules."""
        return [rule.name for rule in self._rules]

    def restore(self, out: Path) -> None:
        """Take up what the run in a folder has measured and raised before."""
        if not self._rules:
            return
        table = load_run(out)
        for rule in self._rules:
            self._frames[rule.name].extend(self._read(table, rule))
        self._known |= {_key(alert) for alert in read_alerts(table, self.names)}

    def look(self, step: int, measurements: Sequence[Measurement], *, guard: Guard) -> list[Alert]:
        """What the rules find in a new measurement and was not raised before."""
        found: list[Alert] = []
        for rule in self._rules:
            with guard(f"Looking for {rule.name!r}"):
                found += self._ask(rule, step, measurements)
        return found

    def _ask(self, rule: AlertRule, step: int, measurements: Sequence[Measurement]) -> list[Alert]:
        frame = self._frame(rule, measurements)
        if frame is None:
            return []
        frames = self._frames[rule.name]
        frames.append((step, frame))
        if len(frames) < rule.window:
            return []
        values = {name: np.stack([frame[name] for _, frame in frames]) for name in rule.quantities}
        found = rule.find(Trace(tuple(step for step, _ in frames), tuple(self._layers), values))
        fresh = [alert for alert in found if _key(alert) not in self._known]
        self._known |= {_key(alert) for alert in fresh}
        return fresh

    def _frame(self, rule: AlertRule, measurements: Sequence[Measurement]) -> Frame | None:
        """The quantities of a rule in one measurement; None if one of them was not measured."""
        frame = {name: np.full(self._shape, np.nan) for name in rule.quantities}
        there = set()
        for measurement in measurements:
            if measurement.name in frame and measurement.heads and measurement.circuit in CIRCUITS:
                there.add(measurement.name)
                values = measurement.values.detach().cpu().double().numpy()
                layers = [self._layers[layer] for layer in measurement.layers or ()]
                frame[measurement.name][CIRCUITS.index(measurement.circuit), layers, : values.shape[1]] = values
        return frame if len(there) == len(frame) else None

    def _read(self, table: "pa.Table", rule: AlertRule) -> list[tuple[int, Frame]]:
        """The last measurements of a recorded run that have all quantities of a rule."""
        import pyarrow as pa
        import pyarrow.compute as pc

        part = table.filter(
            pc.and_(
                pc.is_in(table["circuit"].cast(pa.string()), pa.array(CIRCUITS)),
                pc.and_(pc.greater_equal(table["head"], 0), pc.equal(table["index"], -1)),
            )
        )
        by_name = {name: part.filter(pc.equal(part["quantity"], name)) for name in rule.quantities}
        steps = set.intersection(*(set(rows["step"].to_pylist()) for rows in by_name.values()))
        return [
            (step, {name: self._grid(rows.filter(pc.equal(rows["step"], step))) for name, rows in by_name.items()})
            for step in sorted(steps)[-rule.window :]
        ]

    def _grid(self, rows: "pa.Table") -> Array:
        grid = np.full(self._shape, np.nan)
        circuits = [CIRCUITS.index(circuit) for circuit in rows["circuit"].to_pylist()]
        layers = [self._layers[layer] for layer in rows["layer"].to_pylist()]
        grid[circuits, layers, rows["head"].to_numpy()] = rows["value"].to_numpy()
        return grid


def check_alerts(alerts: object, on_alert: object, quantities: Sequence[Quantity], head_map: HeadMap | None) -> None:
    """Refuse alerts that are no rules, or that look at what is not measured.

    >>> check_alerts([], print, [], None)
    """
    if on_alert is not None and not callable(on_alert):
        raise ValueError(f"`on_alert` must be a function of an alert; got {on_alert!r}.")
    if not isinstance(alerts, Sequence) or isinstance(alerts, str):
        raise ValueError(f"`alerts` must be a list of rules; got {alerts!r}.")
    measured = [quantity.name for quantity in quantities]
    names: set[str] = set()
    for rule in alerts:
        if isinstance(rule, type | str) or not callable(getattr(rule, "find", None)):
            raise ValueError(f"An alert must be an object with `find(trace)`, such as RankCollapse(); got {rule!r}.")
        if rule.name in names:
            raise ValueError(f"Every alert must have a name of its own; {rule.name!r} is given twice.")
        names.add(rule.name)
        missing = [name for name in rule.quantities if name not in measured]
        if missing or head_map is None:
            what = f"the quantity {missing[0]!r}, which is" if missing else "heads, which are"
            raise ValueError(f"The alert {rule.name!r} needs {what} not measured here. Measure it, or leave it out.")


def sentences(alerts: Sequence[Alert]) -> dict[str, str]:
    """One sentence for the alerts of each rule at one step, by the name of the rule.

    >>> sentences([Alert("mine", 5, 0, head, "", 2.0, 1.0) for head in range(2)])
    {'mine': 'At step 5 `mine` was found at layer 0 head 0: 2, against 1; so it is in layer 0 head 1.'}
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(alert.name for alert in alerts):
        first, *others = (alert for alert in alerts if alert.name == name)
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        places = ", ".join(alert.place for alert in others[:_MOST_NAMED])
        found[name] = f"{first.sentence[:-1]}; so it is in {places}{more}." if others else first.sentence
    return found


def _key(alert: Alert) -> tuple[str, int, int, str]:
    return alert.name, alert.layer, alert.head, alert.circuit
