/* filter.h - which system calls a command may make. Level 1.
 *
 * What a command needs to attack the kernel or leave its namespaces is refused with EPERM, what the
 * list does not know yet with ENOSYS. Compiled once, by libseccomp, into the bytes that every
 * command then loads. */
#pragma once
#include <linux/filter.h>

#include "host/base.h"

GR_MUST_CHECK gr_status
gr_filter_compile(struct sock_fprog* out); /* the caller frees out->filter */
/* For this process and its descendants, for good. False: the kernel refused. */
bool gr_filter_load(const struct sock_fprog* filter);
