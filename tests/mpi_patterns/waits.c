/* Ways in which MPI ranks wait for each other: one step of a pattern, repeated.
 *
 *     mpicc -O1 waits.c -o waits
 *     mpirun -n RANKS ./waits PATTERN STEPS LATE USUAL_MS LATE_MS BYTES [sleep|spin]
 *
 * Every rank works USUAL_MS in each step, rank LATE works LATE_MS (-1: no rank is late; -2: rank
 * step % RANKS is). Work is sleep, or time of the CPU. Rank 0 prints the seconds that all steps took. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks, step, late, spin, bytes;
static double usual, longer;
static char *out, *in;
static MPI_Comm world = MPI_COMM_WORLD;
static MPI_Win window;
static MPI_Request kept[2]; /* persistent ones */

static void pass(double ms) {
    if (!spin) {
        struct timespec left = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000};
        nanosleep(&left, NULL);
        return;
    }
    /* What a rank computes, by its own time on a CPU: it takes longer where it has to wait for one. */
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double end = now.tv_sec * 1e3 + now.tv_nsec / 1e6 + ms;
    while (now.tv_sec * 1e3 + now.tv_nsec / 1e6 < end)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
}

static void work(void) {
    pass((late == -2 ? step % ranks : late) == rank ? longer : usual);
}

/* --- the patterns; left and right are the neighbours in a ring ------------------------------ */
#define LEFT ((rank + ranks - 1) % ranks)
#define RIGHT ((rank + 1) % ranks)
#define IGNORE MPI_STATUS_IGNORE
#define CHAR MPI_CHAR

static void barrier(void) { work(); MPI_Barrier(world); }
static void allreduce(void) { work(); MPI_Allreduce(out, in, bytes, CHAR, MPI_MAX, world); }
static void alltoall(void) { work(); MPI_Alltoall(out, bytes, CHAR, in, bytes, CHAR, world); }
static void bcast(void) { work(); MPI_Bcast(out, bytes, CHAR, late < 0 ? 1 : late, world); }
static void scatter(void) { work(); MPI_Scatter(out, bytes, CHAR, in, bytes, CHAR, late < 0 ? 1 : late, world); }
static void reduce(void) { work(); MPI_Reduce(out, in, bytes, CHAR, MPI_MAX, 0, world); }
static void gather(void) { work(); MPI_Gather(out, bytes, CHAR, in, bytes, CHAR, 0, world); }
static void scan(void) { work(); MPI_Scan(out, in, bytes, CHAR, MPI_MAX, world); }

static void iallreduce(void) {
    MPI_Request request;
    MPI_Iallreduce(out, in, bytes, CHAR, MPI_MAX, world, &request);
    work();
    MPI_Wait(&request, IGNORE);
}

static void irecv_send_wait(void) {
    MPI_Request request;
    work();
    MPI_Irecv(in, bytes, CHAR, LEFT, 0, world, &request);
    MPI_Send(out, bytes, CHAR, RIGHT, 0, world);
    MPI_Wait(&request, IGNORE);
}

static void ssend(void) {
    MPI_Request request;
    work();
    MPI_Irecv(in, bytes, CHAR, LEFT, 0, world, &request);
    MPI_Ssend(out, bytes, CHAR, RIGHT, 0, world);
    MPI_Wait(&request, IGNORE);
}

static void isend_wait(void) {
    MPI_Request sent, received;
    MPI_Irecv(in, bytes, CHAR, LEFT, 0, world, &received);
    work();
    MPI_Isend(out, bytes, CHAR, RIGHT, 0, world, &sent);
    MPI_Wait(&sent, IGNORE);
    MPI_Wait(&received, IGNORE);
}

