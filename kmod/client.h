/* SPDX-License-Identifier: GPL-2.0 */
/* The top of the module, below its calls alone: devices, and what debugfs has of them. */
#ifndef KRCORE_CLIENT_H
#define KRCORE_CLIENT_H

struct krc_device;

/* Devices come from now on; none is left. */
int krc_client_init(void);
void krc_client_exit(void);

/* --- client_debugfs.c: krcore/<device>/ --- */

void krc_debugfs_init(void);
void krc_debugfs_exit(void);
void krc_debugfs_add(struct krc_device *dev);
/* Waits until nobody is in one of its files. Nothing may be left by now. */
void krc_debugfs_remove(struct krc_device *dev);

#endif
