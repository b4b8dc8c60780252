// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// getConfig returns the node config. Proxmox stores the description as comment lines, so it ends with a newline.
func (hh *handlers) getConfig(r *api.Request) (any, error) {
	config := hh.k.Host(r.Host).Config
	out := api.Row{}
	for key, v := range config {
		if only, ok := r.Value("property"); ok && only != key && only != "all" {
			continue
		}
		if key == "description" {
			v += "\n"
		}
		out[key] = v
	}
	out["digest"] = api.Digest(config)
	return out, nil
}

func (hh *handlers) putConfig(r *api.Request) error {
	h := hh.k.Host(r.Host)
	if err := hh.k.CheckWritable(h, "/etc/pve/nodes/"+h.Name+"/config"); err != nil {
		return err
	}
	if d, ok := r.Value("digest"); ok && d != api.Digest(h.Config) {
		return api.Failf("detected modified configuration - file changed by other user? Try again.")
	}
	maps.Copy(h.Config, api.ParamsExcept(r, "node", "delete", "digest"))
	api.DeleteListed(r, h.Config)
	return nil
}
