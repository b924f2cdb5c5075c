/* SPDX-License-Identifier: MIT */
/* The device list, and what a device and its port say of themselves. */
#include "transport/softnic/environment.h"
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Extensions of real devices look past struct ibv_device: let them find zeros there. */
enum { DEVICE_TAIL = 4096 };

/* A real device has NULL there: libibverbs asserts it. */
static void made_by_softnic(struct ibv_context *context)
{
    (void)context;
}

bool softnic_is_device(const struct ibv_device *device)
{
    return device->_ops._dummy2 == made_by_softnic;
}

static const char sysfs_prefix[] = "/sys/class/infiniband/softnic:";

bool softnic_is_sysfs_path(const char *path)
{
    return strncmp(path, sysfs_prefix, sizeof sysfs_prefix - 1) == 0;
}

struct ibv_device *nic_device_create(const char *port_name)
{
    struct ibv_device *device = calloc(1, sizeof *device + DEVICE_TAIL);
    if (device == NULL)
        return NULL;
    device->_ops._dummy2 = made_by_softnic;
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    snprintf(device->name, sizeof device->name, "%.63s", port_name);
    snprintf(device->dev_name, sizeof device->dev_name, SOFTNIC_NODE_PREFIX "%.50s", port_name);
    /* There is nothing at these paths; a program that reads there finds it so. */
    snprintf(device->dev_path, sizeof device->dev_path, "/sys/class/infiniband_verbs/%s",
             device->dev_name);
    snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s%s", sysfs_prefix, port_name);
    return device;
}

__be64 softnic_get_device_guid(struct ibv_device *device)
{
    union ibv_gid gid;
    nic_gid_of_ip(nic_ip_of_name(device->name), 0, &gid);
    return gid.global.interface_id;
}

/* Is `name` one that a port can have, and none that stands in the list already? */
static bool may_list(struct ibv_device **list, int count, const char *name)
{
    if (!nic_port_name_good(name)) {
        fprintf(stderr,
                "softnic: SOFTNIC_PORT: \"%.80s\" is no name of a port: 1 to %d of A-Z a-z 0-9 . _ "
                "-, several separated by commas\n",
                name, PORT_NAME_MAX);
        return false;
    }
    for (int i = 0; i < count; i++)
        if (strcmp(list[i]->name, name) == 0) {
            fprintf(stderr, "softnic: SOFTNIC_PORT names the port \"%s\" twice\n", name);
            return false;
        }
    return true;
}

/* `names`: separated by commas. */
static struct ibv_device **make_devices(const char *names, int *count)
{
    char *copy = strdup(names), *rest = copy, *name;
    size_t room = 2;
    for (const char *c = names; *c != '\0'; c++)
        room += *c == ',';
    struct ibv_device **list = calloc(room, sizeof *list);
    int err = copy != NULL && list != NULL ? 0 : ENOMEM;
    *count = 0;
    while (err == 0 && (name = strsep(&rest, ",")) != NULL) {
        if (!may_list(list, *count, name))
            err = EINVAL;
        else if ((list[*count] = nic_device_create(name)) == NULL)
            err = ENOMEM;
        else
            ++*count;
    }
    free(copy);
    if (err == 0)
        return list;
    softnic_free_device_list(list);
    errno = err;
    return NULL;
}

struct ibv_device **softnic_get_device_list(int *num_devices)
{
    const char *names = nic_env_text("SOFTNIC_PORT");
    int count;
    struct ibv_device **list = make_devices(names != NULL ? names : "softnic0", &count);
    if (list != NULL && num_devices != NULL)
        *num_devices = count;
    return list;
}

void softnic_free_device_list(struct ibv_device **list)
{
    if (list == NULL)
        return;
    for (struct ibv_device **device = list; *device != NULL; device++)
        free(*device);
    free(list);
}

const char *softnic_get_device_name(struct ibv_device *device)
{
    return device->name;
}

struct ibv_context *softnic_open_device(struct ibv_device *device)
{
    struct softnic_attr attr = {.port_name = device->name};
    return softnic_open_port(&attr);
}

int softnic_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    union ibv_gid gid;
    nic_gid_of_ip(ctx->ip, 0, &gid);
    *attr = (struct ibv_device_attr){
        .node_guid = gid.global.interface_id,
        .sys_image_guid = gid.global.interface_id,
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096,
        .vendor_id = 0xffffff, /* nobody's, as rdma_rxe has it */
        .vendor_part_id = 0,
        .hw_ver = SHARED_VERSION,
        .max_qp = MAX_QP,
        .max_qp_wr = MAX_QP_WR,
        .max_sge = MAX_SGE,
        .max_sge_rd = MAX_SGE,
        .max_cq = CQS_MAX,
        .max_cqe = MAX_CQE,
        .max_mr = MRS_MAX - 1,
        .max_pd = MAX_PD,
        .max_ah = MAX_AH,
        .max_srq = SRQS_MAX,
        .max_srq_wr = MAX_SRQ_WR,
        .max_srq_sge = MAX_SGE,
        .device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN,
        .max_qp_rd_atom = MAX_RD_ATOMIC,
        .max_res_rd_atom = QPS_MAX * MAX_RD_ATOMIC,
        .max_qp_init_rd_atom = MAX_RD_ATOMIC,
        .atomic_cap = IBV_ATOMIC_HCA,
        .max_pkeys = 1,
        .local_ca_ack_delay = 0,
        .phys_port_cnt = 1,
    };
    /* The version says whether times taken here are those of a wire that was asked for. */
    snprintf(attr->fw_ver, sizeof attr->fw_ver, "softnic%s 1.0",
             nic_shaped(ctx->meeting) ? "-shaped" : "");
    return 0;
}

