"""Define the limits from which something counts in the verdict. All were set with jobs whose causes
are known (`tests/analysis`, `benchmarks/culprits.py`). Each has an explanation; shares are
fractions of 1, times are ns.
"""

#: A claim with facts for less than this share of a cause's savings is not shown.
LEAST_STATED = 0.5
#: A cause that gains less than this share of the job is no finding.
LEAST_OF_JOB = 0.01
#: From this share of the critical path on, unknown dependencies are reported.
LEAST_TOLD = 0.0005
#: Waits for events from outside the job are reported from this share of the time on.
LEAST_OUTSIDE = 0.02

#: Rows with less than this share of the time are not listed: a thousand of them make a tenth.
LEAST_LISTED = 0.0001

# The span that is replayed.

#: At most this share of the steady state is left out as its collectives are not known.
MOST_SKIPPED = 0.3
#: Time after the GPUs' work that counts (ns).
MARGIN = 100_000
#: The job waits for GPUs that compute for more than this share of the time.
MOSTLY = 0.8

# Hosts.

#: Least share of a part of time that a name explains; least shares of a time for a part to be most
#: of it, and to be worth recording.
EXPLAINS, MOST, WORTH_RECORDING = 0.2, 0.5, 0.2
#: Least length of a single call that most of the time in I/O or CUDA is spent in.
LONG_CALL = 500_000_000
#: Part of the time of hosts from which on a place is named.
LEAST_NAMED = 0.1
#: If more than this share of the host time is between launches and the start of work, the finding
#: is named a latency.
OF_LATENCY = 0.5
#: A call that sets something up the first time has this share of all its time then.
MOST_IN_FIRST = 0.8
#: This share of the host time is reported as all of it.
NEARLY_UNKNOWN = 0.995
#: A rank has a place to itself that has so much of its time.
NEARLY_ALL = 0.9
#: Fewer pauses of a process are no evidence of requests, which arrive at random: the longest wait is at least
#: so many times the median.
FEWEST_PAUSES, REGULAR = 10, 4
#: A single part of a loss is the moment to look at if it is this share of its surroundings.
LARGE_PART = 0.5

# Culprits.

#: Ranks are not last by chance if they are last in at least this share of the collectives.
MOSTLY_LAST = 0.3
#: Parts of a stall last at least this fraction of the longest.
OF_LONGEST = 4
#: A range takes longer than on other ranks if it takes at least this many times as long each time;
#: a GPU is slower if its kernels take this many times as long.
LONGER, SLOWER = 1.05, 1.005
#: Share of additional kernels, relative to other ranks, that is mentioned.
FEW_MORE = 0.02

# Communication.

#: Ranks have equal total work if the largest exceeds the mean by less than this share of the savings from
#: balancing each iteration.
EVEN = 0.25
#: An MPI transfer slower (B/ns) than the slowest network of such jobs, Gigabit Ethernet, and longer than any
#: latency (ns), is not limited by the network.
SLOW_LINK, LONG_TRANSFER = 0.1, 500_000
#: A loss to messages in chains is a pipeline bubble if it is at least so many times the value of the formula,
#: or at least this share if that is unknown. Up to so many stages are named.
OF_FORMULA, USUAL_BUBBLE, MOST_STAGES = 0.5, 0.2, 4
#: Savings exceed the average time per rank if they are at least this many times as large.
MORE = 1.1

# Time that no cause explains.

#: Minimum share of the job for reporting the time before the first GPU work, or after the last.
LEAST_EDGE = 0.05
#: Least share of their time in which GPUs are idle, or only copy, to be a finding.
LEAST_LOSS = 0.1
#: Minimum share of the job for reporting profiler overhead in such time.
LEAST_PROFILER = 0.005
#: Causes hardly explain a loss that is more than this many times their savings.
HARDLY = 10
#: Kernels that use less than this share of a GPU's issue slots leave most of it without work. They run alone
#: if their total time is at most so many times the GPUs' compute time.
LEAST_USE, ALONE = 0.5, 1.2
#: Default GpuLimits for unknown GPUs; hardly any GPU has less.
UNKNOWN_GPU = (8, 32, 16, 1 << 16, 1 << 16)
#: Share of the time of copies and fills that is not worth a word.
FEW = 0.1
#: MPI that was not traced: a smaller share of the main threads' time is no finding; ranks that are in a
#: call for less than this share of the usual time come late to it; fewer ranks do not show which is
#: unusual.
LEAST_IN_MPI, LATE, FEWEST_RANKS = 0.05, 0.8, 3

# CPUs.

#: Ranks share a CPU if one has it for this share of the time in which the other waits for it.
LEAST_HELD = 0.05
#: CPUs are short if a rank waits for one in this share of the time outside of calls.
LEAST_OF_WORK = 0.02
#: Ranks wait for CPUs if they do for this share of the time of the one that waits longest.
LEAST_SHARED = 0.2
#: A rank is off its CPU as much in MPI, where it looks again and again, as elsewhere, if it is so for this
#: part of that share of the time.
ALIKE = 0.5

# The shape of a loss over iterations.

#: Fewer iterations have no shape; work repeated more often than the second number is not an iteration.
FEWEST_REPEATED, MOST_REPEATED = 5, 200
#: Iterations that lose half as much as is usual where it is lost have the loss if they have this share of
#: it; nearly each of some iterations is this share of them.
MOST_OF_LOSS, NEARLY_EACH = 0.75, 0.8
#: A loss grows if a line explains this share of the variation of iterations, better than two levels do, and
#: its end is so many times its beginning.
LINEAR, GROWN = 0.6, 3.0
#: One in this many iterations may be far from that line.
MAY_DIFFER = 8
