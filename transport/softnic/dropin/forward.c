/* SPDX-License-Identifier: MIT */
/* Calls that concern no device: the real library's, passed on so that every public call is here. */
#include "transport/softnic/dropin/dropin.h"
#include <infiniband/sa.h>

/* Exported, and in no header of today. */
struct ib_uverbs_ah_attr;
struct ib_uverbs_qp_attr;
struct ib_user_path_rec;
void ibv_register_driver(const char *name, void *init);
const char *ibv_get_sysfs_path(void);
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *dst, struct ib_uverbs_ah_attr *src);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *dst, struct ib_uverbs_qp_attr *src);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *dst, struct ib_user_path_rec *src);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *dst, struct ibv_sa_path_rec *src);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

EXPORT void ibv_register_driver(const char *name, void *init)
{
    REAL(ibv_register_driver)(name, init);
}

EXPORT int ibv_fork_init(void)
{
    return REAL(ibv_fork_init)();
}

EXPORT enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return REAL(ibv_is_fork_initialized)();
}

EXPORT int ibv_dontfork_range(void *base, size_t size)
{
    return REAL(ibv_dontfork_range)(base, size);
}

EXPORT int ibv_dofork_range(void *base, size_t size)
{
    return REAL(ibv_dofork_range)(base, size);
}

EXPORT const char *ibv_get_sysfs_path(void)
{
    return REAL(ibv_get_sysfs_path)();
}

EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *dst, struct ib_uverbs_ah_attr *src)
{
    REAL(ibv_copy_ah_attr_from_kern)(dst, src);
}

EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *dst, struct ib_uverbs_qp_attr *src)
{
    REAL(ibv_copy_qp_attr_from_kern)(dst, src);
}

EXPORT void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *dst, struct ib_user_path_rec *src)
{
    REAL(ibv_copy_path_rec_from_kern)(dst, src);
}

EXPORT void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *dst, struct ibv_sa_path_rec *src)
{
    REAL(ibv_copy_path_rec_to_kern)(dst, src);
}

EXPORT const char *ibv_node_type_str(enum ibv_node_type type)
{
    return REAL(ibv_node_type_str)(type);
}

EXPORT const char *ibv_port_state_str(enum ibv_port_state state)
{
    return REAL(ibv_port_state_str)(state);
}

EXPORT const char *ibv_event_type_str(enum ibv_event_type type)
{
    return REAL(ibv_event_type_str)(type);
}

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    return REAL(ibv_wc_status_str)(status);
}

EXPORT int ibv_rate_to_mult(enum ibv_rate rate)
{
    return REAL(ibv_rate_to_mult)(rate);
}

EXPORT enum ibv_rate mult_to_ibv_rate(int mult)
{
    return REAL(mult_to_ibv_rate)(mult);
}

EXPORT int ibv_rate_to_mbps(enum ibv_rate rate)
{
    return REAL(ibv_rate_to_mbps)(rate);
}

EXPORT enum ibv_rate mbps_to_ibv_rate(int mbps)
{
    return REAL(mbps_to_ibv_rate)(mbps);
}
