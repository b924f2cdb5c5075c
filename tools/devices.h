/* SPDX-License-Identifier: MIT */
/* What verbs devices this machine has. Private to tools. */
#ifndef SSTAR_TOOLS_DEVICES_H
#define SSTAR_TOOLS_DEVICES_H

#include "transport/transport.h"
#include <jansson.h>

/* An array with an object for each device: name, class, port, state, link_layer, mtu_bytes, why it
 * is chosen or not, and its GIDs. `config` is what a world would be opened with. */
json_t *devices_list(const struct sstar_config *config);
/* What a lone rank would use; 0, or a negative errno and the sentence. */
int devices_chosen(const struct sstar_config *config, struct sstar_device_info *info, char *error,
                   size_t error_size);

/* Counters of all ports that are there, into the record and, with `print`, to stdout as tables. 0,
 * or 1 after a sentence. */
int devices_counters(json_t *record, bool print);

#endif
