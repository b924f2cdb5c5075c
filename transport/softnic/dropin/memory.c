/* SPDX-License-Identifier: MIT */
/* Protection domains and memory. */
#include "transport/softnic/dropin/dropin.h"

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    return ours(context) ? table(context)->alloc_pd(context) : REAL(ibv_alloc_pd)(context);
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    RETURN_IF_GONE(pd, "ibv_dealloc_pd");
    return ours(pd->context) ? table(pd->context)->dealloc_pd(pd) : REAL(ibv_dealloc_pd)(pd);
}

EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
    return ours(context) ? not_made() : REAL(ibv_import_pd)(context, handle);
}

EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
    if (!ours(pd->context))
        REAL(ibv_unimport_pd)(pd);
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ours(pd->context) ? table(pd->context)->reg_mr(pd, addr, length, access)
                             : REAL(ibv_reg_mr)(pd, addr, length, access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                      int access)
{
    return ours(pd->context) ? table(pd->context)->reg_mr_iova(pd, addr, length, iova, access)
                             : REAL(ibv_reg_mr_iova)(pd, addr, length, iova, access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access)
{
    return ours(pd->context) ? table(pd->context)->reg_mr_iova(pd, addr, length, iova, (int)access)
                             : REAL(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access)
{
    return ours(pd->context) ? not_made()
                             : REAL(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
}

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                        int access)
{
    return ours(mr->context) ? table(mr->context)->rereg_mr(mr, flags, pd, addr, length, access)
                             : REAL(ibv_rereg_mr)(mr, flags, pd, addr, length, access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    RETURN_IF_GONE(mr, "ibv_dereg_mr");
    return ours(mr->context) ? table(mr->context)->dereg_mr(mr) : REAL(ibv_dereg_mr)(mr);
}

EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    return ours(pd->context) ? not_made() : REAL(ibv_import_mr)(pd, handle);
}

EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
    if (!ours(mr->context))
        REAL(ibv_unimport_mr)(mr);
}

EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
    return ours(context) ? not_made() : REAL(ibv_import_dm)(context, handle);
}

EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
    if (!ours(dm->context))
        REAL(ibv_unimport_dm)(dm);
}
