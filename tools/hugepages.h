/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: hugepages
 *
 * Reserves huge pages of one size for a while. The reservation is the whole
 * machine's, so what was there before is put back, whatever happens between.
 */
#ifndef KVS_TOOLS_HUGEPAGES_H
#define KVS_TOOLS_HUGEPAGES_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct kvs_hugepages - one raised reservation
 * @page_size: bytes
 * @before: pages reserved before
 * @raised: there is something to put back
 */
struct kvs_hugepages {
	uint64_t page_size;
	uint64_t before;
	bool raised;
};

/**
 * kvs_hugepages_reserve() - have @pages free ones
 * @h: filled; hand it to kvs_hugepages_restore() whatever this returns
 * @page_size: bytes
 * @pages: how many must be free and unclaimed
 *
 * Context: needs root; may take seconds while the kernel compacts memory.
 * Return: 0; -ENOMEM the kernel found fewer (and none is kept); -EOPNOTSUPP
 * it has no such size; -EACCES and the like from writing the setting.
 */
int kvs_hugepages_reserve(struct kvs_hugepages *h, uint64_t page_size,
			  uint64_t pages);

/**
 * kvs_hugepages_restore() - put back what was there
 * @h: from kvs_hugepages_reserve(), or all zero
 *
 * Return: 0; -errno when it could not be written, @h then still holds it.
 */
int kvs_hugepages_restore(struct kvs_hugepages *h);

#endif /* KVS_TOOLS_HUGEPAGES_H */
