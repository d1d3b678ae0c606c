// SPDX-License-Identifier: GPL-2.0
#include <linux/errno.h>

#include "check.h"

#define KNOWN_FLAGS (KRC_SIGNALED | KRC_FENCE | KRC_INLINE | KRC_SOLICITED)
#define KNOWN_ACCESS                                                           \
	(KRC_LOCAL_WRITE | KRC_REMOTE_READ | KRC_REMOTE_WRITE |                \
	 KRC_REMOTE_ATOMIC)

int krc_is_send(__u8 opcode)
{
	return opcode == KRC_OP_SEND || opcode == KRC_OP_SEND_IMM;
}

static int is_atomic(__u8 opcode)
{
	return opcode == KRC_OP_COMPARE_SWAP || opcode == KRC_OP_FETCH_ADD;
}

int krc_check_form(const struct krc_request *request, __u32 max_message_bytes,
		   __u64 *bytes)
{
	unsigned int i;

	if (request->reserved || (request->flags & ~KNOWN_FLAGS))
		return -EINVAL;
	switch (request->opcode) {
	case KRC_OP_READ:
	case KRC_OP_WRITE:
	case KRC_OP_COMPARE_SWAP:
	case KRC_OP_FETCH_ADD:
	case KRC_OP_SEND:
	case KRC_OP_SEND_IMM:
		break;
	case KRC_OP_WRITE_IMM:
		return -EOPNOTSUPP;
	default:
		return -EINVAL;
	}
	if (request->flags & KRC_INLINE)
		return -EOPNOTSUPP;
	if (request->num_sge > KRC_MAX_SGE ||
	    (!request->num_sge && !krc_is_send(request->opcode)))
		return -EINVAL;
	*bytes = 0;
	for (i = 0; i < request->num_sge; i++) {
		/* A length of 0 means 2 GiB to some NICs. */
		if (!request->sges[i].length)
			return -EINVAL;
		*bytes += request->sges[i].length;
	}
	if (is_atomic(request->opcode) &&
	    (request->num_sge != 1 || *bytes != 8 || request->remote_addr % 8))
		return -EINVAL;
	return *bytes > max_message_bytes ? -EMSGSIZE : 0;
}

int krc_check_access(__u32 access)
{
	if (access & ~KNOWN_ACCESS)
		return -EINVAL;
	/* As in verbs: who lets others write may write himself. */
	if ((access & (KRC_REMOTE_WRITE | KRC_REMOTE_ATOMIC)) &&
	    !(access & KRC_LOCAL_WRITE))
		return -EINVAL;
	return 0;
}

__u32 krc_local_access(__u8 opcode)
{
	return opcode == KRC_OP_WRITE || krc_is_send(opcode) ? 0 :
							       KRC_LOCAL_WRITE;
}

__u32 krc_remote_access(__u8 opcode)
{
	if (is_atomic(opcode))
		return KRC_REMOTE_ATOMIC;
	return opcode == KRC_OP_READ ? KRC_REMOTE_READ : KRC_REMOTE_WRITE;
}
