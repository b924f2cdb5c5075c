/* SPDX-License-Identifier: MIT */
/* An AllReduce of MPI whose every element is checked; compiled and run by test_dropin_others.sh. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    enum { LARGEST = 1 << 20, PERIOD = 1000 };
    int rank, ranks, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int count = 1; count <= LARGEST; count *= 32) {
        float *in = malloc((size_t)count * sizeof *in), *out = malloc((size_t)count * sizeof *out);
        if (in == NULL || out == NULL)
            MPI_Abort(MPI_COMM_WORLD, 1);
        for (int i = 0; i < count; i++)
            in[i] = (float)(i % PERIOD + rank);
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            wrong += out[i] != (float)(ranks * (i % PERIOD) + ranks * (ranks - 1) / 2);
        free(in);
        free(out);
    }
    if (rank == 0)
        printf("%d ranks, %d wrong\n", ranks, wrong);
    MPI_Finalize();
    return wrong != 0;
}
