/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The form of requests: what can be judged without knowing any memory. Plain C
 * without state, so that a program in user space can test it.
 */
#ifndef KRCORE_CHECK_H
#define KRCORE_CHECK_H

#include <krcore/krcore_ioctl.h>

/*
 * Returns 0 and the bytes of all SGEs, or -EINVAL, -EOPNOTSUPP, -EMSGSIZE; see
 * KRC_IOC_PUSH.
 */
int krc_check_form(const struct krc_request *request, __u32 max_message_bytes,
		   __u64 *bytes);
/* Whether the opcode is that of a message. */
int krc_is_send(__u8 opcode);
/* Whether these are rights that a region may have. */
int krc_check_access(__u32 access);

/* The rights, of krc_access, that the local memory of such a request must grant. */
__u32 krc_local_access(__u8 opcode);
__u32 krc_remote_access(__u8 opcode);

#endif
