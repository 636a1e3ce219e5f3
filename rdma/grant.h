/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: grant
 *
 * What lets the writers of one owner reach n ranges of memory, and nothing
 * else: on a one-sided transport a key for each range. An *owner* is a number
 * that the upper layer gives to a grant and, by kvs_conn_set_owner(), to the
 * connections whose writes it is meant for (a sender's rank, say). A write
 * lands if its key is open, its bytes lie within the key's range, and the
 * connection it arrives on has the grant's owner; any other breaks that
 * connection.
 *
 *           open()        opened(0)        close()        closed(0)
 *   (none) ------> OPENING ------> OPEN -----------> CLOSING ------> (freed)
 *                     |              ^ keys work here    |  and here
 *                     | opened(<0)   |                   | closed(<0)
 *                     v              |                   v
 *                  (freed)           +---- close() -- IN DOUBT
 *
 * A launched write cannot be recalled: until closed(0) bytes may still land,
 * whatever was told to the writer. After closed(0) none does, ever: @proof
 * says why. A grant in doubt may be open or shut; nothing is proven.
 *
 * kvs_transport_destroy() ends what is left, after its connections: opened()
 * with -ESHUTDOWN for a grant that is opening, closed(0) for any other, asked
 * for or not.
 */
#ifndef KVS_RDMA_GRANT_H
#define KVS_RDMA_GRANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvs_transport;
struct kvs_conn;
struct kvs_grant;

#define KVS_GRANT_RANGES_MAX 65536u

/* What a writer is told of one range. */
struct kvs_grant_key {
	uint64_t addr; /* write here; not the address in this process */
	uint32_t rkey;
};

struct kvs_grant_range {
	void *addr;
	uint64_t len; /* bytes */
};

enum kvs_grant_proof {
	KVS_GRANT_INVALIDATED, /* the keys were taken back, completion seen */
	KVS_GRANT_TORN_DOWN, /* no connection of the owner is left */
};

/**
 * struct kvs_grant_ops - called from kvs_transport_poll() only (and from
 * kvs_transport_destroy())
 * @opened: 0: the keys work and may be told. Negative: no grant, and never
 *          was (-EFBIG, -EFAULT: see kvs_transport_register_max()): freed on
 *          return. Not called once kvs_grant_close() was:
 *          closed() answers then.
 * @closed: answers each kvs_grant_close(). @status 0: proven, by @proof, that
 *          nobody writes through it any more; freed on return. Negative: the
 *          attempt failed and nothing is proven; the grant stays, open or in
 *          doubt: close it again, or end the owner's connections first.
 *          @proof means nothing then.
 * @write_only: a read is refused as one with a bad key is. What lies in memory
 *          that was used before is nobody's business who may write it now
 */
struct kvs_grant_ops {
	void (*opened)(struct kvs_grant *g, int status);
	void (*closed)(struct kvs_grant *g, int status,
		       enum kvs_grant_proof proof);
	bool write_only;
};

/**
 * kvs_grant_open() - begin a grant
 * @t: the transport that the owner's writes arrive on
 * @owner: not 0
 * @v: ranges, copied; their memory must stay until closed(0)
 * @n: ranges, 1..KVS_GRANT_RANGES_MAX
 * @ops: must outlive the grant
 * @user: for kvs_grant_user()
 * @ret: the grant; opened() follows from poll
 *
 * Context: @t's thread.
 * Return: 0; -EOPNOTSUPP where @t is not one-sided; -EINVAL (no owner, no
 * ranges or too many, an empty one or one that wraps); -ENOMEM; -ESHUTDOWN
 * when @t is ending.
 */
int kvs_grant_open(struct kvs_transport *t, uint64_t owner,
		   const struct kvs_grant_range *v, size_t n,
		   const struct kvs_grant_ops *ops, void *user,
		   struct kvs_grant **ret);

/**
 * kvs_grant_open_on() - the same, for writes that arrive on one connection
 * @c: has an owner, who is the grant's. Where keys are no connection's alone
 *     they also work on others of that owner, on the same device. Waits for
 *     it when it is not up yet; opened() with an error when it ends before
 *
 * Return: as kvs_grant_open(); -ENOTCONN when it is ending.
 */
int kvs_grant_open_on(struct kvs_conn *c, const struct kvs_grant_range *v,
		      size_t n, const struct kvs_grant_ops *ops, void *user,
		      struct kvs_grant **ret);

/* One for each range, in their order; from opened(0) on. */
const struct kvs_grant_key *kvs_grant_keys(const struct kvs_grant *g);
void *kvs_grant_user(const struct kvs_grant *g);

/**
 * kvs_grant_close() - begin to close; closed() answers from poll
 *
 * Also while it is still opening. Harmless while an attempt is under way. When
 * no connection of the owner is alive on the transport, one being one until
 * its closed() was called, the attempt succeeds, by KVS_GRANT_TORN_DOWN.
 *
 * Context: the transport's thread; may be called from any callback.
 */
void kvs_grant_close(struct kvs_grant *g);

#endif /* KVS_RDMA_GRANT_H */
