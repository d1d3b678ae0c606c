/* SPDX-License-Identifier: GPL-2.0 */
/* The top of the module, below only its calls: devices, and their files in debugfs. */
#ifndef KRCORE_CLIENT_H
#define KRCORE_CLIENT_H

struct krc_device;

/* From then on devices come; after krc_client_exit none is left. */
int krc_client_init(void);
void krc_client_exit(void);

/* --- client_debugfs.c: krcore/<device>/ --- */

void krc_debugfs_init(void);
void krc_debugfs_exit(void);
void krc_debugfs_add(struct krc_device *dev);
/* Waits until nobody is in one of its files. By then nothing may be left. */
void krc_debugfs_remove(struct krc_device *dev);

#endif
