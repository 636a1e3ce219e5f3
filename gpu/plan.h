/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: plan
 *
 * How a copy is made with the fewest operations. A copy is cut into *steps*;
 * a step is a list of *pieces* for the copy engine, one batch, and at most one
 * launch of the scatter kernel (gpu/scatter.h):
 *
 *  - long pieces (batch_min and longer on average), or a few short ones, go
 *    between the host and the device's rows directly; neighbours are one
 *    piece, over the borders of runs too;
 *  - short ones go through a *slot* of a ring in device memory: the host side,
 *    which is contiguous, as one large piece, and the rows by the kernel;
 *  - where there is no slot, or the host side has gaps that would be copied
 *    for nothing (or, to the host, overwritten), the kernel reads or writes
 *    mapped host memory itself;
 *  - where there is no kernel either, everything goes piece by piece.
 *
 * H2D: first the pieces, then the kernel. D2H: first the kernel. Steps are
 * made one at a time into memory of the caller's, so a plan of any size needs
 * kvs_plan_step_bytes() and no more; the page numbers that a launch needs are
 * in the step, so nothing of the caller's is read once it is made.
 */
#ifndef KVS_GPU_PLAN_H
#define KVS_GPU_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"
#include "gpu/scatter.h"
#include "gpu/spans.h"

#define KVS_PLAN_BATCH_MIN (28u << 10) /* bytes */
#define KVS_PLAN_FEW 64u /* pieces */
#define KVS_PLAN_SLOT_BYTES (32u << 20)
#define KVS_PLAN_SLOTS 2u
#define KVS_PLAN_SLOTS_MAX 16u
#define KVS_PLAN_SLOT_MAX ((uint64_t)1 << 30) /* bytes */
#define KVS_PLAN_BLOCKS 4u
#define KVS_PLAN_BLOCKS_MAX 64u
#define KVS_PLAN_STEP_BYTES (64u << 20)
#define KVS_PLAN_PIECES 1024u
#define KVS_PLAN_RUNS 1024u
#define KVS_PLAN_PAGES (192u << 10)
#define KVS_PLAN_ALIGN 256u /* of a segment in a slot, bytes */

/**
 * struct kvs_plan_tuning - how plans are made
 * @batch_min: bytes; pieces at least this long on average go directly
 * @few: with fewer short pieces in the whole copy they go directly, too
 * @slot_bytes: of a ring slot; 0: there is none
 * @step_bytes: of a step, slot not counted; so that progress can be told
 * @pieces: of a step, at least 1
 * @runs: of a launch; 0: no kernel
 * @pages: page numbers of a launch, at least 1 if there is a kernel
 * @zero_copy: the kernel may reach host memory
 */
struct kvs_plan_tuning {
	uint64_t batch_min;
	uint64_t few;
	uint64_t slot_bytes;
	uint64_t step_bytes;
	uint32_t pieces;
	uint32_t runs;
	uint32_t pages;
	bool zero_copy;
};

/**
 * kvs_plan_tuning_init() - as options say
 * @t: tuning
 * @o: options; batch_min 0 is 28 KiB
 * @way: what is had of o->way: KVS_COPY_DIRECT: no kernel, KVS_COPY_MAPPED: no
 *       slot
 */
void kvs_plan_tuning_init(struct kvs_plan_tuning *t,
			  const struct kvs_copy_opts *o, enum kvs_copy_way way);

/* Do options make sense? Return: 0; -EINVAL and a message. */
int kvs_copy_opts_check(const struct kvs_copy_opts *o, char *err,
			size_t errlen);

/**
 * struct kvs_plan_piece - one contiguous copy
 * @host: host address
 * @dev: device address, or offset in the slot
 * @len: bytes
 * @slot: @dev is an offset
 */
struct kvs_plan_piece {
	uint64_t host;
	uint64_t dev;
	uint64_t len;
	bool slot;
};

#define KVS_PLAN_LISTS 64u /* page lists a step remembers */

/**
 * struct kvs_plan_step - one batch and one launch
 * @pieces: for the copy engine, n_pieces
 * @runs: for the kernel, n_runs; none: no launch. Hosts that are offsets in
 *        the slot (KVS_SCATTER_SLOT) become addresses by kvs_plan_place()
 * @pages: page numbers of the launch, n_pages
 * @units: of the launch
 * @bytes: the step moves, each counted once
 * @direct_bytes: of these, of pieces beside the slot and of zero copy
 * @slot_used: bytes of the slot
 * @zero_copy: some run of the launch has a host address
 * @runs_done: runs of the copy that are complete after it
 * @lists: private
 */
struct kvs_plan_step {
	struct kvs_plan_piece *pieces;
	struct kvs_scatter_run *runs;
	uint32_t *pages;
	uint32_t n_pieces;
	uint32_t n_runs;
	uint32_t n_pages;
	uint32_t units;
	uint64_t bytes;
	uint64_t direct_bytes;
	uint64_t slot_used;
	bool zero_copy;
	size_t runs_done;
	struct {
		const uint32_t *at;
		uint64_t n;
		uint32_t page_at;
	} lists[KVS_PLAN_LISTS];
};

/* Bytes of the launch table of a step: its runs, then its pages. */
size_t kvs_plan_table_bytes(const struct kvs_plan_tuning *t);

/**
 * kvs_plan_step_init() - memory for the steps of a plan, one after another
 * @s: step
 * @t: tuning
 * @table: kvs_plan_table_bytes() for the runs and pages, aligned to 16; the
 *         caller's. May be NULL where there is no kernel. It may be exchanged
 *         between two steps by kvs_plan_step_table()
 * Return: 0; -ENOMEM.
 */
int kvs_plan_step_init(struct kvs_plan_step *s, const struct kvs_plan_tuning *t,
		       void *table);
void kvs_plan_step_table(struct kvs_plan_step *s,
			 const struct kvs_plan_tuning *t, void *table);
void kvs_plan_step_fini(struct kvs_plan_step *s);

/**
 * struct kvs_plan - a copy that is being planned
 *
 * All members are private.
 */
struct kvs_plan {
	const struct kvs_copy *c;
	const struct kvs_plan_tuning *t;
	const struct kvs_spans *hosts;
	size_t run;
	uint64_t item;
	uint64_t row;
	bool few;
};

/**
 * kvs_plan_init() - begin
 * @p: plan
 * @c: copy that kvs_device_copy() has checked. Outlives the plan
 * @t: tuning; outlives the plan
 * @hosts: what is registered, a piece never lies in two; NULL: nothing to
 *         mind. Outlives the plan
 */
void kvs_plan_init(struct kvs_plan *p, const struct kvs_copy *c,
		   const struct kvs_plan_tuning *t,
		   const struct kvs_spans *hosts);

/**
 * kvs_plan_next() - make the next step
 * @p: plan
 * @s: filled; its memory is as large as the tuning says
 * Return: false when there is none, and then the copy is made.
 */
bool kvs_plan_next(struct kvs_plan *p, struct kvs_plan_step *s);

/**
 * kvs_plan_place() - turn offsets in the slot into addresses
 * @s: step
 * @slot: address of the slot, as the copy engine and the kernel see it
 */
void kvs_plan_place(struct kvs_plan_step *s, uint64_t slot);

#endif /* KVS_GPU_PLAN_H */