int softnic_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if (port != 1)
        return EINVAL;
    *attr = (struct ibv_port_attr){
        .state = IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = IBV_MTU_4096,
        .gid_tbl_len = 2,
        .max_msg_sz = MAX_MSG,
        .lid = nic_lid_of_ip(ctx->ip),
        .sm_lid = 0,
        .qkey_viol_cntr = atomic_load(&ctx->meeting->qkey_violations),
        .pkey_tbl_len = 1,
        .max_vl_num = 1,
        .active_width = 2,  /* 4X */
        .active_speed = 32, /* EDR */
        .phys_state = 5,    /* LinkUp */
        .link_layer = IBV_LINK_LAYER_ETHERNET,
    };
    return 0;
}

static int query_port_sized(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                            size_t size)
{
    struct ibv_port_attr whole;
    int err = softnic_query_port(context, port, &whole);
    if (err == 0)
        memcpy(attr, &whole, size < sizeof whole ? size : sizeof whole);
    return err;
}

int softnic_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct ctx *ctx = to_ctx(context);
    int err = 0;
    if (nic_after_fork(ctx))
        err = nic_refuse_child(ctx);
    else if (port != 1 || index < 0 || index > 1)
        err = EINVAL;
    if (err != 0) {
        errno = err;
        return -1;
    }
    nic_gid_of_ip(ctx->ip, index, gid);
    return 0;
}

int softnic_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                         struct ibv_gid_entry *entry, uint32_t flags)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if (port != 1 || flags != 0)
        return EINVAL;
    if (index > 1)
        return index == UINT32_MAX ? EINVAL : ENODATA;
    *entry = (struct ibv_gid_entry){
        .gid_index = index, .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2};
    nic_gid_of_ip(ctx->ip, (int)index, &entry->gid);
    return 0;
}

static struct ibv_mw *no_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    (void)pd, (void)type;
    errno = EOPNOTSUPP;
    return NULL;
}

static int no_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    (void)qp, (void)mw, (void)bind;
    return EOPNOTSUPP;
}

static int no_dealloc_mw(struct ibv_mw *mw)
{
    (void)mw;
    return EOPNOTSUPP;
}

static void *no_call(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

static int compat_query_port(struct ibv_context *context, uint8_t port,
                             struct _compat_ibv_port_attr *attr)
{
    /* The old structure is the head of the new one. */
    return query_port_sized(context, port, (struct ibv_port_attr *)(void *)attr,
                            offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* What the inline calls of <infiniband/verbs.h> go through; what is left NULL they answer with
 * EOPNOTSUPP themselves. */
void nic_fill_ops(struct verbs_context *verbs)
{
    struct ibv_context_ops *ops = &verbs->context.ops;
    ops->_compat_query_device = softnic_query_device;
    ops->_compat_query_port = compat_query_port;
    ops->alloc_mw = no_alloc_mw;
    ops->bind_mw = no_bind_mw;
    ops->dealloc_mw = no_dealloc_mw;
    ops->poll_cq = softnic_poll_cq;
    ops->req_notify_cq = softnic_req_notify_cq;
    ops->post_srq_recv = softnic_post_srq_recv;
    ops->post_send = softnic_post_send;
    ops->post_recv = softnic_post_recv;
    ops->_compat_alloc_pd = NULL; /* whoever decorates the context keeps his own there */
    ops->_compat_dealloc_pd = ops->_compat_reg_mr = ops->_compat_rereg_mr = ops->_compat_dereg_mr =
        ops->_compat_create_cq = ops->_compat_cq_event = ops->_compat_resize_cq =
            ops->_compat_destroy_cq = no_call;
    ops->_compat_create_srq = ops->_compat_modify_srq = ops->_compat_query_srq =
        ops->_compat_destroy_srq = ops->_compat_create_qp = ops->_compat_query_qp =
            ops->_compat_modify_qp = ops->_compat_destroy_qp = no_call;
    ops->_compat_create_ah = ops->_compat_destroy_ah = ops->_compat_attach_mcast =
        ops->_compat_detach_mcast = ops->_compat_async_event = no_call;
    verbs->sz = sizeof *verbs;
    verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    verbs->query_port = query_port_sized;
    verbs->query_device_ex = nic_query_device_ex;
    verbs->query_rt_values = softnic_query_rt_values;
    verbs->create_cq_ex = softnic_create_cq_ex;
    verbs->create_qp_ex = softnic_create_qp_ex;
}
