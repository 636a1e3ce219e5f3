/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: metrics
 *
 * A snapshot as Prometheus text, version 0.0.4. Every series is there from
 * the first scrape, at 0; only those of a pool come with the pool. Values are
 * integers or seconds: there is no NaN and no infinity but the bucket bound.
 */
#ifndef KVS_PIPELINE_METRICS_H
#define KVS_PIPELINE_METRICS_H

#include <stddef.h>

#include "pipeline/stats.h"

#define KVS_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/**
 * kvs_metrics_text() - the whole page
 * @s: snapshot; one without workers is a daemon that is starting
 * @ret_text: NUL-terminated, free() it
 * @ret_len: bytes without the NUL
 *
 * Context: any thread, does not block.
 * Return: 0 or -ENOMEM.
 */
int kvs_metrics_text(const struct kvs_snapshot *s, char **ret_text,
		     size_t *ret_len);

#endif /* KVS_PIPELINE_METRICS_H */
