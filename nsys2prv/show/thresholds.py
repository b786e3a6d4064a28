"""Define the limits from which comparisons and studies of runs report something. Each has an
explanation; shares are fractions of 1.
"""

# Two runs.

#: Iterations are compared if so much of their kernels (calls) is the same, by number, or half of it, if they are
#: NVTX ranges of the same name; programs are others if kernels that both have take less of the time of one.
LEAST_ALIKE, LEAST_COMMON = 0.8, 0.5
#: Numbers of kernels that are the same, by place in the program, differ by at most this.
SAME_COUNT = 0.2
#: Times that differ by a smaller share are alike where their spread is not known: so much do repeated runs of
#: one program on one machine differ.
ALIKE = 0.005
#: From so many times on a change is said as a multiple: more percent are hard to read.
MANY_TIMES = 2
#: Iterations that take longer than this multiple of the median are named.
OUTLIER = 1.5
#: Shares that people are told of a difference twice: of the job and of an iteration, if they are so far apart.
APART = 0.02
#: A single reason that has so much of what its family differs by is named alone; further causes are named from
#: this share of the difference on.
MOSTLY, LEAST_NAMED = 0.6, 0.2
#: A part against the difference is named from this share of the unit on.
OPPOSED = 0.05
#: Kernels are slower by the clock if they are so by a power of it that is 1 within this: those that wait for memory
#: hardly change.
OF_CLOCK = 0.25
#: Ranks are named whose own change is this share of the largest, and that makes up as much of the difference.
OWN = 0.5

# Runs of a study.

#: The work of an iteration grows with this power of the number of devices: less is strong scaling;
#: further than this from 0 (strong) and from 1 (weak) it is not clear.
MIDDLE, UNCLEAR = 0.5, 0.25
#: Runs on equally many devices of one model do different work if an iteration computes longer by this
#: factor: clocks and instructions per cycle differ by less.
OTHER_WORK = 1.5
#: Iterations that take so many times the median are named if they come regularly, at least so often.
LONGER, REGULAR = 1.2, 3
#: Smallest change of a factor that is mentioned.
MENTIONED = 0.02
#: Where all regions are asked for, those of at least this share of the time of a run, or of the time that
#: it loses, are shown: what is smaller explains nothing that a study is about.
LARGE_REGION = 0.05
