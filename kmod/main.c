// SPDX-License-Identifier: GPL-2.0
/* /dev/krcore: files, calls, mappings. */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "calls.h"
#include "client.h"
#include "device.h"
#include "port.h"
#include "sdc.h"
#include "sender.h"

static int krc_open(struct inode *inode, struct file *file)
{
	struct krc_queue *queue = krc_queue_create();

	if (!queue)
		return -ENOMEM;
	file->private_data = queue;
	return 0;
}

static int krc_release(struct inode *inode, struct file *file)
{
	struct krc_queue *queue = file->private_data;

	krc_queue_detach(queue, false);
	krc_queue_put(queue);
	return 0;
}

static int krc_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct krc_queue *queue = file->private_data;
	struct krc_ring_header *ring;
	int err;

	/* The queue's lock must not be taken here: it is above mmap_lock. */
	if (current->mm != queue->mm)
		return -EPERM;
	err = krc_queue_make_ring(queue);
	if (err)
		return err;
	ring = krc_queue_ring(queue);
	if (vma->vm_pgoff || vma->vm_end - vma->vm_start != queue->ring_bytes ||
	    !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (is_vmalloc_addr(ring))
		return remap_vmalloc_range(vma, ring, 0);
	return vm_insert_page(vma, vma->vm_start, virt_to_page(ring));
}

static __poll_t krc_poll(struct file *file, struct poll_table_struct *table)
{
	struct krc_queue *queue = file->private_data;
	struct krc_ring_header *ring = krc_queue_ring(queue);
	__poll_t events = 0;

	poll_wait(file, &queue->wait, table);
	/*
	 * Pairs with wq_has_sleeper in krc_queue_complete: either that sees this
	 * waiter, or its completion is seen here.
	 */
	smp_mb();
	if (READ_ONCE(queue->gone))
		events |= EPOLLERR | EPOLLHUP;
	if (ring && READ_ONCE(queue->head) != READ_ONCE(ring->tail))
		events |= EPOLLIN | EPOLLRDNORM;
	return events | krc_port_poll(queue);
}

static int krc_query(struct krc_query *query)
{
	query->abi_version = KRC_ABI_VERSION;
	query->max_regions = krc_max_regions;
	query->devices = krc_device_count(&query->max_message_bytes);
	return 0;
}

union krc_args {
	struct krc_query query;
	struct krc_attach attach;
	struct krc_connect_device connect_device;
	struct krc_reg_mr reg_mr;
	struct krc_dereg_mr dereg_mr;
	struct krc_push push;
	struct krc_join join;
	struct krc_publish publish;
	struct krc_connect connect;
	struct krc_service service;
	struct krc_peer_state peer_state;
	struct krc_bind bind;
	struct krc_push_recv push_recv;
	struct krc_pop_msgs pop_msgs;
	struct krc_credits credits;
	struct krc_dc_target dc_target;
	struct krc_start start;
};

