/* SPDX-License-Identifier: MIT */
/*
 * Where rdma_rxe (kernel 6.1, rdma-core 44) departs from the InfiniBand specification and from
 * libibverbs's manual. Each entry must fail as it says: a release that mends it shows itself.
 */
#include "tests/conformance.h"

#define FAILS(text, message, why)                                                                  \
    {                                                                                              \
        .check = (text), .how = (message), .reason = (why)                                         \
    }
/* What is waited for never comes. */
#define HANGS(text, message, why)                                                                  \
    {                                                                                              \
        .check = (text), .how = (message), .reason = (why), .silent = true                         \
    }

#define BAD_WR   "the kernel refuses, when the request is in the ring already; bad_wr is not set"
#define RING     "the ring, a power of two less one, is what counts, not the capacity granted"
#define LENGTHS  "ibv_wr_* lose lengths, of all pieces but the first and of inline data"
#define LOCAL    "whatever is wrong with local memory has one status, that of a bad operation"
#define DRAINED  "what waited in SQD is not taken up until more is posted"
#define OPCODES  "any opcode is taken"
#define TOO_LONG "a message without room breaks the queue pair that it is for, which should drop it"
#define EVENTS   "a queue pair that breaks raises no event"

const struct exception rxe_exceptions[] = {
    FAILS("impossible attribute values are refused", "path_mtu 0: 0", "a path_mtu of 0 is taken"),
    FAILS("query_qp gives the current state", "cur_qp_state: 0", "cur_qp_state is never filled in"),
    FAILS("query_qp gives the capacity granted", "max_send_wr: 63", RING),
    FAILS("sends are refused in RESET", "bad_wr does not point", BAD_WR),
    FAILS("sends are refused in INIT", "bad_wr does not point", BAD_WR),
    FAILS("sends are refused in RTR", "bad_wr does not point", BAD_WR),
    FAILS("receives are refused in RESET", "bad_wr does not point", "bad_wr is not set"),
    HANGS("a drained send queue waits for RTS", "no completion came", DRAINED),

    FAILS("a WRITE by ibv_wr_* gathers from max_sge pieces", "b's memory", LENGTHS),
    FAILS("inline WRITE of every size by ibv_wr_*", "local QP operation error", LENGTHS),
    FAILS("an inline WRITE by ibv_wr_* gathers", "b's memory", LENGTHS),
    FAILS("inline beyond the limit by ibv_wr_* is refused", "local QP operation error", LENGTHS),

    FAILS("a bad lkey: WRITE", "'local QP operation error'", LOCAL),
    FAILS("a bad lkey: SEND", "'local QP operation error'", LOCAL),
    FAILS("the lkey of a deregistered region: WRITE", "'local QP operation error'", LOCAL),
    FAILS("the lkey of another PD", "'local QP operation error'", LOCAL),
    FAILS("a bad second piece is found", "'local QP operation error'", LOCAL),
    FAILS("a receive with a bad key", "'local QP operation error'", LOCAL),
    FAILS("a receive without local write", "'local QP operation error'", LOCAL),
    FAILS("a receive that is too small", "'remote operation error'",
          "the responder calls it a failed operation of its own, not a request that is wrong"),

    HANGS("a peer that is not there, 7 retries", "no completion came", "7 retries have no end"),
    HANGS("receives posted in ERR are flushed", "no completion came",
          "a receive is put in the ring without a word to the kernel, which flushed it before"),
    FAILS("a full send queue refuses", "post_send: 0", RING),
    FAILS("a chain longer than the room", "post_send: 0", RING),
    FAILS("a batch longer than the room", "ibv_wr_complete: 0", RING),
    FAILS("a full receive queue refuses", "post_recv: 0", RING),
    FAILS("a request of unknown opcode in a chain", "post_send: Success", OPCODES),

    HANGS("a forbidden request is an event", "no asynchronous event", EVENTS),
    HANGS("the event can be waited for", "async_fd is not readable", EVENTS),
    HANGS("destroying waits for its asynchronous event", "async_fd is not readable", EVENTS),
    HANGS("a forbidden request to a process", "the peer process has ended", EVENTS),
    HANGS("UC: SQD holds back until RTS", "no completion came", DRAINED),
    HANGS("UD: SQD holds back until RTS", "no completion came", DRAINED),
    FAILS("UC: an inline SEND by ibv_wr_* gathers", "b's memory", LENGTHS),
    FAILS("UD: an inline SEND by ibv_wr_* gathers", "b's memory", LENGTHS),
    FAILS("UC: a SEND longer than its receive is lost", "local QP operation error", TOO_LONG),
    FAILS("UD: longer than its receive it is lost", "local QP operation error", TOO_LONG),
    FAILS("UD: without room for the header it is lost", "local QP operation error", TOO_LONG),
    FAILS("UC: a bad lkey stops the send queue", "'local QP operation error'", LOCAL),
    FAILS("UC: a stopped send queue still receives", "'local QP operation error'", LOCAL),
    FAILS("UC: a stopped send queue can be started", "'local QP operation error'", LOCAL),
    FAILS("UC: a receive with a bad key", "'local QP operation error'", LOCAL),
    FAILS("UD: a bad lkey stops the send queue", "'local QP operation error'", LOCAL),
    FAILS("UD: a receive with a bad key", "'local QP operation error'", LOCAL),
    FAILS("UC carries no READ", "post_send: Success", OPCODES),
    FAILS("UC carries no compare and swap", "post_send: Success", OPCODES),
    FAILS("UC carries no fetch and add", "post_send: Success", OPCODES),
    FAILS("UD carries no WRITE", "post_send: Success", OPCODES),
    FAILS("UD carries no WRITE_WITH_IMM", "post_send: Success", OPCODES),
    FAILS("UD carries no READ", "post_send: Success", OPCODES),
    FAILS("UD carries no fetch and add", "post_send: Success", OPCODES),
    HANGS("UD: a controlled Q_Key is one's own", "no completion came",
          "the Q_Key of the request is sent whatever its highest bit"),
    FAILS("UD: longer than the MTU", "status 'success'",
          "what is longer than the MTU is sent, or not, and called sent"),
    FAILS("SRQ: its queue pair takes no receive", "bad_wr does not point", "bad_wr is not set"),
    HANGS("SRQ: the last WQE is an event", "no asynchronous event", EVENTS),
    HANGS("SRQ: the last WQE of a broken queue pair", "no asynchronous event", EVENTS),
    FAILS("CQ ex: an unknown attribute is refused", "ibv_start_poll: 2",
          "the attributes of a poll are not looked at"),
    FAILS("a region of a batch may go", "status: 2", LOCAL),
    {.check = NULL},
};
