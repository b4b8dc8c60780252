// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import "net/http"

// SetHAManager sets whether the HA manager of the cluster (the service pve-ha-crm) runs. While it does not run, HA accepts
// requests, but starts and stops no VMs. It carries them out when it runs again.
func (s *Simulator) SetHAManager(running bool) { s.engine.SetHAManager(running) }

// haRoutes adds the routes of the admin API for the HA manager.
func (s *Simulator) haRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /ha/stopped", func(w http.ResponseWriter, _ *http.Request) { s.SetHAManager(false); writeJSON(w, nil) })
	mux.HandleFunc("DELETE /ha/stopped", func(w http.ResponseWriter, _ *http.Request) { s.SetHAManager(true); writeJSON(w, nil) })
}
