// SPDX-License-Identifier: GPL-2.0
#include <linux/jhash.h>
#include <linux/jiffies.h>
#include <linux/slab.h>

#include "device.h"
#include "sdc.h"

/* A sender of which none could be made is tried again after a while only. */
#define MAX_HANDLES 1024
#define AGAIN HZ

static u32 krc_sdc_hash(const u8 *address)
{
	return jhash(address, sizeof_field(struct krc_sdc_handle, address), 0);
}

void krc_sdc_handles_init(struct krc_sdc_handles *handles)
{
	hash_init(handles->by_address);
	INIT_LIST_HEAD(&handles->recent);
}

struct krc_sdc_handle *krc_sdc_handle_find(struct krc_sdc *sdc,
					   const struct sdc_address *address)
{
	struct krc_sdc_handles *handles = &sdc->handles;
	struct krc_sdc_handle *handle;

	lockdep_assert_held(&sdc->lock);
	hash_for_each_possible(handles->by_address, handle, hash,
			       krc_sdc_hash(address->bytes)) {
		if (memcmp(handle->address, address->bytes,
			   sizeof(handle->address)))
			continue;
		list_move(&handle->link, &handles->recent);
		return handle;
	}
	return NULL;
}

bool krc_sdc_handle_is_settled(const struct krc_sdc_handle *handle)
{
	return handle && (handle->ah || time_before(jiffies, handle->again));
}

static void krc_sdc_handle_free(struct krc_sdc_handle *handle)
{
	if (!handle)
		return;
	if (handle->ah)
		rdma_destroy_ah(handle->ah, RDMA_DESTROY_AH_SLEEPABLE);
	kfree(handle);
}

static void krc_sdc_handle_remove(struct krc_sdc_handles *handles,
				  struct krc_sdc_handle *handle)
{
	hash_del(&handle->hash);
	list_del(&handle->link);
	handles->count--;
}

/* Makes room: the one that was used longest ago and that nothing is posted with. */
static struct krc_sdc_handle *krc_sdc_handle_evict(struct krc_sdc *sdc)
{
	struct krc_sdc_handles *handles = &sdc->handles;
	struct krc_sdc_handle *handle;

	lockdep_assert_held(&sdc->lock);
	if (handles->count < MAX_HANDLES)
		return NULL;
	list_for_each_entry_reverse(handle, &handles->recent, link) {
		if (handle->sends)
			continue;
		krc_sdc_handle_remove(handles, handle);
		return handle;
	}
	return NULL;
}

void krc_sdc_handle_make(struct krc_sdc *sdc,
			 const struct krc_sdc_receive *receive)
{
	struct krc_sdc_handles *handles = &sdc->handles;
	struct krc_sdc_handle *made, *old, *evicted;
	struct ib_ah *ah;

	made = kzalloc(sizeof(*made), GFP_KERNEL);
	if (!made)
		return;
	/* For RoCE it asks the network where that address is. */
	ah = ib_create_ah_from_wc(sdc->dev->pd, &receive->wc,
				  (struct ib_grh *)receive->buffer,
				  sdc->dev->port);
	made->ah = IS_ERR(ah) ? NULL : ah;
	made->again = jiffies + AGAIN;
	memcpy(made->address, receive->from.bytes, sizeof(made->address));
	spin_lock_bh(&sdc->lock);
	/* It has no `ah`, so nothing is posted with it. */
	old = krc_sdc_handle_find(sdc, &receive->from);
	if (old)
		krc_sdc_handle_remove(handles, old);
	evicted = krc_sdc_handle_evict(sdc);
	if (handles->count < MAX_HANDLES) {
		hash_add(handles->by_address, &made->hash,
			 krc_sdc_hash(made->address));
		list_add(&made->link, &handles->recent);
		handles->count++;
		made = NULL;
	}
	spin_unlock_bh(&sdc->lock);
	krc_sdc_handle_free(old);
	krc_sdc_handle_free(evicted);
	krc_sdc_handle_free(made);
}

void krc_sdc_handles_destroy(struct krc_sdc *sdc)
{
	struct krc_sdc_handle *handle, *next;

	list_for_each_entry_safe(handle, next, &sdc->handles.recent, link)
		krc_sdc_handle_free(handle);
}
