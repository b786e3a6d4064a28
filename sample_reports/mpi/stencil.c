/* The program whose ranks were recorded (README.md): one of each way in which ranks communicate.

   mpicc -O1 -o stencil stencil.c
   mpirun -n 4 nsys profile -t mpi --mpi-impl=openmpi -s none --cpuctxsw=none -o stencil%q{OMPI_COMM_WORLD_RANK} ./stencil
   nsys export --type sqlite ... ; python tools/shrink_recording.py sample_reports/mpi stencil*.sqlite */
#include <math.h>
#include <mpi.h>

enum { STEPS = 6, LARGE = 4096, SLOW_RANK = 2 };
static double sent[LARGE], received[4 * LARGE];

static double compute(int rounds)
{
    double value = 0;
    for (int i = 0; i < rounds; i++)
        value += sqrt(i + value);
    return value;
}

int main(int argc, char **argv)
{
    int rank, size, place;
    MPI_Comm pair, copy, other_pair, line;
    MPI_Request requests[2], persistent[2], reduction;
    MPI_Win window;
    MPI_File file;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;

    /* Pairs in reverse order, a copy of each, an intercommunicator between them, a line. */
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, -rank, &pair);
    MPI_Comm_rank(pair, &place);
    MPI_Comm_dup(pair, &copy);
    MPI_Intercomm_create(pair, 0, MPI_COMM_WORLD, rank < 2 ? 3 : 1, 1, &other_pair);
    MPI_Comm_dup(MPI_COMM_WORLD, &line);
    MPI_Recv_init(received, 64, MPI_DOUBLE, before, 2, line, &persistent[0]);
    MPI_Send_init(sent, 64, MPI_DOUBLE, next, 2, line, &persistent[1]);
    MPI_Win_create(received, sizeof received, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_File_open(MPI_COMM_WORLD, "stencil.out",
                  MPI_MODE_CREATE | MPI_MODE_WRONLY | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file);

    for (int step = 0; step < STEPS; step++) {
        sent[0] = compute(rank == SLOW_RANK ? 300000 : 200000);
        MPI_Irecv(received, LARGE, MPI_DOUBLE, before, 3, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(sent, LARGE, MPI_DOUBLE, next, 3, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Startall(2, persistent);
        MPI_Waitall(2, persistent, MPI_STATUSES_IGNORE);
        /* Along the line, whose ends have nobody on one side; within the copy of a pair. */
        MPI_Sendrecv(sent, 30, MPI_DOUBLE, rank < size - 1 ? rank + 1 : MPI_PROC_NULL, 4, received, 40,
                     MPI_DOUBLE, rank ? rank - 1 : MPI_PROC_NULL, 4, line, MPI_STATUS_IGNORE);
        MPI_Sendrecv(sent, 10, MPI_DOUBLE, 1 - place, 5, received, 10, MPI_DOUBLE, 1 - place, 5, copy,
                     MPI_STATUS_IGNORE);
        /* To rank 0, which asks for any. */
        if (rank)
            MPI_Send(sent, rank, MPI_DOUBLE, 0, 6, MPI_COMM_WORLD);
        for (int i = 1; i < size && !rank; i++)
            MPI_Recv(received, 10, MPI_DOUBLE, MPI_ANY_SOURCE, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* With the same place of the other pair. */
        MPI_Sendrecv(sent, 20, MPI_DOUBLE, place, 7, received, 20, MPI_DOUBLE, place, 7, other_pair,
                     MPI_STATUS_IGNORE);
        MPI_Allreduce(sent, received, 3, MPI_DOUBLE, MPI_SUM, pair);
        MPI_Bcast(sent, 100, MPI_DOUBLE, step % size, MPI_COMM_WORLD);
        MPI_Iallreduce(sent, received, 5, MPI_DOUBLE, MPI_SUM, line, &reduction);
        compute(10000);
        MPI_Wait(&reduction, MPI_STATUS_IGNORE);
        if (step % 2 == 0) {
            MPI_Gather(sent, 7, MPI_DOUBLE, received, 7, MPI_DOUBLE, 1, line);
            MPI_Alltoall(sent, 9, MPI_DOUBLE, received, 9, MPI_DOUBLE, MPI_COMM_WORLD);
            MPI_Reduce(rank ? sent : MPI_IN_PLACE, received, 11, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            MPI_Win_fence(0, window);
            MPI_Put(sent, 8, MPI_DOUBLE, next, LARGE, 8, MPI_DOUBLE, window);
            MPI_Win_fence(0, window);
            MPI_File_write_at_all(file, rank * 80, sent, 10, MPI_DOUBLE, MPI_STATUS_IGNORE);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    MPI_Request_free(&persistent[0]);
    MPI_Request_free(&persistent[1]);
    MPI_File_close(&file);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
