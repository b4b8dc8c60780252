// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ha is the HA manager. It brings the VMs that it manages into their desired state.
package ha

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/collection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Power starts and stops VMs for the HA manager.
type Power interface {
	// Start is the worker of a start task. The caller holds the lock of the VM.
	Start(ctx context.Context, t *tasks.Task, r *api.Request) error
	// Shutdown is the worker of a shutdown task that cuts the power if the guest does not stop in time. The caller holds
	// the lock of the VM.
	Shutdown(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error
}

// Manager is the HA manager with its resources, rules and groups.
type Manager struct {
	// Power is set before the first call.
	Power Power

	k         *kernel.Kernel
	resources map[string]map[string]string // by ID, "vm:100"
	rules     *collection.Collection
	groups    *collection.Collection
}

// New returns a manager without resources.
func New(k *kernel.Kernel) *Manager {
	m := &Manager{
		k: k, resources: map[string]map[string]string{},
		rules: collection.New(k, "rule", "HA rule", nil), groups: collection.New(k, "group", "HA group", nil),
	}
	m.rules.Check = m.checkRule
	return m
}

// States of a resource that the simulator interprets.
const (
	stateStarted = "started"
	stateIgnored = "ignored"
)

func resourceID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// IsManaged reports whether HA controls a VM. It does not control resources in the state "ignored".
func (m *Manager) IsManaged(vmid int) bool {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	res := m.resources[resourceID(vmid)]
	return res != nil && res["state"] != stateIgnored
}

// StatusRow returns the HA state of a VM for its status. The caller holds the mutex.
func (m *Manager) StatusRow(vmid int) api.Row {
	res := m.resources[resourceID(vmid)]
	if res == nil {
		return api.Row{"managed": 0}
	}
	out := api.Row{"managed": 1, "state": nil}
	if !m.k.Version.HAGroupsMigrated {
		out["group"] = nil
	}
	return out
}

// RequestState returns the response to a start or stop of a VM that HA manages: a task that only records the desired
// state. The HA manager acts later.
func (m *Manager) RequestState(r *api.Request, verb, state string) (api.Response, error) {
	return kernel.TaskResponse(m.k.Fork(r, "ha"+verb, strconv.Itoa(r.VMID), func(_ context.Context, t *tasks.Task) error {
		t.Logf("Requesting HA %s for VM %d", verb, r.VMID)
		m.k.Mu.Lock()
		if res := m.resources[resourceID(r.VMID)]; res != nil {
			res["state"] = state
		}
		m.k.Mu.Unlock()
		m.Reconcile(r.VMID)
		return nil
	}))
}

// Reconcile brings a VM into its desired state after a delay, as root@pam. It does not block.
func (m *Manager) Reconcile(vmid int) {
	m.k.Go(func() {
		if m.k.Clock.Sleep(m.k.Context(), 5*time.Second) != nil {
			return
		}
		m.k.Mu.Lock()
		g, res := m.k.Guests[vmid], m.resources[resourceID(vmid)]
		if m.k.HA.Stopped || g == nil || res == nil || res["state"] == stateIgnored || g.IsRunning() == (res["state"] == stateStarted) {
			m.k.Mu.Unlock()
			return
		}
		start, root := !g.IsRunning(), &api.Request{Who: access.Identity{User: access.Root}, Host: g.Host, VMID: vmid}
		m.k.Mu.Unlock()
		if start {
			m.k.ForkVM(root, "qmstart", func(ctx context.Context, t *tasks.Task) error { return m.Power.Start(ctx, t, root) })
			return
		}
		m.k.ForkVM(root, "qmshutdown", func(ctx context.Context, t *tasks.Task) error {
			return m.Power.Shutdown(ctx, t, root, time.Minute)
		})
	})
}

// SetHA sets the desired state of a VM. An empty state removes the VM from HA.
func (m *Manager) SetHA(vmid int, state string) error {
	m.k.Mu.Lock()
	if m.k.Guests[vmid] == nil {
		m.k.Mu.Unlock()
		return api.Failf("unable to find VM %d", vmid)
	}
	if state == "" {
		delete(m.resources, resourceID(vmid))
	} else {
		m.resources[resourceID(vmid)] = map[string]string{"state": state}
		m.k.HA.Use()
	}
	m.k.Mu.Unlock()
	m.Reconcile(vmid)
	return nil
}

// SetHAManager sets whether the service runs. When it starts, it brings all VMs into their desired states.
func (m *Manager) SetHAManager(running bool) {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	m.k.HA.Stopped = !running
	for sid := range m.resources {
		m.k.HA.Use()
		m.reconcileResource(sid)
	}
}

// reconcileResource calls Reconcile if a resource is a VM.
func (m *Manager) reconcileResource(sid string) {
	var vmid int
	if _, err := fmt.Sscanf(sid, "vm:%d", &vmid); err == nil {
		m.Reconcile(vmid)
	}
}

// State returns the desired state of a VM, and whether HA has the VM as a resource. The caller holds the mutex.
func (m *Manager) State(vmid int) (string, bool) {
	res, ok := m.resources[resourceID(vmid)]
	return res["state"], ok
}

// Remove removes a VM from HA and reports whether it was a resource. It stays in rules. The caller holds the mutex.
func (m *Manager) Remove(vmid int) bool {
	_, ok := m.resources[resourceID(vmid)]
	delete(m.resources, resourceID(vmid))
	return ok
}

// HAState returns the desired state of a VM, and whether HA has the VM as a resource.
func (m *Manager) HAState(vmid int) (string, bool) {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	return m.State(vmid)
}

// sid returns the resource ID of a request; "100" is short for "vm:100".
func sid(r *api.Request) string {
	v := r.Params.Values["sid"]
	if !strings.Contains(v, ":") {
		return "vm:" + v
	}
	return v
}

// fields returns the fields of a resource in a request.
func fields(r *api.Request) map[string]string {
	return api.ParamsExcept(r, "sid", "type", "digest", "delete")
}

func (hh *handlers) getResources(*api.Request) (any, error) {
	rows := []api.Row{}
	for _, sid := range slices.Sorted(maps.Keys(hh.resources)) {
		rows = append(rows, hh.resourceRow(sid))
	}
	return rows, nil
}

func (hh *handlers) getResource(r *api.Request) (any, error) {
	if hh.resources[sid(r)] == nil {
		return nil, api.Failf("no such resource '%s'", sid(r))
	}
	return hh.resourceRow(sid(r)), nil
}

func (hh *handlers) resourceRow(sid string) api.Row {
	out := api.NewRow(hh.resources[sid])
	out["sid"], out["digest"] = sid, hh.digest()
	out["type"], _, _ = strings.Cut(sid, ":")
	return out
}

func (hh *handlers) digest() string {
	var b strings.Builder
	for _, sid := range slices.Sorted(maps.Keys(hh.resources)) {
		fmt.Fprintf(&b, "%s %v\n", sid, hh.resources[sid])
	}
	return api.SHA1(b.String())
}

func (hh *handlers) postResource(r *api.Request) error {
	sid := sid(r)
	if hh.resources[sid] != nil {
		return api.Failf("resource ID '%s' already defined", sid)
	}
	var vmid int
	if _, err := fmt.Sscanf(sid, "vm:%d", &vmid); err == nil && hh.k.Guests[vmid] == nil {
		return api.Failf("unable to find VM %d", vmid)
	}
	if err := hh.checkGroup(r); err != nil {
		return err
	}
	hh.resources[sid] = map[string]string{"state": stateStarted}
	maps.Copy(hh.resources[sid], fields(r))
	hh.k.HA.Use()
	hh.Reconcile(vmid)
	return nil
}

func (hh *handlers) putResource(r *api.Request) error {
	res := hh.resources[sid(r)]
	if res == nil {
		return api.Failf("no such resource '%s'", sid(r))
	}
	if err := hh.checkGroup(r); err != nil {
		return err
	}
	if d, ok := r.Value("digest"); ok && d != hh.digest() {
		return api.Failf("detected modified configuration - file changed by other user? Try again.")
	}
	maps.Copy(res, fields(r))
	api.DeleteListed(r, res)
	hh.reconcileResource(sid(r))
	return nil
}

// checkGroup checks the group of a resource. PVE 9 has none.
func (hh *handlers) checkGroup(r *api.Request) error {
	group, ok := r.Value("group")
	switch {
	case !ok:
		return nil
	case hh.k.Version.HAGroupsMigrated:
		return api.Failf("invalid parameter 'group': ha groups have been migrated to rules")
	case !hh.groups.Has(group):
		return api.Failf("HA group '%s' does not exist", group)
	}
	return nil
}

func (hh *handlers) deleteResource(r *api.Request) error {
	if hh.resources[sid(r)] == nil {
		return api.Failf("cannot delete service '%s', not HA managed!", sid(r))
	}
	delete(hh.resources, sid(r))
	if purge, ok := r.Value("purge"); hh.k.Version.HAGroupsMigrated && (!ok || purge == "1") {
		hh.purgeRules(sid(r))
	}
	return nil
}

func (hh *handlers) getStatus(r *api.Request) (any, error) {
	serving := hh.k.ServingHost(r)
	text, quorate := "OK", hh.k.HasQuorum(serving)
	if !quorate {
		text = "No quorum on node '" + serving.Name + "'!"
	}
	rows := []api.Row{{"id": "quorum", "type": "quorum", "node": serving.Name, "status": text, "quorate": api.BoolInt(quorate)}}
	if hh.k.Version.HAGroupsMigrated {
		rows = append(rows, api.Row{
			"id": "fencing", "type": "fencing", "node": serving.Name, "status": "standby (CRM watchdog standby)", "armed-state": "standby",
		})
	}
	for _, sid := range slices.Sorted(maps.Keys(hh.resources)) {
		rows = append(rows, api.Row{"id": "service:" + sid, "type": "service", "sid": sid, "state": hh.resources[sid]["state"], "status": hh.resources[sid]["state"]})
	}
	return rows, nil
}

// getManagerStatus returns the state of each host in the view of the HA manager, or of none if the manager never became
// active. Quorum is a boolean of Perl: the text "1" or "".
func (hh *handlers) getManagerStatus(r *api.Request) (any, error) {
	serving := hh.k.ServingHost(r)
	quorum := api.Row{"node": serving.Name, "quorate": ""}
	if hh.k.HasQuorum(serving) {
		quorum["quorate"] = "1"
	}
	if !hh.k.HA.Used {
		return api.Row{"manager_status": api.Row{"node_status": api.Row{}}, "quorum": quorum}, nil
	}
	states, local := api.Row{}, api.Row{}
	for _, h := range hh.k.Hosts {
		state, mode := "online", "active"
		switch {
		case !h.Online:
			state = "unknown"
		case h.Maintenance:
			state, mode = "maintenance", "maintenance"
		}
		states[h.Name] = state
		local[h.Name] = api.Row{"mode": mode, "results": api.Row{}, "state": "wait_for_agent_lock"}
	}
	return api.Row{
		"lrm_status":     local,
		"manager_status": api.Row{"master_node": serving.Name, "node_status": states, "service_status": api.Row{}},
		"quorum":         quorum,
	}, nil
}

// handlers serves the API of the HA manager.
type handlers struct{ *Manager }

// Routes returns the handlers of the HA manager by method.
func (m *Manager) Routes() map[string]api.Handler {
	h := handlers{m}
	routes := map[string]api.Handler{
		"GET /cluster/ha":                       api.Index("name", "status", "resources", "groups", "rules"),
		"GET /cluster/ha/resources":             kernel.Read(m.k, h.getResources),
		"POST /cluster/ha/resources":            kernel.Change(m.k, h.postResource),
		"GET /cluster/ha/resources/{sid}":       kernel.Read(m.k, h.getResource),
		"PUT /cluster/ha/resources/{sid}":       kernel.Change(m.k, h.putResource),
		"DELETE /cluster/ha/resources/{sid}":    kernel.Change(m.k, h.deleteResource),
		"GET /cluster/ha/status/current":        kernel.Read(m.k, h.getStatus),
		"GET /cluster/ha/status/manager_status": kernel.Read(m.k, h.getManagerStatus),
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
