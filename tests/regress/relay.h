/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wire between a sender and a daemon that a test can stop and cut: a thread
 * that forwards every TCP connection to another port, both ways. Of what is
 * held nothing is read, so that it stays in the sender's sockets and, behind
 * those, in the sender.
 */
#ifndef KVS_TESTS_RELAY_H
#define KVS_TESTS_RELAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define RELAY_MAX 16

struct relay {
	unsigned int port; /* to dial */
	unsigned int to;
	int listener;
	struct relay_pair {
		int from; /* the sender's; -1: unused */
		int to;
	} pair[RELAY_MAX];
	unsigned int n; /* pairs ever made; the first one is the control */
	atomic_bool hold; /* all but the control connection */
	atomic_bool cut; /* RST on those, once */
	atomic_bool stop;
	pthread_t thread;
};

void relay_up(struct relay *r, unsigned int to);
void relay_down(struct relay *r);
/* Data from the sender stops, or goes on. */
void relay_hold(struct relay *r, bool hold);
/* Reset every data connection there is, on both sides; done on return. */
void relay_cut(struct relay *r);

#endif /* KVS_TESTS_RELAY_H */
