"""The words of Paraver's .cfg files, as its loader knows them.

Paraver does not check a word's place: a function of the wrong group, an unknown statistic or a
derived window without parents end the program. So every name is checked against these tables before
a view is written.
"""

from __future__ import annotations

from types import MappingProxyType


def _split_words(text: str) -> tuple[str, ...]:
    """Return the words of a list; several words of one name have single blanks between them."""
    return tuple(" ".join(word.split()) for word in text.split(",") if word.strip())


def _load_functions(*by_parameters: str) -> MappingProxyType[str, int]:
    """Return function -> how many parameters it takes, of lists of those with none, one, two."""
    return MappingProxyType(
        {name: count for count, text in enumerate(by_parameters) for name in _split_words(text)}
    )


#: Function -> how many parameters it takes (each a number or a list of numbers), by group: those that
#: tell of state records, of communications, and of threads, with all others.
OF_STATES = _load_functions(
    "State As Is, Useful, State Sign", "Given State, In State, Not In State, State Record Dur."
)
OF_COMMUNICATIONS = _load_functions(
    """
    Last Tag, Comm Size, Comm Recv. Partner, Comm Partner, Last Send Dur., Next Recv Dur.,
    Last Send Size, Send Bytes in Transit, Send Messages in Transit, Recv Bytes in Transit,
    Recv Messages in Transit, Recv Negative Messages, Recv Negative Bytes, Number Of Sends,
    Number Of Send Bytes, Number Of Receives, Number Of Receive Bytes, Event Bytes,
    Event Sent Bytes
    """,
    "Send BandWidth, Recv BandWidth",
)
_OF_EVENTS = _load_functions(
    """
    Last Evt Type, Last Evt Val, Last Evt Val w/o Bursts, Next Evt Type, Next Evt Val,
    Int. Between Evt, Application ID, TaskID, Thread ID, Node ID, Cpu ID
    """,
    """
    Avg Next Evt Val, Avg Last Evt Val, Given Evt Val, In Evt Val, Not In Evt Val, In Appl ID,
    In Task ID, In Thread ID, In Node ID, In Cpu ID
    """,
    "In Evt Range",
)
THREAD = MappingProxyType({**_OF_EVENTS, **OF_STATES, **OF_COMMUNICATIONS})
HIGH = _load_functions(
    "Adding, AddingSign, Average, Maximum, Minimum, Mode, Changed value",
    "Activity, In Activity, Thread i, Add Tasks",
)
PROCESSOR = _load_functions("Active Thd, Active Thd Sign", "Active Thd Val, Active Thd Val Sign")
COMPOSE = _load_functions(
    """
    As Is, Sign, 1-Sign, Floor, Ceil, Round, Abs, Stacked Val, Nesting level, Enumerate, Accumulate,
    Delta, Burst Time, Divide by Burst Time, Begin Time, End Time, Join Bursts, sin, cos,
    sqrt (abs), arc tan
    """,
    """
    Mod, Mod+1, Div, Prod, Add, Subs, Complement, Inverse Div, Is Equal, Is Equal (Sign),
    In Stacked Val, LRU Depth, Timer, Translate, log N, exp
    """,
    "Select Range, Select Range [), Is In Range, Is In Range [)",
)
OPERATIONS = _split_words(
    """
    add, product, substract, divide, maximum, minimum, different, controlled: clear by,
    controlled: maximum, controlled: add, controlled: enumerate, controlled: average
    """
)

#: Place of a function in `window_selected_functions` -> its group and what stands there when
#: nothing is asked for.
SELECTED = MappingProxyType(
    {
        "cpu": (PROCESSOR, "Active Thd"),
        "appl": (HIGH, "Adding"),
        "task": (HIGH, "Adding"),
        "thread": (THREAD, "State As Is"),
        "node": (HIGH, "Adding"),
        "system": (HIGH, "Adding"),
        "workload": (HIGH, "Adding"),
    }
)
#: A composed window has no functions at these places.
SINGLE_ONLY = ("cpu", "thread")
COMPOSES = (*(f"compose_{place}" for place in SELECTED), "topcompose1", "topcompose2")
FILTERS = ("from_obj", "to_obj", "tag_msg", "size_msg", "bw_msg", "evt_type", "evt_value")
#: Condition -> least and greatest number of values.
CONDITIONS = MappingProxyType(
    {"All": (0, 0), "None": (0, 0), "[x,y]": (2, 2)}
    | dict.fromkeys(("=", "!=", ">", "<"), (1, 10_000))
)
#: From coarse to fine; the others are those of the machine.
PROCESS_LEVELS = ("workload", "appl", "task", "thread")
RESOURCE_LEVELS = ("system", "node", "cpu")
UNITS = ("Nanoseconds", "Microseconds", "Milliseconds", "Seconds", "Minutes", "Hours", "Days")
#: How a timeline is drawn -> (coloured, colour mode or none: a colour per value).
LOOKS = MappingProxyType(
    {
        "code": (True, ""),
        "gradient": (True, "window_in_null_gradient_mode"),
        "line": (False, ""),
        "fused": (True, "window_in_fused_lines_mode"),
    }
)
DRAW_MODES = _split_words(
    """
    draw_last, draw_maximum, draw_minnotzero, draw_random, draw_randnotzero, draw_average,
    draw_averagenotzero, draw_mode, draw_absolute_maximum, draw_absolute_minimum
    """
)
STATISTICS = _split_words(
    """
    Time, % Time, % Time Not Zero, % Window Time, # Bursts, % # Bursts, Integral, Average value,
    Maximum, Minimum, Average Burst Time, Stdev Burst Time, Average per Burst, Average value != 0,
    Average per Burst != 0, # Bursts != 0, Sum bursts
    """
)
COMMUNICATION_STATISTICS = _split_words(
    """
    #Sends, #Receives, Bytes sent, Bytes received, Average bytes sent, Average bytes received,
    Minimum bytes sent, Minimum bytes received, Maximum bytes sent, Maximum bytes received
    """
)
#: The largest number that Paraver keeps as an event type with a label.
LAST_TYPE = 2**31 - 1
