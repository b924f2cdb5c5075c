/* SPDX-License-Identifier: MIT */
/* What each protocol of the transport and of the collectives needs of the device. */
#include "transport/ordering.h"

const struct protocol protocols[] = {
    {"message, arrival in memory", ORDERING_QUEUE_PAIR,
     "data and trailer are one write, and the receiver looks at the trailer's last word"},
    {"message, arrival by completion", ORDERING_COMPLETIONS,
     "WRITE_WITH_IMM: the receive completes when data and trailer are there"},
    {"credit, arrival in memory", ORDERING_QUEUE_PAIR,
     "a count that is written to one word again and again: an older one must not come last"},
    {"credit, arrival by completion", ORDERING_COMPLETIONS,
     "counts in immediates and trailers; one that overtook another is out of the window"},
    {"put with signal, arrival in memory", ORDERING_QUEUE_PAIR,
     "the signal is a count written behind the data on the same queue pair"},
    {"put with signal, arrival by completion", ORDERING_COMPLETIONS,
     "one WRITE_WITH_IMM, or one without data behind an atomic on the same queue pair"},
    {"get", ORDERING_COMPLETIONS, "nothing is read before its completion"},
    {"fetch-add", ORDERING_COMPLETIONS, "the value before is read after the completion"},
    {"message inside a node", ORDERING_NONE, "composed in the receiver's memory, then released"},
    {"barrier", ORDERING_COMPLETIONS, "a put that has completed is there before its barrier"},
    {"AllReduce", ORDERING_COMPLETIONS, "messages, by whichever arrival the device has"},
    {"aggregator", ORDERING_COMPLETIONS, "messages, by whichever arrival the device has"},
};
const size_t n_protocols = sizeof protocols / sizeof *protocols;

enum ordering ordering_of_arrival(enum arrival arrival)
{
    return arrival == ARRIVAL_IN_MEMORY ? ORDERING_QUEUE_PAIR : ORDERING_COMPLETIONS;
}
