/* SPDX-License-Identifier: MIT */
/*
 * libsoftnic.so, to be preloaded: it defines the public calls of libibverbs, so that a program
 * linked to libibverbs finds softnic ports, and beside them the real devices if there are any.
 * Calls on softnic's objects are answered here, calls on real ones are passed on to the real
 * library, which is opened when it is first needed.
 *
 * The functions have no symbol versions: the dynamic linker lets such a definition serve any
 * version that a program asks for. Programs of the IBVERBS_1.0 interface, of 2006 and before, are
 * not told apart.
 *
 * The calls of librdmacm go into this same library: sources in transport/softnic/cm, functions
 * marked EXPORT, those of the real one by REAL_IN("librdmacm.so.1", rdma_...).
 */
#ifndef SOFTNIC_DROPIN_H
#define SOFTNIC_DROPIN_H

#include "transport/decorators/check.h"
#include "transport/decorators/faults.h"
#include "transport/softnic/softnic.h"
#include <errno.h>
#include <stddef.h>

/* verbs.h lays macros over calls whose functions we define. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define EXPORT __attribute__((visibility("default")))

/* The real library's function of this name; it is looked up once. */
#define REAL_IN(library, name)                                                                     \
    __extension__({                                                                                \
        static void *_Atomic at_;                                                                  \
        (__typeof__(&(name)))dropin_real(&at_, library, #name);                                    \
    })
#define REAL(name) REAL_IN("libibverbs.so.1", name)

/* real.c. NULL: the library or the function is not there. */
void *dropin_find(const char *library, const char *name);
/* The same, kept in *at, for an object that the real library made: it is there. */
void *dropin_real(void *_Atomic *at, const char *library, const char *name);

/* Whether softnic made it. */
static inline bool ours(const struct ibv_context *context)
{
    return softnic_is_device(context->device);
}

/* Through which table its objects are used: softnic's, or one that misbehaves or is looked at. */
static inline const struct verbs *table(const struct ibv_context *context)
{
    if (faults_attached(context))
        return &verbs_faults;
    const struct verbs *checked = check_table(context);
    return checked != NULL ? checked : &verbs_softnic;
}

/* faults.c. As SOFTNIC_FAULTS and SOFTNIC_CHECK_VERBS say. The context, or NULL with it closed
 * after a sentence. */
struct ibv_context *dropin_decorate(struct ibv_context *context);

/* Returns from a call that destroys, if the object was destroyed before: of such nothing is read.
 */
#define RETURN_IF_GONE(object, call)                                                               \
    do {                                                                                           \
        if (check_is_gone(object))                                                                 \
            return check_gone(object, call);                                                       \
    } while (0)

/* What softnic does not do. */
static inline void *not_made(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

#endif
