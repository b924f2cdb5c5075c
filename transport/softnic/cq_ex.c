/* SPDX-License-Identifier: MIT */
/* Completion queues that are read field by field: ibv_create_cq_ex and ibv_start_poll. */
#include "transport/softnic/nic.h"
#include <errno.h>

static struct cq *of(struct ibv_cq_ex *ex)
{
    return (struct cq *)ex;
}

static int step(struct cq *cq)
{
    int count = nic_poll(cq, 1, &cq->wc, &cq->stamp_ns);
    if (count != 1)
        return count == 0 ? ENOENT : EIO;
    cq->ex.wr_id = cq->wc.wr_id;
    cq->ex.status = cq->wc.status;
    return 0;
}

/* The lock is held until end_poll, unless there is nothing. */
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    struct cq *cq = of(ex);
    if (attr->comp_mask != 0)
        return EINVAL;
    spin_lock(&cq->ex_lock);
    int err = step(cq);
    if (err != 0)
        spin_unlock(&cq->ex_lock);
    return err;
}

static int next_poll(struct ibv_cq_ex *ex)
{
    return step(of(ex));
}

static void end_poll(struct ibv_cq_ex *ex)
{
    spin_unlock(&of(ex)->ex_lock);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.wc_flags;
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.slid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.dlid_path_bits;
}

static uint64_t read_completion_ts(struct ibv_cq_ex *ex)
{
    return of(ex)->stamp_ns;
}

/* What this NIC does not know: create_cq_ex refuses who asks for it. */
static uint16_t read_cvlan(struct ibv_cq_ex *ex)
{
    (void)ex;
    return 0;
}

static uint32_t read_flow_tag(struct ibv_cq_ex *ex)
{
    (void)ex;
    return 0;
}

static void read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info)
{
    (void)ex;
    *info = (struct ibv_wc_tm_info){0};
}

static uint64_t read_wallclock(struct ibv_cq_ex *ex)
{
    (void)ex;
    return 0;
}

static void fill(struct ibv_cq_ex *ex)
{
    ex->comp_mask = 0;
    ex->start_poll = start_poll;
    ex->next_poll = next_poll;
    ex->end_poll = end_poll;
    ex->read_opcode = read_opcode;
    ex->read_vendor_err = read_vendor_err;
    ex->read_byte_len = read_byte_len;
    ex->read_imm_data = read_imm_data;
    ex->read_qp_num = read_qp_num;
    ex->read_src_qp = read_src_qp;
    ex->read_wc_flags = read_wc_flags;
    ex->read_slid = read_slid;
    ex->read_sl = read_sl;
    ex->read_dlid_path_bits = read_dlid_path_bits;
    ex->read_completion_ts = read_completion_ts;
    ex->read_cvlan = read_cvlan;
    ex->read_flow_tag = read_flow_tag;
    ex->read_tm_info = read_tm_info;
    ex->read_completion_wallclock_ns = read_wallclock;
}

static int check(const struct ibv_cq_init_attr_ex *attr)
{
    const uint64_t known = (uint64_t)IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    const uint32_t flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    if ((attr->wc_flags & ~known) != 0 ||
        (attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ||
        ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 && (attr->flags & ~flags) != 0))
        return EOPNOTSUPP;
    return attr->cqe > MAX_CQE || attr->comp_vector > INT32_MAX ? EINVAL : 0;
}

struct ibv_cq_ex *softnic_create_cq_ex(struct ibv_context *context,
                                       struct ibv_cq_init_attr_ex *attr)
{
    int err = check(attr);
    if (err != 0) {
        errno = err;
        return NULL;
    }
    struct ibv_cq *base = softnic_create_cq(context, (int)attr->cqe, attr->cq_context,
                                            attr->channel, (int)attr->comp_vector);
    if (base == NULL)
        return NULL;
    struct cq *cq = to_cq(base);
    fill(&cq->ex);
    cq->shared->stamped = (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0;
    if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 &&
        (attr->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0)
        atomic_store(&cq->shared->cqe, CQE_WITHOUT_END);
    return &cq->ex;
}
