// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

const (
	// consolePort is the first port of consoles.
	consolePort = 5900
	// consoleTimeout is how long a console waits for its client.
	consoleTimeout = 10 * time.Second
)

// postConsole returns the handler of termproxy and vncproxy. The simulator has no console to connect to: the task ends
// like that of a console whose client does not connect.
func (h *handlers) postConsole(vnc bool) api.Handler {
	return func(_ context.Context, r *api.Request) (api.Response, error) {
		h.k.Mu.Lock()
		g := h.k.FindVM(r.Host, r.VMID)
		serial := ""
		if g != nil {
			serial = g.Config.Options[r.Params.Values["serial"]]
		}
		h.k.Mu.Unlock()
		if g == nil {
			return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
		}
		if name, ok := r.Value("serial"); ok && serial == "" {
			return api.Response{}, api.Failf("unable to find serial interface '%s'", name)
		}
		t := h.k.Fork(r, "vncproxy", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
			t.Logf("starting vnc proxy %s", t.UPID)
			if err := h.k.Clock.Sleep(ctx, consoleTimeout); err != nil {
				return err
			}
			return api.Failf("connection timed out")
		})
		ticket, _ := h.k.Signer.Ticket(r.Who.User, h.k.Clock.Now())
		out := api.Row{"user": r.Who.String(), "ticket": strings.Replace(ticket, "PVE:", "PVEVNC:", 1), "port": consolePort, "upid": t.UPID.String()}
		if vnc {
			out["cert"] = ""
		}
		if r.Bool("generate-password") {
			out["password"] = api.SHA1(ticket)[:8]
		}
		return api.Response{Data: out}, nil
	}
}

// postExec fails like an agent whose configuration does not allow to run programs: guests of the simulator run none.
func (h *handlers) postExec(ctx context.Context, r *api.Request) (api.Response, error) {
	if _, err := h.findAgent(ctx, r); err != nil {
		return api.Response{}, err
	}
	return api.Response{}, api.Failf("Agent error: Command %s has been disabled: the command is not allowed",
		map[string]string{"POST": "guest-exec", "GET": "guest-exec-status"}[r.Verb])
}

var harmlessCommand = regexp.MustCompile(`^\s*(?:info|help|\?)(?:\s|$)`)

// postMonitor runs a command of QEMU's monitor: "info status" and "info version". All others are unknown.
func (h *handlers) postMonitor(_ context.Context, r *api.Request) (api.Response, error) {
	command := r.Params.Values["command"]
	if !harmlessCommand.MatchString(command) {
		if err := h.k.Require(r, "/", "Sys.Modify"); err != nil {
			return api.Response{}, err
		}
	}
	h.k.Mu.Lock()
	defer h.k.Mu.Unlock()
	g := h.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	case !g.IsRunning():
		return api.Response{}, api.Failf("VM %d not running", r.VMID)
	}
	text := fmt.Sprintf("unknown command: '%s'", command)
	switch strings.Join(strings.Fields(command), " ") {
	case "info status":
		text = "VM status: " + g.QMPStatus()
	case "info version":
		text = h.k.Version.QEMU
	}
	return api.Response{Data: text}, nil
}
