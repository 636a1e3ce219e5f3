/* SPDX-License-Identifier: Apache-2.0 */
/* What kvstaged's /metrics say of the rooms that it has served. */
#ifndef KVS_TOOLS_SCRAPE_H
#define KVS_TOOLS_SCRAPE_H

#include <stdbool.h>

struct kvs_scraped {
	bool asked; /* and answered */
	double received; /* bytes placed in pools */
	double pool; /* bytes of pools that committed rooms took */
};

/**
 * kvs_scrape() - ask once
 * @address: "host:port" of the daemon's HTTP
 * @ret: written on success
 * Context: blocks, some seconds at most.
 * Return: 0; -EINVAL no address; -ENODATA an answer without the numbers; what
 * connecting gave.
 */
int kvs_scrape(const char *address, struct kvs_scraped *ret);

#endif /* KVS_TOOLS_SCRAPE_H */
