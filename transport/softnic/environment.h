/* SPDX-License-Identifier: MIT */
/* Words, flags and numbers from the environment. Private to transport/softnic. */
#ifndef SOFTNIC_ENVIRONMENT_H
#define SOFTNIC_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

/* NULL for what is not set, or empty. */
const char *nic_env_text(const char *variable);
/* 0, or EINVAL for what is neither 0 nor 1; false where it is not set. */
int nic_env_flag(const char *variable, bool *value);
/* 0, or EINVAL for what is no whole number of this range; it stays as it is where it is not set. */
int nic_env_number(const char *variable, uint64_t low, uint64_t high, uint64_t *value);

#endif
