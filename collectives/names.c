/* SPDX-License-Identifier: MIT */
/* Types, operations and algorithms by name. */
#include "collectives/collectives.h"

size_t sstar_type_bytes(enum sstar_type type)
{
    return type == SSTAR_FLOAT32 || type == SSTAR_INT32 ? 4 : 8;
}

const char *sstar_type_name(enum sstar_type type)
{
    static const char *const names[] = {"float", "double", "int32", "int64"};
    return (unsigned)type < sizeof names / sizeof *names ? names[type] : "?";
}

const char *sstar_op_name(enum sstar_op op)
{
    static const char *const names[] = {"sum", "min", "max"};
    return (unsigned)op < sizeof names / sizeof *names ? names[op] : "?";
}

const char *sstar_algorithm_name(enum sstar_algorithm algorithm)
{
    static const char *const names[] = {"auto", "ring", "hierarchical"};
    return (unsigned)algorithm < sizeof names / sizeof *names ? names[algorithm] : "?";
}
