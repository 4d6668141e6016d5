/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Peers: contexts of other devices whose kernels can use memory of a context, because the program enabled peer access.
 *
 * The driver neither reports that peer access was enabled nor lists contexts.  But it says whether a device's primary
 * context lives, which is the one that the CUDA runtime works in, and whether kernels of a context can use an address
 * (CU_POINTER_ATTRIBUTE_DEVICE_POINTER).  So on machines with several devices each context that records fences holds a
 * small piece of memory, the probe, and the driver is asked which primary contexts can use it.  Mapped memory
 * (source_vmm.c) is open to all devices, whatever the program enabled: if a pool has some, all contexts are peers.
 * Knows the driver and contexts; nothing of pools and fences.
 */
#ifndef MAM_LIB_PEER_H
#define MAM_LIB_PEER_H

#include "cuda/context.h"

/* A fence asks about every other device, and each question costs it.  A primary context that was seen is known by its
 * handle and its id together: while the driver says that the handle has the id, it lives and is the device's.  Of so
 * many devices it is remembered; about the others the driver is asked each time. */
enum { PEER_SEEN_MOST = 16 };

struct peer_seen {
  CUcontext handle; /* NULL: none was seen */
  uint64_t id;
};

struct peer_probe {
  CUdeviceptr address; /* 0: none yet */
  bool open;           /* some memory was opened to every peer (source_vmm.c): none has to be asked about */
  bool own_known;
  int own;                               /* the ordinal of the context's device */
  struct peer_seen seen[PEER_SEEN_MOST]; /* by ordinal */
};

/* Whether there can be peers at all. */
bool peer_possible(const struct driver *driver);

/* Whether the caller knows the context of an id already. */
typedef bool peer_known(const void *caller, uint64_t id);

/* *peer: a primary context of another device that the caller does not know and that can use memory of the current one;
 * NULL if there is none.  What the driver says if it could not be found out. */
CUresult peer_find(const struct driver *driver, struct peer_probe *probe, peer_known *known, const void *caller,
                   CUcontext *peer);

/* Ends a probe; its context is current. */
void peer_probe_end(const struct driver *driver, struct peer_probe *probe);

#endif
