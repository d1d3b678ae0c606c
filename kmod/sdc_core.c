// SPDX-License-Identifier: GPL-2.0
/*
 * The protocol core of the software DC: user space's own sources, compiled for the
 * kernel. They are included in one file, because Kbuild compiles what is in this
 * folder.
 */
#include "krcore/rnic/sdc/wire.c"
#include "krcore/rnic/sdc/target.c"
#include "krcore/rnic/sdc/initiator_peers.c"
#include "krcore/rnic/sdc/initiator.c"
