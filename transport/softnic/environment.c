/* SPDX-License-Identifier: MIT */
/* Numbers and flags from the environment: what cannot be meant is refused, not taken for another.
 */
#include "transport/softnic/environment.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *nic_env_text(const char *variable)
{
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? text : NULL;
}

int nic_env_flag(const char *variable, bool *value)
{
    const char *text = nic_env_text(variable);
    *value = text != NULL && strcmp(text, "1") == 0;
    return text == NULL || *value || strcmp(text, "0") == 0 ? 0 : EINVAL;
}

int nic_env_number(const char *variable, uint64_t low, uint64_t high, uint64_t *value)
{
    const char *text = nic_env_text(variable);
    char *end;
    if (text == NULL)
        return 0;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0' || errno != 0 || number < low ||
        number > high)
        return EINVAL;
    *value = number;
    return 0;
}
