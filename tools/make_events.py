"""Make the page of events from the declarations of their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import (
    DomainCode,
    Field,
    NameSet,
    ValueSet,
    find_hashed_types,
    load_catalogue,
    load_counter_tables,
)
from nsys2prv.match import all_relations

HEAD = """# Events in the trace

Made from the declarations in `nsys2prv/events/` and `nsys2prv/events/catalogue/events/`.

A range is one record at its begin, with all its event types, and one at its end with the same types and value 0. Ranges that
lie within each other on one row (calls, NVTX) are value / 0 pairs: show them with Paraver's compose function *Stacked Val*.
Types with an NVTX domain in their code are base + 100 · n, where n is the domain's number: 0 for the default domain, a fixed one
for the domains listed at the end, else one that the domain's name alone decides, so that it is the same in every trace.
*Optional* types stand only in the records of events that have the attribute, types marked *--args* only where they are asked for. Numbers without labels (sizes, ids, counts; 9107 and 9108, for
instance) are left out of records where they are 0, unless ranges lie within each other or the record is a change of state: between
records they are 0 anyway.

A change of state is one record that stands until the next one of its row, with 0 at the end of the trace: show it with *Last Evt Val*.
A sample of counters is one record with all numbers of its instant; each holds until the next record of its row that has it, and is 0 at
the end of the trace. The type of a counter depends on its name alone. A device has one row, whichever reports hold its samples: a GPU's
in the first task that works on it, those of all others in a task for the devices of their host, behind all processes. Numbers with
fractions are integers whose label ends in what they are multiplied by: `(x 1000)`.

Labels are plain ASCII, with `\\u00e9` for é: [from-bsc.md](from-bsc.md) tells why. Beside kernels and graph executions the types of memory
operations and NCCL kernels are declared even where there are none.
"""

STATES = """## States

Records of states are written with `--states`. Values, labels and colours are Extrae's. The innermost of the ranges that imply a state
tells it: what began last and, of what began together, the shortest. Calls of the operating system and pthread calls tell only where no
other range does, since they are how others wait. Outside of all a thread is Running, unless its scheduler took it off the CPU
(Blocked), lets it wait for its turn (Idle) or ended it (Not created); a stream is Idle. A thread without any event or line in the
trace, of which nothing is known, is Not created throughout. A row with states is in one at every time of the trace: they neither overlap nor
leave gaps. Rows of devices have none, nor the further rows of a thread for ranges that overlap. Kinds that `-t` leaves out say nothing of
states.

