"""What is checked: every rule with its severity, what is wrong where it is broken, and what that does in Paraver.

What Paraver does was seen by running paramedir (Paraver 4.11) on traces made for it, or read in its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """ERROR: Paraver or a tool of it crashes, hangs, refuses, loses something or shows it wrongly. WARNING: it misleads. REMARK: good to
    know."""

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


@dataclass(frozen=True)
class Rule:
    """name: its id. part: where it applies. wrong: what is wrong; effect: what that does."""

    name: str
    part: str
    severity: Severity
    wrong: str
    effect: str


PARTS = {"file": "The .prv as a file", "header": "Its header (the first line)", "body": "Its lines and numbers", "object": "Objects of records",
         "time": "Times", "event": "Events", "state": "States", "comm": "Communications", "pcf": "The .pcf file", "row": "The .row file"}

_ERRORS = """
file not-a-trace | the first line does not begin with "#Paraver (" | Paraver does not recognise the file
file file-name | the name ends in neither .prv nor .prv.gz | Paraver does not recognise the file
file damaged-gzip | the compressed data are damaged or end early | Paraver reads the records up to there and no further
file no-records | there is no record of a state, an event or a communication | Paraver refuses to load the trace
header header-syntax | the header does not follow "#Paraver (date):duration_unit:nodes(cpus,...):applications:tasks(threads:node,...),communicators" \
| Paraver refuses to load the trace, or loads other objects than were meant
header node-without-cpus | a node has no CPU | Paraver crashes (segmentation fault)
header task-on-node-0 | a task is on node 0 | Paraver refuses to load the trace
header task-on-absent-node | a task is on a node beyond the number of nodes | every view of the trace loops for ever
header too-many-objects | more applications, tasks, threads, nodes or CPUs than 16 bits hold | Paraver refuses to load the trace, drops what is \
beyond 65535, or crashes
header communicators-missing | fewer lines of communicators follow the header than it announces | Paraver refuses to load the trace
body unknown-record | a line is no state (1), event (2), communication (3) or comment (#) | Paraver skips it with a message
body number-syntax | a number is not plain digits (blank, sign, decimal point, exponent or letter) | Paraver skips the record, or reads another number
body number-overflow | a number does not fit into 64 bits | Paraver reads another number
body fields-missing | a record has too few fields | Paraver skips it with a message
body crash-comment | a comment has CUTTER as its second field but not seven fields | Paraver crashes (segmentation fault)
object object-absent | a record names an application, task or thread that the header does not have | Paraver skips the record
object object-wraps | the number of an application, task or thread is above 65535 | Paraver takes it modulo 65536, for another object
object cpu-absent | a record names a CPU beyond those of all nodes | Paraver skips the record
object cpu-on-other-node | a record names a CPU that is not on the node of its task | Paraver skips the record
time time-order | a record lies before an earlier line's time | views are right, but Paraver's cutter, filter and shifters read the file as a \
stream and silently drop or misplace what comes too late
time negative-time | a time is negative | Paraver skips the record
time time-inexact | a time is above 2^53 | Paraver keeps times as doubles: neighbouring times become equal
time comm-beyond-end | a communication has a time behind the end of the trace | it lies outside every view and table
event odd-pair | an event has a type without a value | Paraver skips it with a message
event negative-type | an event type is negative | Paraver skips the record
event type-wraps | an event type does not fit into 32 bits | Paraver takes it modulo 2^32, for another type
event negative-value | an event value is negative | Paraver's cutter writes without end until the disk is full
state negative-state | the number of a state is negative | Paraver skips the record
state state-wraps | the number of a state does not fit into 32 bits | Paraver takes it modulo 2^32, for another state
state state-backwards | a state ends before it begins | what Paraver shows there is nonsense
pcf pcf-line-ends | lines end with a carriage return | Paraver finds no section: nothing has a label
pcf type-line | a line of an EVENT_TYPE is not "colour type label" | Paraver drops the type with all labels of its values
pcf type-among-values | a type stands among the VALUES of another, without EVENT_TYPE before it | Paraver takes it for a label of a value, and the \
type has none
row row-size | the SIZE of a level is not the number of names that follow | names shift: a level loses its names or shows others'
"""

_WARNINGS = """
file line-cut | the last line has no line end | Paraver reads it, but the file may be cut short: the last number may lack digits
header unit | the unit of the duration is neither _ns nor _ms nor _us | Paraver takes all times for microseconds
header nodes-beyond | the list of CPUs has more nodes than the header announces | Paraver ignores the rest of the list
header tasks-beyond | the list of an application has more tasks than it announces | Paraver ignores the rest of the list
body communicator-beyond | a line of a communicator that the header does not announce, or not right behind it | Paraver skips it with a message
body blank-line | a line of blanks | Paraver skips it with a message
body empty-field | a number is missing between colons | Paraver reads 0
body fields-beyond | a record has more fields than its kind | Paraver ignores the rest
body collective | a record of kind 4 | Paraver accepts it and throws it away
time time-beyond-duration | a record lies behind the duration in the header | Paraver moves the end of the trace for events and states, but not \
for communications; tools rely on the header
event event-without-pair | an event has no type | nothing of it is shown
event type-unlabelled | a type has no label in the .pcf | Paraver shows "Unknown type", and views that look types up by label miss it
event type-beyond-labels | a type is above 2147483647 | no .pcf can give it a label
event value-unlabelled | a value has no label although its type has VALUES | Paraver shows its number
event value-inexact | a value is above 2^53 | views compute in doubles: its last digits are lost
event range-open-at-end | a range of a type with VALUES is never ended with 0 | Paraver shows its value until the end of the trace
event counter-open-at-end | the last value of a counter is not 0 and stands before the end of the trace | Paraver shows it until the end of the trace
event range-unbalanced | fewer ends (0) than begins on a row, of a type whose ranges nest | Paraver's Stacked Val shows an outer range again, to the \
end of the trace
event zero-length-range | a value and then 0 at the same time on a row: a range of no length, or the end of a range written behind the begin of the \
next one | Paraver shows 0 from there, and no table counts the range
state state-zero-length | a state has no length | it is not drawn and not counted, and events at its time may come in another order
state state-overlap | a state begins before the one before it on its row ends | Paraver shows gaps
state state-unlabelled | a state has no label in the .pcf | Paraver shows "Unknown state"
state state-open | a state has the end -1 | Paraver shows it until the next one of its row
comm sent-backwards | the physical send is before the logical send | views of messages in transit and of bandwidth ignore the message
comm received-before-sent | a message is received before it is sent | the line goes backwards, and views of messages in transit ignore the message
comm negative-size | a size is negative | tables of bytes subtract it
pcf pcf-missing | there is no .pcf file beside the trace | Paraver shows numbers instead of labels
pcf pcf-encoding | a label is not valid UTF-8 | wxparaver shows an empty text
pcf pcf-blank-line | a line of blanks | what Paraver's reader does with it is undefined
pcf outside-section | a line stands before any section | Paraver ignores it
pcf event-type-empty | an EVENT_TYPE has no type | its values belong to nothing
pcf value-line | a line of VALUES is not "value label" | Paraver drops the label
pcf state-line | a line of STATES is not "state label" | Paraver drops the label
pcf color-line | a line of STATES_COLOR is not "number {red,green,blue}" with parts from 0 to 255 | Paraver ignores it or takes another colour
pcf color-number | a colour has a negative number, or one above ten million | Paraver's table of colours grows to gigabytes
pcf precision-line | PRECISION has no number of decimals | Paraver shows the integers
pcf type-twice | a type is declared twice | labels of the second declaration replace those of the first
pcf value-twice | a value is labelled twice in one type | the second label replaces the first
pcf type-labels-equal | types have the same label | views that look types up by label take them all
pcf value-labels-equal | values of one type have the same label | they cannot be told apart in tables, and views that look values up by label take them all
pcf number-beyond-labels | a type or value in the .pcf is above 2147483647 | Paraver ignores the label
pcf label-in-brackets | a label is all in [brackets] | Paraver cuts it from short column headers: the column has no name
pcf label-control | a label has a tab or another control character | it breaks the columns of Paraver's text output
pcf label-wildcard | the label of a type has a * | a saved view that looks it up takes it as a wildcard
pcf zero-label | the value 0 of a type has a label that names something | 0 is painted as background and ends ranges: what it names is never seen
pcf values-overlap | types that the same views show together label the same value differently | such a view shows one of the labels for both
row row-header | a line is neither "LEVEL <level> SIZE <n>" nor a name below one | Paraver ignores it, and the level has no names
row row-count | a level has not as many names as the header has objects | names are missing, or belong to objects that do not exist
row level-twice | a level comes twice | its names are put behind each other
row name-empty | a name is empty | Paraver shows the numbers of the object instead
row name-control | a name has a tab or another control character | it breaks the columns of Paraver's text output
row name-twice | objects beside each other have the same name | their rows cannot be told apart
row row-encoding | a name is not valid UTF-8 | wxparaver shows an empty text
"""

_REMARKS = """
file gzip-members | the .gz has several members | Paraver reads them all; some other tools stop behind the first
file line-ends | lines end with a carriage return | Paraver reads them; other tools may not
file memory | what Paraver needs to load the trace | plan for it, or leave out kinds of events
file asks-to-cut | the trace is larger than 500 MB (a .gz counts 6.3 times) | wxparaver asks whether to cut or filter it first
header no-unit | the duration has no unit | Paraver takes all times for microseconds
header date | the date is none that Paraver reads | it shows it as it is, and its tools write another
header no-resources | the header names no nodes | views by node and CPU do not load
body empty-line | an empty line | Paraver skips it
body trailing-colon | an event ends with a colon | Paraver ignores it
object no-cpus | no record names a CPU | views by node and CPU show nothing
object cpu-shared | threads share a CPU | in views by CPU they overwrite each other
event value-overwritten | two values of a counter at the same time on a row | the first is never shown
event end-without-begin | 0 of a type with VALUES where no range is open | nothing; a begin may be missing
event value-beyond-labels | a value of a type with VALUES is above 2147483647 | no .pcf can give it a label
comm large-size | a size does not fit into 32 bits | Paraver's cutter takes it modulo 2^32
pcf pcf-empty | the .pcf labels no type and no state | Paraver shows numbers instead of labels
pcf brackets-in-label | a label has [brackets] | Paraver cuts them from short column headers
pcf zero-unlabelled | a type has VALUES but none for 0 | Paraver shows "value 0" where no range is
row row-missing | there is no .row file beside the trace | Paraver shows numbers instead of names
row row-line-ends | lines end with a carriage return | Paraver removes it
row level-missing | a level has no names | Paraver shows its numbers
row name-long | a name has more than 100 characters | the names take the room of the drawing
"""


def _declared(text: str, severity: Severity) -> dict[str, Rule]:
    rules = {}
    for line in text.strip().splitlines():
        place, wrong, effect = (part.strip() for part in line.split(" | "))
        part, name = place.split()
        rules[name] = Rule(name, part, severity, wrong, effect)
    return rules


RULES = {**_declared(_ERRORS, Severity.ERROR), **_declared(_WARNINGS, Severity.WARNING), **_declared(_REMARKS, Severity.REMARK)}
"""Id -> rule."""
