/* SPDX-License-Identifier: MIT */
/* The functions of the real libraries. */
#include "transport/softnic/dropin/dropin.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* The program has it loaded already, so that this finds that very copy. */
void *dropin_find(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    return handle != NULL ? dlsym(handle, name) : NULL;
}

void *dropin_real(void *_Atomic *at, const char *library, const char *name)
{
    void *found = atomic_load_explicit(at, memory_order_acquire);
    if (found != NULL)
        return found;
    found = dropin_find(library, name);
    if (found == NULL) {
        fprintf(stderr, "softnic: %s is called on a real device, but %s has it not\n", name,
                library);
        abort();
    }
    atomic_store_explicit(at, found, memory_order_release);
    return found;
}
