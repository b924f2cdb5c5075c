/* SPDX-License-Identifier: MIT */
/* Types, operations and algorithms by name. */
#include "collectives/collectives.h"

size_t sstar_type_bytes(enum sstar_type type)
{
    static const uint8_t bytes[SSTAR_TYPES] = {
        [SSTAR_FLOAT32] = 4,     [SSTAR_FLOAT64] = 8,     [SSTAR_INT32] = 4, [SSTAR_INT64] = 8,
        [SSTAR_FLOAT16] = 2,     [SSTAR_BFLOAT16] = 2,    [SSTAR_INT8] = 1,  [SSTAR_INT16] = 2,
        [SSTAR_FLOAT8_E4M3] = 1, [SSTAR_FLOAT8_E5M2] = 1, [SSTAR_UINT8] = 1, [SSTAR_UINT32] = 4,
        [SSTAR_UINT64] = 8};
    return (unsigned)type < SSTAR_TYPES ? bytes[type] : 0;
}

const char *sstar_type_name(enum sstar_type type)
{
    static const char *const names[] = {"float",    "double",   "int32",    "int64", "half",
                                        "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8",  "int16",
                                        "uint8",    "uint32",   "uint64"};
    return (unsigned)type < sizeof names / sizeof *names ? names[type] : "?";
}

const char *sstar_op_name(enum sstar_op op)
{
    static const char *const names[] = {"sum", "min", "max", "prod", "avg"};
    return (unsigned)op < sizeof names / sizeof *names ? names[op] : "?";
}

const char *sstar_operation_name(enum sstar_operation operation)
{
    static const char *const names[] = {"allreduce", "reducescatter", "allgather",
                                        "broadcast", "reduce",        "barrier"};
    return (unsigned)operation < sizeof names / sizeof *names ? names[operation] : "?";
}

const char *sstar_algorithm_name(enum sstar_algorithm algorithm)
{
    static const char *const names[] = {
        "auto",
        "ring",
        "doubling",
        "halving",
        "circulant",
        "tree",
        "hierarchical",
        "hierarchical-ring",
        "hierarchical-doubling",
        "hierarchical-halving",
        "hierarchical-tree",
        "hierarchical-circulant",
    };
    return (unsigned)algorithm < sizeof names / sizeof *names ? names[algorithm] : "?";
}
