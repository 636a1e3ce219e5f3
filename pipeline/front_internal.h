/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by front_engine.c and front_attach.c. */
#ifndef KVS_PIPELINE_FRONT_INTERNAL_H
#define KVS_PIPELINE_FRONT_INTERNAL_H

#include "pipeline/front.h"

/* Notice when the engine's process exits. */
int kvs_front_engine_watch_pid(struct kvs_front_engine *e);

#endif /* KVS_PIPELINE_FRONT_INTERNAL_H */
