/* SPDX-License-Identifier: MIT */
/* Any MPI, for method.c. MPI ends the program by itself when a call fails. */
#include "peer.h"

#include <mpi.h>
#include <time.h>

static int rank, size;

void peer_open(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

void peer_close(void)
{
    MPI_Finalize();
}

int peer_rank(void)
{
    return rank;
}

int peer_size(void)
{
    return size;
}

void peer_tell(char command[PEER_COMMAND_BYTES])
{
    MPI_Request request;
    MPI_Ibcast(command, PEER_COMMAND_BYTES, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    struct timespec pause = {0, 20 * 1000};
    for (int done = 0; !done;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done)
            break;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 20 * 1000 * 1000)
            pause.tv_nsec *= 2;
    }
}

void peer_barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

void peer_allreduce(const void *send, void *recv, size_t count)
{
    MPI_Allreduce(send == recv ? MPI_IN_PLACE : send, recv, (int)count, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
}

void peer_alltoall(const void *send, void *recv, size_t bytes)
{
    MPI_Alltoall(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

void peer_alltoall_prepare(size_t bytes)
{
    (void)bytes;
}

void peer_greatest(double *values, int n)
{
    if (rank == 0)
        MPI_Reduce(MPI_IN_PLACE, values, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    else
        MPI_Reduce(values, NULL, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
}

void *peer_alloc(size_t bytes)
{
    (void)bytes;
    return NULL;
}

void peer_free(void *memory)
{
    (void)memory;
}
