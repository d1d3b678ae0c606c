// SPDX-License-Identifier: GPL-2.0
/* Of the protocol core of the software DC, see Kbuild. */
#include "krcore/rnic/sdc/initiator_peers.c"
