"""Define the limits from which something counts in the replay. Limits for culprits were set with
jobs with known faults and many random seeds (`benchmarks/culprits.py`), all others with recorded
jobs. Each has an explanation; shares are fractions of 1, times are ns.
"""

from nsys2prv.replay.graph import US

# The graph.

#: Cases in which an edge was over so long after all others of its node tell its latency; a median is made
#: of so many cases, at least, of those of a call's name of the second number.
CLEAR, FEWEST_CASES, FEWEST_NAMED = 20 * US, 8, 5
#: What GPUs usually need between two operations of a stream, where no queue ever shows it.
USUAL_STREAM_GAP = 1 * US
#: A pause that something outside of the job ends (a request that arrives) is so long, so many times as
#: long as usual at its place, ends within the last time of another rank's, and comes so often on a rank.
LONG_PAUSE, TIMES_USUAL, TOGETHER, FEWEST_PAUSES = 1_000 * US, 3, 300 * US, 3
#: Work lasts equally long each time; pauses for what comes at random differ by this share or more.
DIFFER = 0.25
#: Clocks that are aligned differ by less.
CLOCK_ERROR = 50 * US
#: Share of the messages of one size from which the transfer alone is taken: the others also wait.
QUICK_SHARE = 0.3

#: Share of what is exchanged with one partner, of several at once, from which the transfer by bytes is
#: taken: most of it waits for transfers with others.
QUICK_LINK = 0.1
#: A link that several share explains when a kernel ends if it is over then, but for this share of the time.
SAME_LINK = 0.1

# Figures of an ideal network.

#: A latency beyond what is usual by less is nothing to explain.
SLACK = 10 * US
#: No figures are given where more of the critical path is not explained, or fewer of the kernels of
#: NCCL, or less of the time in MPI, are known to meet others.
MOST_UNEXPLAINED, LEAST_MET, LEAST_MPI = 0.05, 0.95, 0.9

# Causes.

#: A cause gains at least this by itself, and that share of it beyond the causes before it; of a culprit
#: the third, for certain evidence.
LEAST_GAIN, LEAST_BEYOND, LEAST_CERTAIN = 0.02, 0.5, 0.01
#: Others hide a part of what a cause gains if it gains less than this share by itself, and make it
#: worse if it gains more than the other.
HIDDEN, WORSE = 0.75, 1.1
#: Culprits that are looked for, and calls and places between calls that are tried: those with most time
#: on the critical path.
MOST_CULPRITS, MOST_PLACES = 3, 8
#: Who was stalled a few times: this share of what it does longer is in so few times of all,
#: and in no more than these.
HICCUP_SHARE, HICCUP_TIMES, MOST_HICCUPS = 0.7, 0.1, 3
#: Jobs are bound by calls that launch if these, and the time between them, are this share of what GPUs
#: wait for hosts; longer ones do something else.
OF_HOST_TIME, LONGEST_LAUNCH = 0.5, 100 * US
#: From so many waits to an operation of GPUs on hosts wait for what they launch one by one.
EACH_WAITS = 0.5
#: A place between calls is named alone if it gains this share of what all long pauses do.
OF_PAUSES = 0.8
#: What a copy of pinned memory takes beside its bytes, and how long it takes from its call to its begin.
COPY_LATENCY, COPY_LAUNCH = 1_500, 10 * US
#: Its speed by PCI Express of the third, fourth and fifth generation, with 16 lanes (B/ns).
COPY_SPEEDS = (12.0, 24.0, 50.0)
#: Copies of fewer bytes are not slower from pageable memory, of fewer tell no speed, nor do no more than
#: so many.
SMALL_COPY, LARGE_COPY, FEWEST_COPIES = 1 << 16, 1 << 18, 5
#: How many times as fast GEMMs are with Tensor Cores.
TENSOR_SPEED_UP = 3.0

# What runs beside.

#: A kernel runs beside others, or alone, if this share of its time does; places of the program are told by
#: so many kernels before and after one, and so many of a device are compared: their errors are small then.
MOSTLY, NEIGHBOURS, MOST_CASES = 0.9, 2, 50_000
#: Kernels last longer beside NCCL if they do so by this many errors, and by this share. What differs from
#: the usual by more (a logarithm: twice as long) has other reasons.
CERTAIN_ERRORS, LEAST_LONGER, MOST_LONGER = 4.0, 0.01, 0.7
#: Transfers with less work between them than this share of their time could run beside the same work.
SAME_WINDOW = 0.1

