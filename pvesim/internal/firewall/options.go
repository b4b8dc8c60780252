// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (oh *optionHandlers) getOptions(_ context.Context, r *api.Request) (api.Response, error) {
	oh.k.Mu.Lock()
	defer oh.k.Mu.Unlock()
	options := oh.file(scope(r)).options
	out := newRow(options)
	out["digest"] = api.Digest(options)
	return api.Response{Data: out}, nil
}

func (oh *optionHandlers) putOptions(ctx context.Context, r *api.Request) (api.Response, error) {
	release, err := oh.lock(ctx, r)
	if err != nil {
		return api.Response{}, api.Failf("%v", err)
	}
	defer release()
	oh.k.Mu.Lock()
	defer oh.k.Mu.Unlock()
	options := oh.file(scope(r)).options
	if d, ok := r.Value("digest"); ok && d != api.Digest(options) {
		return api.Response{}, api.Failf("detected modified configuration - file changed by other user? Try again.")
	}
	maps.Copy(options, params(r))
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(options, k)
	}
	return api.Response{}, nil
}
