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

#endif
