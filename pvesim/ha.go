// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import "net/http"

// SetHAManager sets whether the HA manager of the cluster (the service pve-ha-crm) runs. While it does not run, HA accepts
// requests, but starts and stops no VMs. It carries them out when it runs again.
func (s *Simulator) SetHAManager(running bool) { s.engine.SetHAManager(running) }

// HAResources returns the options of the VMs in HA by VMID.
func (s *Simulator) HAResources() map[int]map[string]string { return s.engine.HAResources() }

// HARules returns the resources of the HA rules by name.
func (s *Simulator) HARules() map[string][]string { return s.engine.HARules() }

// AddHARule adds an HA rule with the options of the API, such as type and resources.
func (s *Simulator) AddHARule(name string, options map[string]string) {
	s.engine.AddHARule(name, options)
}

// AddHAGroup adds an HA group. Hosts can have priorities, as in "pve1:2".
func (s *Simulator) AddHAGroup(name string, hosts ...string) { s.engine.AddHAGroup(name, hosts...) }

// haRoutes adds the routes of the admin API for the HA manager.
func (s *Simulator) haRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /ha/stopped", func(w http.ResponseWriter, _ *http.Request) { s.SetHAManager(false); writeJSON(w, nil) })
	mux.HandleFunc("DELETE /ha/stopped", func(w http.ResponseWriter, _ *http.Request) { s.SetHAManager(true); writeJSON(w, nil) })
}
