// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ha

import (
	"context"
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// handlers serves the API of the HA manager.
type handlers struct{ *Manager }

// Routes returns the handlers of the HA manager by method.
func (m *Manager) Routes() map[string]api.Handler {
	h := handlers{m}
	routes := map[string]api.Handler{
		"GET /cluster/ha":                       api.Index("name", "status", "resources", "groups", "rules"),
		"GET /cluster/ha/resources":             h.getResources,
		"POST /cluster/ha/resources":            h.postResource,
		"GET /cluster/ha/resources/{sid}":       h.getResource,
		"PUT /cluster/ha/resources/{sid}":       h.putResource,
		"DELETE /cluster/ha/resources/{sid}":    h.deleteResource,
		"GET /cluster/ha/status/current":        h.getStatus,
		"GET /cluster/ha/status/manager_status": h.getManagerStatus,
	}
	maps.Copy(routes, m.rules.Handlers("/cluster/ha/rules"))
	maps.Copy(routes, m.groupRoutes())
	return routes
}

// groupRoutes returns the handlers of the groups. PVE 9 migrated groups to rules and fails all of them.
func (m *Manager) groupRoutes() map[string]api.Handler {
	const groups = "/cluster/ha/groups"
	if !m.k.Version.HAGroupsMigrated {
		return m.groups.Handlers(groups)
	}
	routes := map[string]api.Handler{}
	for method, action := range map[string]string{
		"GET " + groups: "index groups", "POST " + groups: "create group", "GET " + groups + "/{group}": "read group",
		"PUT " + groups + "/{group}": "update group", "DELETE " + groups + "/{group}": "delete group",
	} {
		routes[method] = func(context.Context, *api.Request) (api.Response, error) {
			return api.Response{}, api.Failf("cannot %s: ha groups have been migrated to rules", action)
		}
	}
	return routes
}