# Culprits.

#: A rank is tried if it has this share of the span more work than the median rank, a set if each of
#: its ranks has the second, and ranks with that share of the greatest excess are a set.
LEAST_EXCESS, LEAST_OF_SET, SHARE_OF_GREATEST = 0.004, 0.002, 0.3
#: Ranks of a set must have at least this excess to be one by their excess.
LEAST_HIGH = 0.02
#: All kernels are slow, not some, if those that are longer by half as much as all together are this share of
#: the time.
ALL_KERNELS = 0.6
#: Work that a process does so many times as often as at least half of all is its own.
MORE_OFTEN = 1.05
#: A kernel is of a larger size if it lasts so many times as long as the longest one of its name on at least half of
#: all processes, more than GPUs of one model differ by; and beside others if the process has so many more of the
#: name, but for this share, in this share of the parts of the time: a GPU that is slower for a while has no more.
LARGER, IN_PARTS = 1.5, 0.8
#: Stages of a pipeline differ by less than this share, even if all is well: they have whole layers, a few each,
#: and one of them has the output layer.
MORE_OF_STAGE = 0.25
#: The smallest set with this share of the greatest gain is the culprit.
NEARLY_ALL = 0.85
#: A process of a set that gains this share of what the set does is a cause of its own.
MUCH_ALONE = 0.35
#: Work that is longer than usual is far beyond what this share differs by at most.
USUALLY = 0.97
#: Work of one iteration may be longer for one reason: chance is judged by so many parts of the time.
PARTS = 10
#: What is longer stands out by MANY_ERRORS standard errors; by SOME_ERRORS of them and APART times as
#: much as the others but one differ by; or by one moment, FAR_BEYOND times as long as nearly all differ
#: by at most, and beyond so many of the longest of the others, in parts of the time (either number).
MANY_ERRORS, SOME_ERRORS, APART, FAR_BEYOND, LONGEST = 4.0, 3.0, 4.0, 6.0, (10, 20)
#: A link is slow if data takes so many times as long there as on others of its sort, of which there are so
#: many at least; so many pairs, and ranks, are looked at.
SLOWER_LINK, FEWEST_LINKS, MOST_LINKS = 1.5, 2, 8
#: How quick a link is is not known if this share of its transfers ends with others that take as long.
NOT_KNOWN = 0.9
#: So few repetitions have no standard error; of so many others one may be a culprit too.
FEW, SEVERAL = 8, 4
#: Whether what is longer is so in nearly all repetitions is asked of the longest work, with this
#: share of the time.
NEARLY_ALL_TIME = 0.8
#: How long what makes a process slow goes on: in at most so many repetitions, as far as so many of the other
#: processes tell, and until repetitions are as unlike as chance makes some hundred (their correlation).
MOST_IN_A_ROW, MOST_LOOKED_AT, UNLIKE = 1000, 8, 0.05
#: How likely some process may seem to be longer in nearly all repetitions, or by one moment, where none
#: is.
BY_CHANCE, ONCE_BY_CHANCE = 0.02, 0.03
#: What a host does more than others is work that these wait for if this share of it is before hand-offs; of
#: that, what is longer than usual is the cause if it gains this share, too. Work that is always there is
#: a cause where without it the span would be shorter by the second share: no other work takes as long.
MOST_HANDED, MOST_OF_SPAN = 0.5, 0.5
#: What is done before a hand-off takes longer than usual if it takes so many times as long as the quickest.
MUCH_LONGER = 2
#: In so many parts of the time or more work is longer for a while: one pause of a host lies in fewer.
FEWEST_PARTS = {"gpu": 2, "host": 4, "copies": 4}
#: Where balancing the kernels of all ranks gains so much more than a culprit does, ranks differ at
#: random.
OF_BALANCED = 0.75
#: A GPU is slow in every kernel if it is slower by this, in kernels of that share of its time, and so
#: many times as far from the median rank as half of all ranks are.
SLOWER, NEARLY_ALL_KERNELS, FAR_OUT = 1.01, 0.8, 6.0