/* Requires the queue's lock. */
static int krc_call(struct krc_queue *queue, unsigned int cmd,
		    union krc_args *args)
{
	switch (cmd) {
	case KRC_IOC_ATTACH:
		return krc_queue_attach(queue, &args->attach);
	case KRC_IOC_CONNECT_DEVICE:
		return krc_queue_connect_device(queue, &args->connect_device);
	case KRC_IOC_REG_MR:
		return krc_queue_reg_mr(queue, &args->reg_mr);
	case KRC_IOC_DEREG_MR:
		return krc_queue_dereg_mr(queue, &args->dereg_mr);
	case KRC_IOC_PUSH:
		return krc_queue_push(queue, &args->push);
	case KRC_IOC_JOIN:
		return krc_queue_join(queue, &args->join);
	case KRC_IOC_PUBLISH:
		return krc_queue_publish(queue, &args->publish);
	case KRC_IOC_CONNECT:
		return krc_queue_connect(queue, &args->connect);
	case KRC_IOC_SET_SERVICE:
		return krc_queue_set_service(queue, &args->service);
	case KRC_IOC_GET_SERVICE:
		return krc_queue_get_service(queue, &args->service);
	case KRC_IOC_PEER_STATE:
		return krc_queue_peer_state(queue, &args->peer_state);
	case KRC_IOC_BIND:
		return krc_queue_bind(queue, &args->bind);
	case KRC_IOC_PUSH_RECV:
		return krc_queue_push_recv(queue, &args->push_recv);
	case KRC_IOC_POP_MSGS:
		return krc_queue_pop_msgs(queue, &args->pop_msgs);
	case KRC_IOC_CREDITS:
		return krc_queue_credits(queue, &args->credits);
	case KRC_IOC_DC_TARGET:
		return krc_queue_dc_target(queue, &args->dc_target);
	case KRC_IOC_START:
		return krc_queue_start(queue, &args->start);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations krc_fops;

/* The descriptor is installed only when its number has been reported. */
static int krc_new_queue(struct krc_queue *queue,
			 struct krc_new_queue __user *user)
{
	struct krc_new_queue args;
	struct krc_queue *made;
	struct file *file;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	args.file = get_unused_fd_flags(O_CLOEXEC);
	if (args.file < 0)
		return args.file;
	made = krc_queue_create();
	if (!made) {
		err = -ENOMEM;
		goto put_descriptor;
	}
	err = krc_queue_join_like(made, queue, args.depth);
	if (err)
		goto put_queue;
	args.ring_bytes = made->ring_bytes;
	args.ring_entries = made->ring_mask + 1;
	file = anon_inode_getfile("[krcore]", &krc_fops, made, O_RDWR);
	if (IS_ERR(file)) {
		err = PTR_ERR(file);
		goto detach_queue;
	}
	if (copy_to_user(user, &args, sizeof(args))) {
		fput(file);
		err = -EFAULT;
		goto put_descriptor;
	}
	fd_install(args.file, file);
	return 0;

detach_queue:
	krc_queue_detach(made, false);
put_queue:
	krc_queue_put(made);
put_descriptor:
	put_unused_fd(args.file);
	return err;
}

static long krc_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct krc_queue *queue = file->private_data;
	void __user *user = (void __user *)arg;
	unsigned int bytes = _IOC_SIZE(cmd);
	union krc_args args;
	bool told;
	int err;

	if (current->mm != queue->mm)
		return -EPERM;
	if (cmd == KRC_IOC_NEW_QUEUE)
		return krc_new_queue(queue, user);
	/* The number of a call contains its size. */
	if (_IOC_TYPE(cmd) != KRC_IOC_MAGIC || bytes > sizeof(args))
		return -ENOTTY;
	if (copy_from_user(&args, user, bytes))
		return -EFAULT;
	if (cmd == KRC_IOC_QUERY) {
		err = krc_query(&args.query);
	} else {
		mutex_lock(&queue->lock);
		err = krc_call(queue, cmd, &args);
		mutex_unlock(&queue->lock);
	}
	/* Also report which request of a refused push it was, and how far a start came. */
	told = !err || cmd == KRC_IOC_PUSH || cmd == KRC_IOC_PUSH_RECV ||
	       cmd == KRC_IOC_START;
	if (told && copy_to_user(user, &args, bytes) && !err)
		err = -EFAULT;
	return err;
}

static const struct file_operations krc_fops = {
	.owner = THIS_MODULE,
	.open = krc_open,
	.release = krc_release,
	.mmap = krc_mmap,
	.poll = krc_poll,
	.unlocked_ioctl = krc_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

/*
 * Open to everybody, as the nodes of uverbs are: the module gives nobody anything
 * that others did not open for remote access. Pinned memory is bounded by
 * RLIMIT_MEMLOCK, which counts per address space: whoever may start processes may
 * pin that much in each of them. A udev rule can restrict access.
 */
static struct miscdevice krc_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "krcore",
	.fops = &krc_fops,
	.mode = 0666,
};

static int __init krc_init(void)
{
	int err = krc_client_init();

	if (err)
		return err;
	err = misc_register(&krc_misc);
	if (err)
		krc_client_exit();
	return err;
}

static void __exit krc_exit(void)
{
	misc_deregister(&krc_misc);
	krc_client_exit();
}

module_init(krc_init);
module_exit(krc_exit);
MODULE_DESCRIPTION("KRCore: a pool of RDMA connections for all processes");
MODULE_LICENSE("GPL");
