"""The words of Paraver's .cfg files, as its loader knows them.

Paraver does not check a word's place: a function of the wrong group, an unknown statistic or a
derived window without parents end the program. So every name is checked against these tables before
a view is written.
"""

from __future__ import annotations

from types import MappingProxyType


def _functions(*plain: str, **with_parameters: int) -> MappingProxyType[str, int]:
    return MappingProxyType({**dict.fromkeys(plain, 0), **with_parameters})


#: Function -> how many parameters it takes (each a number or a list of numbers), by group: those that
#: tell of state records, of communications, and of threads, with all others.
OF_STATES = _functions(
    "State As Is",
    "Useful",
    "State Sign",
    **dict.fromkeys(
        (
            "Given State",
            "In State",
            "Not In State",
            "State Record Dur.",
        ),
        1,
    ),
)
OF_COMMUNICATIONS = _functions(
    "Last Tag",
    "Comm Size",
    "Comm Recv. Partner",
    "Comm Partner",
    "Last Send Dur.",
    "Next Recv Dur.",
    "Last Send Size",
    "Send Bytes in Transit",
    "Send Messages in Transit",
    "Recv Bytes in Transit",
    "Recv Messages in Transit",
    "Recv Negative Messages",
    "Recv Negative Bytes",
    "Number Of Sends",
    "Number Of Send Bytes",
    "Number Of Receives",
    "Number Of Receive Bytes",
    "Event Bytes",
    "Event Sent Bytes",
    **dict.fromkeys(
        (
            "Send BandWidth",
            "Recv BandWidth",
        ),
        1,
    ),
)
THREAD = _functions(
    "Last Evt Type",
    "Last Evt Val",
    "Last Evt Val w/o Bursts",
    "Next Evt Type",
    "Next Evt Val",
    "Int. Between Evt",
    "Application ID",
    "TaskID",
    "Thread ID",
    "Node ID",
    "Cpu ID",
    **dict.fromkeys(
        (
            "Avg Next Evt Val",
            "Avg Last Evt Val",
            "Given Evt Val",
            "In Evt Val",
            "Not In Evt Val",
            "In Appl ID",
            "In Task ID",
            "In Thread ID",
            "In Node ID",
            "In Cpu ID",
        ),
        1,
    ),
    **{"In Evt Range": 2},
    **OF_STATES,
    **OF_COMMUNICATIONS,
)
HIGH = _functions(
    "Adding",
    "AddingSign",
    "Average",
    "Maximum",
    "Minimum",
    "Mode",
    "Changed value",
    **{"Activity": 1, "In Activity": 1, "Thread i": 1, "Add Tasks": 1},
)
PROCESSOR = _functions(
    "Active Thd", "Active Thd Sign", **{"Active Thd Val": 1, "Active Thd Val Sign": 1}
)
COMPOSE = _functions(
    "As Is",
    "Sign",
    "1-Sign",
    "Floor",
    "Ceil",
    "Round",
    "Abs",
    "Stacked Val",
    "Nesting level",
    "Enumerate",
    "Accumulate",
    "Delta",
    "Burst Time",
    "Divide by Burst Time",
    "Begin Time",
    "End Time",
    "Join Bursts",
    "sin",
    "cos",
    "sqrt (abs)",
    "arc tan",
    **dict.fromkeys(
        (
            "Mod",
            "Mod+1",
            "Div",
            "Prod",
            "Add",
            "Subs",
            "Complement",
            "Inverse Div",
            "Is Equal",
            "Is Equal (Sign)",
            "In Stacked Val",
            "LRU Depth",
            "Timer",
            "Translate",
            "log N",
            "exp",
        ),
        1,
    ),
    **dict.fromkeys(("Select Range", "Select Range [)", "Is In Range", "Is In Range [)"), 2),
)
OPERATIONS = (
    "add",
    "product",
    "substract",
    "divide",
    "maximum",
    "minimum",
    "different",
    "controlled: clear by",
    "controlled: maximum",
    "controlled: add",
    "controlled: enumerate",
    "controlled: average",
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
COMPOSES = (
    "compose_cpu",
    "compose_appl",
    "compose_task",
    "compose_thread",
    "compose_node",
    "compose_system",
    "compose_workload",
    "topcompose1",
    "topcompose2",
)
FILTERS = ("from_obj", "to_obj", "tag_msg", "size_msg", "bw_msg", "evt_type", "evt_value")
#: Condition -> least and greatest number of values.
CONDITIONS = MappingProxyType(
    {
        "All": (0, 0),
        "None": (0, 0),
        "=": (1, 10_000),
        "!=": (1, 10_000),
        ">": (1, 10_000),
        "<": (1, 10_000),
        "[x,y]": (2, 2),
    }
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
DRAW_MODES = (
    "draw_last",
    "draw_maximum",
    "draw_minnotzero",
    "draw_random",
    "draw_randnotzero",
    "draw_average",
    "draw_averagenotzero",
    "draw_mode",
    "draw_absolute_maximum",
    "draw_absolute_minimum",
)
STATISTICS = (
    "Time",
    "% Time",
    "% Time Not Zero",
    "% Window Time",
    "# Bursts",
    "% # Bursts",
    "Integral",
    "Average value",
    "Maximum",
    "Minimum",
    "Average Burst Time",
    "Stdev Burst Time",
    "Average per Burst",
    "Average value != 0",
    "Average per Burst != 0",
    "# Bursts != 0",
    "Sum bursts",
)
COMMUNICATION_STATISTICS = (
    "#Sends",
    "#Receives",
    "Bytes sent",
    "Bytes received",
    "Average bytes sent",
    "Average bytes received",
    "Minimum bytes sent",
    "Minimum bytes received",
    "Maximum bytes sent",
    "Maximum bytes received",
)
#: The largest number that Paraver keeps as an event type with a label.
LAST_TYPE = 2**31 - 1
