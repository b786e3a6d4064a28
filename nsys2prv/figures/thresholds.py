"""Define the limits from which something counts in figures. Each has an explanation; shares are
fractions of 1, times are ns.

Unless stated otherwise, they were set with jobs whose iterations and causes are known
(`tests/analysis`).
"""

# Iterations, and the steady state.

#: Least number of iterations of a steady state, and of numbered ranges; their least share of the
#: kernels.
LEAST_COUNT, LEAST_NUMBERED, LEAST_KERNELS = 3, 2, 0.5
#: Two ranges are iterations if they are numbered and cover nearly all from the first to the last.
NEARLY = 0.85
#: Intervals are similar if their numbers of kernels differ by no more than this factor: iterations do, times
#: from one call of a function to the next do not.
AS_MANY = 1.5
#: Leading iterations that take longer than the median by this factor are warm-up; the first one always is.
WARM = 2.0
#: Repetitions in less than this share of the job are not its steady state.
LEAST_STEADY = 0.05
#: Tasks are in the same iteration at a time, but for so many on average, or serve different requests.
MOST_APART = 1.0

# Iterations without ranges, by the sequence of kernels or calls.

#: This share of the time is in event kinds that nearly every interval (USUAL) has: an optimizer after some
#: micro-batches takes more, or is identified by name.
ALIKE, USUAL = 0.9, 0.8
#: Intervals have similar durations within this factor; similar ones take at least this share of the time,
#: even if others are stalled. If a step consists of several equal intervals and a long one, or if requests
#: arrive, they take less.
REGULAR, LEAST_REGULAR = 2.0, 1 / 3
#: Intervals with numbers of events that differ by no more than this have equal contents, as most have; from
#: this many intervals on, because few may agree by chance.
NEARLY_SAME, SAME_BY_CHANCE, LEAST_SAME = 0.1, 10, 0.5
#: A network has no more layers than this; a layer has more kernels than TINY, but not so many.
MOST_LAYERS, TINY, MOST_IN_LAYER = 128, 3, 500
#: Most that the distances of marks vary (variance over the square of the mean) for them to be tried.
MOST_VARIANCE = 0.5
#: Work in a smaller share of intervals is occasional, such as logging.
SELDOM = 0.05

# Coverage of reports.

#: Processes are never launched at the same moment: if all reports together miss no more than this share of
#: the trace, all of it counts as covered. Longer stretches without any event are examined.
NEGLIGIBLE = 0.05
#: A begin of captures without events is worth a note if it is longer than this, or than this share of all.
LONG_UNSEEN, UNSEEN_SHARE = 1_000_000_000, 0.1

# Until when calls and kernels of a thread are recorded.

#: Threads are looked at whose last call is so much of the trace before its end: less changes figures little.
LEAST_LEFT = 0.05
#: Nearly all marks before have calls; so many before and after are no chance. Fewer are needed of NVTX
#: ranges, whose names tell what they are.
NEARLY_EACH, FEWEST_MARKS, FEWEST_RANGES = 0.9, 10, 3
#: Those after last as long as those before if their medians differ by less than this factor: the
#: iterations of a program differ less, and what it does at its end is much shorter or longer.
SAME_LENGTH = 2.0
#: So many calls of others show that a rank's are missing: one may be cut off by the end of the capture.
LEAST_MPI_CALLS = 2

# Hosts.

#: CUDA initialization takes at least this long (ns): tens to hundreds of ms in real reports.
SET_UP = 10_000_000
#: Smallest share of the time at which a place in the program is reported.
LEAST_PLACE = 0.2
#: Smallest number of CPU samples by which a place is known: one or two may be anywhere.
LEAST_SAMPLES = 3
#: A sample represents the time since the previous one on its thread, at most this multiple of the usual time.
LONGEST_SAMPLE = 4.0
#: Threads that end within this time (ns) end together, like those of an exiting process.
TOGETHER_AT_EXIT = 1_000_000

# Sampled metrics.

#: Samples that a kernel must last for its metrics to be known.
FEWEST_SAMPLES = 3
#: Devices are compared over the time in which all are sampled, without those sampled for less than this share
#: of the longest time. Times that differ by at most so many periods are equal.
LEAST_SAMPLED, SAME_PERIODS = 0.5, 4
#: Figures describe a device only if they cover this share of its compute time.
LEAST_COVERED = 0.9
#: Mean activity from which a GPU works for others: drawing a display, or CUDA initialization, takes less.
LEAST_ACTIVE = 0.1

# Efficiencies.

#: An efficiency is good, or fair, from these fractions on. POP takes less than 80% for worth a
#: look, BSC's BasicAnalysis less than 60% for critical.
GOOD, FAIR = 0.8, 0.6
#: A factor that falls by so much from the reference of a study is explained, as one that is low.
FALLEN = 0.05
#: Regions with less than this share of the elapsed time are omitted if all are requested.
LEAST_REGION = 0.01

# The order of findings.

#: Findings more than so many times as costly as others are shown before them: together the others could not
#: save as much.
MUCH_MORE = 2

# CPUs.

#: A scheduler leaves a thread on its CPU for 0.75 ms or more (Linux's smallest slice), if there are others;
#: one that runs for less than this on average between two long times (ns) off the CPU went to sleep by itself.
LEAST_SLICE, LONG_OFF = 500_000, 1_000_000
#: A process uses the CPUs on which it is for this share of the time that it runs, or more.
LEAST_OF_CPU = 0.02
#: A thread works if it runs for this share of the time of the one of its process that runs longest.
LEAST_OF_THREAD = 0.2
#: Waiting for CPUs is looked at from this share of the time on.
LEAST_WAITING = 0.01

# Modules.

#: Parts of a module with names that differ only in a number are layers, or experts, if there are more than
#: this many: fewer are parts of a block, as in T5 (attention, cross-attention, MLP).
MOST_PARTS = 4

# Products.

#: Products are far below the rate allowed by their shapes if they reach less than this share of the usual
#: rate of their sort: that of products that would take a quarter of the time if all were ideal, so that no
#: single one sets it.
FAR_BELOW, MOST_BELOW = 0.5, 0.75
#: No kernel gets shorter than this (ns): to begin and to end it takes some us, whatever it computes.
SHORTEST_KERNEL = 5_000
#: A share of the peak beyond this is worth a word.
BEYOND_PEAK = 1.02

# Sizes of transfers.

#: Separating latency from bandwidth needs this many classes of sizes (a line fits any two), the largest so
#: many times the smallest, with times that a line fits within this share: protocols change with the size.
FEWEST_SIZES, SIZES_APART, FITS = 3, 16, 0.5
#: Waits of a dimension of parallel groups are known if those of so many of its kernels are: captures cut some.
MATCHED = 0.9
