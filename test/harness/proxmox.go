// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
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
	// Version of Proxmox VE: 8.4 (when empty) or 9.2.
	Version string
	// Speed is how much faster than a real one it works; 1 when zero.
	Speed float64
	// Heartbeat of the kubelets in the VMs; 10 s, as real ones, when zero.
	Heartbeat time.Duration
	// BootTime is how long a VM's firmware and kernel take.
	BootTime time.Duration
	// GPUs is the number of devices of the mapping "gpu" on the first host.
	GPUs int
	// Admin opens the simulator's own door, for people.
	Admin bool
	// Fresh is a cluster as Proxmox's installer leaves it: no guests, no users but
	// root, whose token the harness uses then.
	Fresh bool
	// Scenario may change the cluster before it starts.
	Scenario func(*pvesim.Scenario)
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
	// tokenID and tokenSecret of the cloud config.
	tokenID, tokenSecret string
}

// The controller's user has a second token, for those who rotate.
const (
	SecondTokenID     = "kubernetes@pve!second"
	SecondTokenSecret = "22222222-3333-4444-5555-666666666666"
)

// GPUMapping is the mapping of the simulated GPUs, GPUResource what a device plugin
// makes of them.
const (
	GPUMapping  = "gpu"
	GPUResource = "nvidia.com/gpu"
)

// StartProxmox starts the cluster.
func StartProxmox(ctx context.Context, o ProxmoxOptions) (*Proxmox, error) {
	p := &Proxmox{scenario: pvesim.DefaultScenario(o.Hosts), tokenID: pvesim.DefaultTokenID, tokenSecret: pvesim.DefaultTokenSecret}
	if o.Fresh {
		p.freshen()
	}
	if o.Version != "" {
		p.scenario.Version = o.Version
	}
	for i := range p.scenario.Users {
		user := &p.scenario.Users[i]
		if token, ok := strings.CutPrefix(SecondTokenID, user.ID+"!"); ok {
			user.Tokens = append(user.Tokens, pvesim.Token{ID: token, Secret: SecondTokenSecret})
		}
	}
	if o.GPUs > 0 {
		gpus := pvesim.Mapping{Kind: "pci", ID: GPUMapping}
		for i := range o.GPUs {
			gpus.Map = append(gpus.Map, fmt.Sprintf("node=%s,path=0000:%02x:00.0,id=10de:2204", p.scenario.Hosts[0].Name, i+1))
		}
		p.scenario.Mappings = append(p.scenario.Mappings, gpus)
		for i := range p.scenario.Roles {
			p.scenario.Roles[i].Privileges = append(p.scenario.Roles[i].Privileges, "Mapping.Audit", "Mapping.Use")
		}
	}
	if o.Scenario != nil {
		o.Scenario(p.scenario)
	}
	p.runtime = guest.NewRuntime(guest.Options{
		DevicePlugins:     map[string]string{GPUMapping: GPUResource},
		HeartbeatInterval: o.Heartbeat, RestartDelay: 2 * time.Second, BootTime: o.BootTime})
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
	if p.API, err = NewAPI(p.Cluster("simulated")); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Cluster is the entry of the cloud config that leads here.
func (p *Proxmox) Cluster(region string) Cluster {
	return Cluster{
		Region: region, URLs: []string{p.URL()}, CA: string(p.CAPEM()),
		TokenID: p.tokenID, TokenSecret: p.tokenSecret,
	}
}

// freshen takes away what nobody has after an installation.
func (p *Proxmox) freshen() {
	s := p.scenario
	s.Guests, s.Roles, s.ACLs, s.SecurityGroups = nil, nil, nil, nil
	s.Storages[0].Content = []string{"iso", "vztmpl", "backup"}
	p.tokenID = "root@pam!harness"
	s.Users = []pvesim.User{{ID: "root@pam", Tokens: []pvesim.Token{{ID: "harness", Secret: p.tokenSecret}}}}
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