static void waitall(void) {
    MPI_Request requests[2];
    work();
    MPI_Irecv(in, bytes, CHAR, LEFT, 0, world, &requests[0]);
    MPI_Isend(out, bytes, CHAR, RIGHT, 0, world, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void persistent(void) {
    work();
    MPI_Startall(2, kept);
    MPI_Waitall(2, kept, MPI_STATUSES_IGNORE);
}

static void sendrecv(void) {
    work();
    MPI_Sendrecv(out, bytes, CHAR, RIGHT, 0, in, bytes, CHAR, LEFT, 0, world, IGNORE);
}

/* Work in ten pieces, with a look at the requests after each. */
static void test_loop(void) {
    MPI_Request requests[2];
    MPI_Irecv(in, bytes, CHAR, LEFT, 0, world, &requests[0]);
    MPI_Isend(out, bytes, CHAR, RIGHT, 0, world, &requests[1]);
    int done = 0;
    double ms = (late == -2 ? step % ranks : late) == rank ? longer : usual;
    for (int piece = 0; piece < 10; ++piece) {
        pass(ms / 10);
        if (!done) MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
    }
    while (!done) MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
}

/* All receive from one rank, and meet. */
static void recv_barrier(void) {
    int from = late < 0 ? 1 : late;
    work();
    if (rank == from) {
        for (int to = 0; to < ranks; ++to)
            if (to != rank) MPI_Send(out, bytes, CHAR, to, 0, world);
    } else {
        MPI_Recv(in, bytes, CHAR, from, 0, world, IGNORE);
    }
    MPI_Barrier(world);
}

/* Rank 0 receives from any, and answers all. */
static void any_gather(void) {
    work();
    if (rank) {
        MPI_Send(out, bytes, CHAR, 0, 0, world);
        MPI_Recv(in, bytes, CHAR, 0, 1, world, IGNORE);
    } else {
        for (int other = 1; other < ranks; ++other)
            MPI_Recv(in, bytes, CHAR, MPI_ANY_SOURCE, 0, world, IGNORE);
        for (int other = 1; other < ranks; ++other) MPI_Send(out, bytes, CHAR, other, 1, world);
    }
}

/* Each step goes from rank 0 to the last. */
static void pipeline(void) {
    if (rank) MPI_Recv(in, bytes, CHAR, rank - 1, 0, world, IGNORE);
    work();
    if (rank < ranks - 1) MPI_Send(out, bytes, CHAR, rank + 1, 0, world);
}

/* Rank LATE is what the others send to. */
static void late_receiver(void) {
    int to = late < 0 ? 1 : late;
    work();
    if (rank != to) {
        MPI_Send(out, bytes, CHAR, to, 0, world);
    } else {
        for (int from = 0; from < ranks; ++from)
            if (from != rank) MPI_Recv(in, bytes, CHAR, from, 0, world, IGNORE);
    }
}

static void fence(void) {
    work();
    MPI_Put(out, bytes, CHAR, RIGHT, 0, bytes, CHAR, window);
    MPI_Win_fence(0, window);
}

/* Start, Put, Complete with the right neighbour, Post and Wait with the left one. */
static void post_start(void) {
    MPI_Group all, one;
    int to = RIGHT, from = LEFT;
    MPI_Comm_group(world, &all);
    work();
    MPI_Group_incl(all, 1, &from, &one);
    MPI_Win_post(one, 0, window);
    MPI_Group_free(&one);
    MPI_Group_incl(all, 1, &to, &one);
    MPI_Win_start(one, 0, window);
    MPI_Put(out, bytes, CHAR, to, 0, bytes, CHAR, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    MPI_Group_free(&one);
    MPI_Group_free(&all);
}

static const struct {
    const char *name;
    void (*run)(void);
} patterns[] = {
    {"barrier", barrier}, {"irecv_send_wait", irecv_send_wait}, {"bcast", bcast}, {"any_gather", any_gather},
    {"alltoall", alltoall}, {"iallreduce", iallreduce}, {"fence", fence}, {"recv_barrier", recv_barrier},
    {"sendrecv", sendrecv}, {"waitall", waitall}, {"isend_wait", isend_wait}, {"ssend", ssend},
    {"reduce", reduce}, {"pipeline", pipeline}, {"allreduce", allreduce}, {"scatter", scatter},
    {"gather", gather}, {"scan", scan}, {"persistent", persistent}, {"test_loop", test_loop},
    {"late_receiver", late_receiver}, {"post_start", post_start},
};

int main(int argc, char **argv) {
    if (argc < 7) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    int steps = atoi(argv[2]);
    late = atoi(argv[3]);
    usual = atof(argv[4]);
    longer = atof(argv[5]);
    bytes = atoi(argv[6]);
    spin = argc > 7 && !strcmp(argv[7], "spin");
    void (*run)(void) = NULL;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; ++i)
        if (!strcmp(argv[1], patterns[i].name)) run = patterns[i].run;
    if (!run) MPI_Abort(world, 2);
    size_t size = (size_t)bytes * ranks;
    out = calloc(size, 1);
    in = calloc(size, 1);
    int one_sided = run == fence || run == post_start;
    if (one_sided) MPI_Win_create(in, size, 1, MPI_INFO_NULL, world, &window);
    if (run == fence) MPI_Win_fence(0, window);
    if (run == persistent) {
        MPI_Recv_init(in, bytes, CHAR, LEFT, 0, world, &kept[0]);
        MPI_Send_init(out, bytes, CHAR, RIGHT, 0, world, &kept[1]);
    }
    MPI_Barrier(world);
    double begin = MPI_Wtime();
    for (step = 0; step < steps; ++step) run();
    MPI_Barrier(world);
    double took = MPI_Wtime() - begin;
    if (rank == 0) printf("steps took %.6f s\n", took);
    if (run == persistent) {
        MPI_Request_free(&kept[0]);
        MPI_Request_free(&kept[1]);
    }
    if (one_sided) MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
