// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
)

// ProxmoxOptions say which Proxmox cluster to simulate.
type ProxmoxOptions struct {
	// Hosts is their number: pve1, pve2, ...
	Hosts int
	// Speed is how much faster than a real one it works; 1 when zero.
	Speed float64
	// Heartbeat of the kubelets in the VMs; 10 s, as real ones, when zero.
	Heartbeat time.Duration
	// BootTime is how long a VM's firmware and kernel take.
	BootTime time.Duration
	// Admin opens the simulator's own door, for people.
	Admin bool
}

// Proxmox is a simulated cluster in this process. Its VMs boot from their ISO
// and join the Kubernetes cluster that they find there.
type Proxmox struct {
	*pvesim.Simulator
	// API asks it over HTTPS, as anybody could.
	API *API
	// Witness knows what each VM had in its drives when it booted.
	Witness *Witness

	scenario *pvesim.Scenario
	runtime  *guest.Runtime
}

// StartProxmox starts the cluster.
func StartProxmox(ctx context.Context, o ProxmoxOptions) (*Proxmox, error) {
	p := &Proxmox{scenario: pvesim.DefaultScenario(o.Hosts)}
	p.runtime = guest.NewRuntime(guest.Options{HeartbeatInterval: o.Heartbeat, RestartDelay: 2 * time.Second, BootTime: o.BootTime})
	p.Witness = NewWitness(p.runtime)
	options := pvesim.Options{Speed: max(o.Speed, 0), Guests: p.Witness}
	if options.Speed == 0 {
		options.Speed = 1
	}
	if o.Admin {
		options.AdminListen = "127.0.0.1:0"
	}
	var err error
	if p.Simulator, err = pvesim.New(p.scenario, options); err != nil {
		return nil, err
	}
	// It ends with Close alone: guests still have to be asked after ctx ended.
	if err := p.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	if p.API, err = NewAPI(p.URL(), p.CAPEM(), pvesim.DefaultTokenID, pvesim.DefaultTokenSecret); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Cluster is the entry of the cloud config that leads here.
func (p *Proxmox) Cluster(region string) Cluster {
	return Cluster{
		Region: region, URLs: []string{p.URL()}, CA: string(p.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}
}

// CPUs of the hosts.
func (p *Proxmox) CPUs() map[string]int {
	cpus := map[string]int{}
	for _, host := range p.scenario.Hosts {
		cpus[host.Name] = host.Sockets * host.Cores * max(host.Threads, 1)
	}
	return cpus
}

// Console is what a VM wrote to its serial console.
func (p *Proxmox) Console(vmid int) string { return p.runtime.Console(vmid) }

// Tasks lists the latest tasks of the cluster, for messages.
func (p *Proxmox) Tasks(ctx context.Context) string {
	var rows []struct {
		UPID, Status       string
		Starttime, Endtime int64
	}
	if err := p.API.Call(ctx, http.MethodGet, "/cluster/tasks", nil, &rows); err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&out, "%s %s\n", row.UPID, row.Status)
	}
	return out.String()
}

// power presses one of the buttons of a VM.
func (p *Proxmox) power(ctx context.Context, guest Guest, verb string, params url.Values) error {
	return p.API.Run(ctx, http.MethodPost, fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", guest.Host, guest.VMID, verb), params)
}

// Stop cuts a VM's power.
func (p *Proxmox) Stop(ctx context.Context, guest Guest) error {
	return p.power(ctx, guest, "stop", nil)
}

// Reboot asks the guest to restart.
func (p *Proxmox) Reboot(ctx context.Context, guest Guest) error {
	return p.power(ctx, guest, "reboot", url.Values{"timeout": {"30"}})
}

// Destroy removes a VM, as somebody at the console would.
func (p *Proxmox) Destroy(ctx context.Context, guest Guest) error {
	if err := p.Stop(ctx, guest); err != nil {
		return err
	}
	return p.API.Run(ctx, http.MethodDelete, fmt.Sprintf("/nodes/%s/qemu/%d", guest.Host, guest.VMID), nil)
}

// WriteRequests writes every request that the cluster answered, one a line.
func (p *Proxmox) WriteRequests(file string) error {
	var out strings.Builder
	for _, r := range p.Requests() {
		fmt.Fprintf(&out, "%s %6dms %3d %-6s %s\n", r.Time.Format("15:04:05.000"), r.Took.Milliseconds(), r.Status, r.Method, r.Path)
	}
	if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("writing the record of requests, %w", err)
	}
	return nil
}
