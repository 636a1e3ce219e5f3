/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: marks
 *
 * Bytes that say where they belong. Memory is filled with marks of 16 bytes:
 * a number of the run, then room and place. Whoever reads one of another room
 * of the run knows which, and that somebody wrote where he must not.
 */
#ifndef KVS_TOOLS_MARKS_H
#define KVS_TOOLS_MARKS_H

#include <stddef.h>
#include <stdint.h>

#define KVS_MARK 16u /* bytes */

enum kvs_mark_fault {
	KVS_MARK_FOREIGN, /* of another room of this run */
	KVS_MARK_MOVED, /* of this room, of another place */
	KVS_MARK_CHANGED, /* no mark of this run */
	KVS_MARK_FAULTS
};
extern const char *const kvs_mark_fault_name[KVS_MARK_FAULTS];

/* What a check found; zero it before the first one. */
struct kvs_marks_found {
	uint64_t marks; /* looked at */
	uint64_t faults[KVS_MARK_FAULTS];
	enum kvs_mark_fault first; /* valid when there is any */
	uint32_t first_at; /* its place */
	uint32_t first_room; /* FOREIGN: whose it is */
};

/**
 * kvs_marks_fill() - write marks
 * @buf: any alignment
 * @len: bytes; the last mark may be cut
 * @run: random, not 0
 * @room: number in the run
 * @at: place of the first one: its number from the start of the room
 */
void kvs_marks_fill(void *buf, size_t len, uint64_t run, uint32_t room,
		    uint32_t at);
/* The same, compared; adds to @found. Return: faults in this piece. */
uint64_t kvs_marks_check(const void *buf, size_t len, uint64_t run,
			 uint32_t room, uint32_t at,
			 struct kvs_marks_found *found);

#endif /* KVS_TOOLS_MARKS_H */
