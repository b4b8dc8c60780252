// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"encoding/base64"
	"errors"
	"io/fs"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// findAgent returns the running guest agent. If there is none, it fails after the timeout of a ping.
func (h *handlers) findAgent(ctx context.Context, r *api.Request) (*kernel.Agent, error) {
	h.k.Mu.Lock()
	g := h.k.FindVM(r.Host, r.VMID)
	var in *kernel.Instance
	var err error
	switch {
	case g == nil:
		err = kernel.MissingConfigError(r.Host, r.VMID)
	case !qm.AgentEnabled(g.Config.Options["agent"]):
		err = api.Failf("No QEMU guest agent configured")
	case !g.IsRunning() || g.Instance == nil:
		err = api.Failf("VM %d is not running", r.VMID)
	default:
		in = g.Instance
	}
	h.k.Mu.Unlock()
	if err != nil {
		return nil, err
	}
	if a := in.Agent(); a != nil {
		return a, nil
	}
	if err := h.k.Clock.Sleep(ctx, agentTimeout); err != nil {
		return nil, err
	}
	return nil, api.Failf("QEMU guest agent is not running")
}

// agentCall returns the handler of a guest agent command.
func (h *handlers) agentCall(result func(a *kernel.Agent) any) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		a, err := h.findAgent(ctx, r)
		if err != nil {
			return api.Response{}, err
		}
		return api.Response{Data: api.Row{"result": result(a)}}, nil
	}
}

func agentInterfaces(a *kernel.Agent) any {
	if a.Interfaces == nil {
		return []api.Row{}
	}
	return a.Interfaces
}

// maxFileRead is how many bytes of a file one call returns.
const maxFileRead = 16 << 20

// getFile returns the content of a file in the guest. The parameters for a part of it exist since 9.1.
func (h *handlers) getFile(ctx context.Context, r *api.Request) (api.Response, error) {
	a, err := h.findAgent(ctx, r)
	if err != nil {
		return api.Response{}, err
	}
	name := r.Params.Values["file"]
	var content []byte
	err = fs.ErrNotExist
	if a.ReadFile != nil {
		content, err = a.ReadFile(ctx, name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.Response{}, api.Failf("Agent error: failed to open file '%s' (mode: 'r'): No such file or directory", name)
	case err != nil:
		return api.Response{}, api.Failf("Agent error: %v", err)
	}
	content = content[min(r.Int("offset", 0), len(content)):]
	out := api.Row{}
	if limit := r.Int("count", maxFileRead); len(content) > limit {
		content, out["truncated"] = content[:limit], 1
	}
	out["content"] = string(content)
	if decode, ok := r.Value("decode"); ok && decode == "0" {
		out["content"] = base64.StdEncoding.EncodeToString(content)
	}
	return api.Response{Data: out}, nil
}
