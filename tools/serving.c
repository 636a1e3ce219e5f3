/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/serving.h"

#include <math.h>
#include <stdlib.h>

#include "lib/clock.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"

void kvs_serving_defaults(struct kvs_serving *ret)
{
	*ret = (struct kvs_serving){
		/* the pool of a published incident, under a context of
		 * 1,048,576 tokens */
		.device_tokens = 681280,
		/* "12-group" cluster of sgl-project/sglang#28651 */
		.prefills = 12,
		/* A third of the 50,302 tokens/s that lmsys.org, 2025-05-05,
		 * "Deploying DeepSeek with PD Disaggregation", measured on a
		 * node of 8 H100 with prompts of 4K: ours are longer. */
		.prefill_rate = 16000,
		/* sglang's chunked_prefill_size on large GPUs */
		.prefill_chunk = 8192,
		/* one 200 Gbit/s port */
		.link_rate = 25000000000ULL,
		.link_latency = 10 * KVS_NSEC_PER_USEC,
		/* assumed of PCIe 5.0 x16 */
		.h2d_rate = 50000000000ULL,
		/* GLM-5-FP8, 8 B200, no speculation: 20.2 ms a token alone
		 * (gist BenHamm/dcd09f595fef141567a39582f502cef4) */
		.step_base = 20 * KVS_NSEC_PER_MSEC,
		/* 22,300 tokens/s a node with 2,048 requests (lmsys.org, as
		 * above) are 92 ms a step: 35 us for each */
		.step_request = 35 * KVS_NSEC_PER_USEC,
		.hold_timeout = 30 * KVS_NSEC_PER_SEC,
	};
}

int kvs_serving_model(struct kvs_serving *s, const char *model, char *err,
		      unsigned int errlen)
{
	struct kvs_layout *l;
	uint64_t bytes = 0;
	int ret;

	ret = kvs_preset_layout(model, NULL, &l, err, errlen);
	if (ret)
		return ret;
	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (kvs_buffer_kind_is_paged(l->buffers[b].kind))
			bytes += l->buffers[b].item_len;
	s->page_size = l->page_size;
	s->token_bytes = bytes / l->page_size;
	free(l);
	return 0;
}

/* Seconds that a prompt waits for an instance: Sakasegawa's approximation of
 * a queue with many servers (Annals of the Institute of Statistical
 * Mathematics 29, 1977). */
static double prefill_wait(const struct kvs_serving *s,
			   const struct kvs_serving_load *l)
{
	double n = s->prefills, mean = l->tokens / s->prefill_rate;
	double use = l->rate * mean / n;
	double var = l->tokens2 / (l->tokens * l->tokens);

	if (use > 0.98)
		use = 0.98; /* no pool helps */
	return var / 2 * pow(use, sqrt(2 * (n + 1)) - 1) / (n * (1 - use)) *
	       mean;
}

uint64_t kvs_serving_pool(const struct kvs_serving *s,
			  const struct kvs_serving_load *l)
{
	double hold = l->acked ? 0 : (double)s->hold_timeout / 1e9;
	/* seconds that a token's request keeps its memory for each of its
	 * tokens, and besides */
	double each = 1 / s->prefill_rate +
		      (double)s->token_bytes / (double)s->h2d_rate;
	double fixed = prefill_wait(s, l) +
		       (double)s->prefill_chunk * (double)s->token_bytes /
			       (double)s->link_rate +
		       l->abort * hold;
	double mean = l->rate * (l->tokens2 * each + l->tokens * fixed);
	double var = l->rate * (l->tokens3 * each + l->tokens2 * fixed);

	return (uint64_t)((mean + 3 * sqrt(var) + l->max_tokens) *
			  (double)s->token_bytes);
}
