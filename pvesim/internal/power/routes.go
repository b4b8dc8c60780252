// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// handlers serves the power operations and the guest agent.
type handlers struct{ *Controller }

// Routes returns the handlers of power operations and the guest agent by method.
func (c *Controller) Routes() map[string]api.Handler {
	h := handlers{c}
	const vm = " /nodes/{node}/qemu/{vmid}"
	return map[string]api.Handler{
		"POST" + vm + "/status/start":                h.postStart,
		"POST" + vm + "/status/stop":                 h.postStop,
		"POST" + vm + "/status/shutdown":             h.postShutdown,
		"POST" + vm + "/status/reboot":               h.postReboot,
		"POST" + vm + "/status/reset":                h.runningVMTask("qmreset", c.reset),
		"POST" + vm + "/status/suspend":              h.runningVMTask("qmpause", func(g *kernel.Guest) { g.Paused = true }),
		"POST" + vm + "/status/resume":               h.runningVMTask("qmresume", func(g *kernel.Guest) { g.Paused = false }),
		"POST" + vm + "/agent/ping":                  h.agentCall(func(*kernel.Agent) any { return api.Row{} }),
		"GET" + vm + "/agent/info":                   h.agentCall(func(*kernel.Agent) any { return api.Row{"version": "9.2.0"} }),
		"GET" + vm + "/agent/get-osinfo":             h.agentCall(func(a *kernel.Agent) any { return a.OS }),
		"GET" + vm + "/agent/get-host-name":          h.agentCall(func(a *kernel.Agent) any { return api.Row{"host-name": a.Hostname} }),
		"GET" + vm + "/agent/network-get-interfaces": h.agentCall(agentInterfaces),
	}
}
