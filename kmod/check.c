// SPDX-License-Identifier: GPL-2.0
#include <linux/errno.h>

#include "check.h"
#include "krcore/rnic/sdc/types.h"

#define KNOWN_FLAGS (KRC_SIGNALED | KRC_FENCE | KRC_INLINE | KRC_SOLICITED)
#define KNOWN_ACCESS                                                           \
	(KRC_LOCAL_WRITE | KRC_REMOTE_READ | KRC_REMOTE_WRITE |                \
	 KRC_REMOTE_ATOMIC)

#define SAME(name)                                                             \
	SDC_STATIC_ASSERT((int)KRC_OP_##name == (int)SDC_OP_##name, "opcodes")
SAME(READ);
SAME(WRITE);
SAME(WRITE_IMM);
SAME(SEND);
SAME(SEND_IMM);
SAME(COMPARE_SWAP);
SAME(FETCH_ADD);
SDC_STATIC_ASSERT(KRC_MAX_SGE == SDC_MAX_SGE, "SGEs");

int krc_is_send(__u8 opcode)
{
	return sdc_is_send(opcode);
}

int krc_check_form(const struct krc_request *request, __u32 max_message_bytes,
		   __u64 *bytes)
{
	unsigned int i;

	if (request->reserved || (request->flags & ~KNOWN_FLAGS) ||
	    request->opcode > KRC_OP_FETCH_ADD)
		return -EINVAL;
	if (request->opcode == KRC_OP_WRITE_IMM || (request->flags & KRC_INLINE))
		return -EOPNOTSUPP;
	if (request->num_sge > KRC_MAX_SGE ||
	    (!request->num_sge && !sdc_is_send(request->opcode)))
		return -EINVAL;
	*bytes = 0;
	for (i = 0; i < request->num_sge; i++) {
		/* To some NICs, a length of 0 means 2 GiB. */
		if (!request->sges[i].length)
			return -EINVAL;
		*bytes += request->sges[i].length;
	}
	if (!sdc_is_well_formed(request->opcode, request->num_sge, *bytes,
				request->remote_addr, false, 0))
		return -EINVAL;
	return *bytes > max_message_bytes ? -EMSGSIZE : 0;
}

int krc_check_access(__u32 access)
{
	if (access & ~KNOWN_ACCESS)
		return -EINVAL;
	/* As in verbs: an owner that lets others write may also write itself. */
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
	if (sdc_is_atomic(opcode))
		return KRC_REMOTE_ATOMIC;
	return opcode == KRC_OP_READ ? KRC_REMOTE_READ : KRC_REMOTE_WRITE;
}
