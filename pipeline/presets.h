/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: presets
 *
 * Layouts by model name, so that a tool's user says "--model deepseek-v3"
 * instead of numbers. Shapes are those of the models' public configurations;
 * page sizes are what common attention kernels take.
 */
#ifndef KVS_PIPELINE_PRESETS_H
#define KVS_PIPELINE_PRESETS_H

#include <stddef.h>
#include <stdint.h>

#include "pipeline/layout.h"

/**
 * struct kvs_preset_opts - how to scale a model; all zero: as it is
 * @tp: tensor parallel ranks; one rank's share of the heads is laid out.
 *      0: 1. Does not change MLA, which every rank holds in full.
 * @tp_rank: whose share; below @tp
 * @layers: the model's first so many layers; 0: all
 * @page_size: tokens a page; 0: the model's
 * @dtype: enum kvs_dtype of the KV; 0: the model's
 * @aux_max: bytes of a rank's aux block; 0: 1024
 * @capacity: tokens of the KV pool; 0: not said
 * @max_context: tokens of the longest request; 0: not said
 */
struct kvs_preset_opts {
	uint32_t tp;
	uint32_t layers;
	uint32_t page_size;
	uint32_t dtype;
	uint32_t aux_max;
	uint64_t capacity;
	uint64_t max_context;
	uint32_t tp_rank;
};

/* Name after @prev in the list, NULL at its end; NULL gives the first. */
const char *kvs_preset_next(const char *prev);

#define KVS_PRESET_ERR 1024 /* bytes; the list of all names fits */

/**
 * kvs_preset_layout() - layout of a model
 * @model: name, see kvs_preset_next()
 * @o: options; NULL: all zero
 * @ret: the layout, as of kvs_layout_dup(); free() it
 * @err: message on failure
 * @errlen: its size
 * Return: 0; -ENOENT unknown name (@err lists the known ones); -EINVAL an
 * option that this model cannot have; -ENOMEM.
 */
int kvs_preset_layout(const char *model, const struct kvs_preset_opts *o,
		      struct kvs_layout **ret, char *err, size_t errlen);

#endif /* KVS_PIPELINE_PRESETS_H */