They are not written by default because of what reads traces. POP's BasicAnalysis knows traces of nsys2prv by their lack of states and
finds in them the useful time of devices and what they spend on communication, NCCL's kernels included. A trace with states it takes for
one of Extrae: there it tells the programming models by the layout of the .pcf and the GPUs by row names that are Extrae's, so that it
finds none, and time in NCCL's kernels, here Group Communication, would be no communication of a device.
"""

#: What is to be said of the numbers of a layout.
NOTES = {
    "nvtx_payload": " Fractions have types of their own, whose labels tell what they are multiplied by (nvtx.md).",
    "gpu_metric": " A sample tells of the time since the one before it. Where nothing was sampled the number is 0: a zero stands one "
    "period before the first sample, and before those behind holes of several periods.",
}


def page() -> str:
    """The text of the page."""
    return "\n".join(
        [
            HEAD,
            *_kinds(),
            *_relations(),
            *_states(),
            *_counter_tables(),
            *_lines(),
            *_value_sets(),
            *_domains(),
        ]
    )


def _kinds() -> Iterator[str]:
    for kind in sorted(all_kinds(), key=lambda kind: kind.title):
        yield f"## {kind.title}\n"
        including = (*kind.groups, *kind.implied_by)
        groups = ", ".join(f"`{name}`" for name in dict.fromkeys(including))
        included = f"; included in {groups}" if groups else ""
        included += f"; not by default: name it, or use `{kind.opt_in}`" if kind.opt_in else ""
        yield f"`-t {kind.name}`{included}. Row: {kind.row}. {_tables((*kind.tables, *kind.lookup_tables))}.\n"
        yield from _layouts(kind.layouts)


def _tables(names: tuple[str, ...]) -> str:
    return (
        f"Tables: {', '.join(f'`{name}`' for name in names)}"
        if names
        else "It follows from the events of other kinds"
    )


def _relations() -> Iterator[str]:
    yield "## Found by comparing the ranks\n"
    for relation in all_relations():
        yield from _layouts(relation.layouts)


def _states() -> Iterator[str]:
    yield f"{STATES}\n| value | state | within |\n|---|---|---|"
    labels = {state.value: state.label for state in load_catalogue().states}
    within: dict[int, list[str]] = {value: [] for value in labels}
    for layout in load_catalogue().layouts.values():
        rule = layout.state
        for value in labels:
            if rule is not None and value in {
                rule.otherwise,
                *(state for state, _ in rule.names),
                *(state for _, state in rule.values),
            }:
                some = " (some)" if rule.names or rule.values else ""
                within[value].append(f"{layout.title}{some}")
    yield from (
        f"| {value} | {label} | {'; '.join(sorted(within[value]))} |"
        for value, label in labels.items()
    )
    yield ""


def _layouts(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name in load_counter_tables():
            yield from _counters(name)
            continue
        layout = load_catalogue().layouts[name]
        yield f"### {layout.title}\n"
        yield "| type | label | values | |\n|---|---|---|---|"
        yield from (_field(field) for field in layout.fields)
        yield ""


def _counters(layout: str) -> Iterator[str]:
    yield f"### {load_catalogue().layouts[layout].title}\n"
    table = load_counter_tables()[layout]
    where = f"[Types of {load_catalogue().layouts[layout].title}](#types-of-{load_catalogue().layouts[layout].title.replace(' ', '-').lower()}); "
    if layout in find_hashed_types():
        first, last = find_hashed_types()[layout]
        hashed = f"{'other names' if table.labels else 'names'}: {first} to {last}, by a hash of the name."
        yield f"{where if table.labels else ''}{hashed}{NOTES.get(layout, '')}\n"
    else:
        yield f"{where.rstrip('; ')}.\n"


def _counter_tables() -> Iterator[str]:
    for layout, table in load_counter_tables().items():
        if table.labels:
            yield f"## Types of {load_catalogue().layouts[layout].title}\n\n| type | label |\n|---|---|"
            yield from (f"| {code} | {label} |" for code, label in sorted(table.labels.items()))
            yield ""


def _field(field: Field) -> str:
    code = str(field.code)
    if isinstance(field.code, DomainCode):
        base = [] if field.code.only_named else [f"{field.code.base} + 100 · n"]
        code = "; ".join([*base, *(f"{domain}: {number}" for domain, number in field.code.named)])
    label = field.label.replace("{domain}", "*domain*")
    asked = "--args" if field.detail else "--lines launches" if field.of_launch else ""
    present = asked or "optional" if field.optional else ""
    return f"| {code} | {label} | {_values(field)} | {present} |"


def _values(field: Field) -> str:
    if isinstance(field.values, ValueSet):
        return f"[{field.values.name}](#{field.values.name})"
    if isinstance(field.values, NameSet):
        known = field.values.list_known_values()
        fixed = (
            f"fixed {min(known.values())} to {max(known.values())}, unknown ones " if known else ""
        )
        return f"{fixed}names in order of their text, from {field.values.first}"
    return field.unit or "number"


def _lines() -> Iterator[str]:
    yield "## Lines (communication records)\n\n| tag | meaning |\n|---|---|"
    yield from (
        f"| {line.tag or 'its own'} | {line.label} |" for line in load_catalogue().lines.values()
    )
    yield ""


def _value_sets() -> Iterator[str]:
    for values in load_catalogue().value_sets.values():
        yield f"### {values.name}\n\n| value | label |\n|---|---|"
        yield from (f"| {value} | {label} |" for value, label in values.labels)
        yield ""


def _domains() -> Iterator[str]:
    yield "## Numbers of NVTX domains\n"
    yield (
        ", ".join(
            f"{number} {name or '*default*'}"
            for number, name in enumerate(load_catalogue().domains)
        )
        + "\n"
    )
