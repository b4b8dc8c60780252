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

// ProxmoxOptions configure the simulated Proxmox cluster.
type ProxmoxOptions struct {
	// Hosts is the number of hosts: pve1, pve2, ...
	Hosts int
	// Version is the version of Proxmox VE: 8.4 (default) or 9.2.
	Version string
	// Speed is a factor by which it is faster than a real cluster. Zero means 1.
	Speed float64
	// Heartbeat is the heartbeat interval of the kubelets in the VMs. Zero means 10 s, as in
	// real kubelets.
	Heartbeat time.Duration
	// BootTime is how long a VM's firmware and kernel take.
	BootTime time.Duration
	// NetworkTime is the time between the registration of a Node and Ready.
	NetworkTime time.Duration
	// PodGraceLimit is the maximum time that a pod takes to terminate. Zero means no limit.
	PodGraceLimit time.Duration
	// GPUs is the number of devices of the mapping "gpu" on the first host.
	GPUs int
	// Admin enables the simulator's admin API for interactive use.
	Admin bool
	// Fresh starts a cluster as Proxmox's installer leaves it: no guests and no users except
	// root, whose token the harness then uses.
	Fresh bool
	// Guests are real guests. If it is nil, guests are simulated.
	Guests *Guests
	// Scenario may change the cluster before it starts.
	Scenario func(*pvesim.Scenario)
}

// Proxmox is a simulated cluster in this process. Its VMs boot from their ISO and join the
// Kubernetes cluster named in it.
type Proxmox struct {
	*pvesim.Simulator
	// API is a client of the cluster over HTTPS.
	API *API
	// BootRecorder records what each VM had in its drives when it booted.
	BootRecorder *BootRecorder

	scenario *pvesim.Scenario
	runtime  interface{ Console(vmid int) string }
	// tokenID and tokenSecret are the token in the cloud config.
	tokenID, tokenSecret string
}

// SecondTokenID and SecondTokenSecret are a second token of the controller's user, for token
// rotation.
const (
	SecondTokenID     = "kubernetes@pve!second"
	SecondTokenSecret = "22222222-3333-4444-5555-666666666666"
)

// GPUMapping is the mapping of the simulated GPUs. GPUResource is the resource that their
// device plugin registers.
const (
	GPUMapping  = "gpu"
	GPUResource = "nvidia.com/gpu"
)

// StartProxmox starts the simulated cluster.
func StartProxmox(ctx context.Context, o ProxmoxOptions) (*Proxmox, error) {
	p := &Proxmox{scenario: pvesim.DefaultScenario(o.Hosts), tokenID: pvesim.DefaultTokenID, tokenSecret: pvesim.DefaultTokenSecret}
	if o.Fresh {
		p.makeFresh()
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
	options := pvesim.Options{Speed: max(o.Speed, 0)}
	p.addGuests(o, &options)
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
	// Only Close ends it: cleanup still needs the API after ctx ended.
	if err := p.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	if p.API, err = NewAPI(p.Cluster("simulated")); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// addGuests sets the runtime of the guests, with a recorder of their boots.
func (p *Proxmox) addGuests(o ProxmoxOptions, options *pvesim.Options) {
	if o.Guests != nil {
		p.runtime, p.BootRecorder = o.Guests, NewBootRecorder(o.Guests)
		options.Dir, options.TemplateImage = o.Guests.Dir(), o.Guests.Image()
	} else {
		simulated := guest.NewRuntime(guest.Options{
			DevicePlugins:     map[string]string{GPUMapping: GPUResource},
			HeartbeatInterval: o.Heartbeat, RestartDelay: 2 * time.Second, BootTime: o.BootTime, NetworkTime: o.NetworkTime, PodGraceLimit: o.PodGraceLimit})
		p.runtime, p.BootRecorder = simulated, NewBootRecorder(simulated)
	}
	options.Guests = p.BootRecorder
}

// Cluster returns the cloud config entry of this cluster.
func (p *Proxmox) Cluster(region string) Cluster {
	return Cluster{
		Region: region, URLs: []string{p.URL()}, CA: string(p.CAPEM()),
		TokenID: p.tokenID, TokenSecret: p.tokenSecret,
	}
}

// makeFresh removes what does not exist after an installation.
func (p *Proxmox) makeFresh() {
	s := p.scenario
	s.Guests, s.Roles, s.ACLs, s.SecurityGroups = nil, nil, nil, nil
	s.Storages[0].Content = []string{"iso", "vztmpl", "backup"}
	p.tokenID = "root@pam!harness"
	s.Users = []pvesim.User{{ID: "root@pam", Tokens: []pvesim.Token{{ID: "harness", Secret: p.tokenSecret}}}}
}

// Console returns what a VM wrote to its serial console.
func (p *Proxmox) Console(vmid int) string { return p.runtime.Console(vmid) }

// WriteRequests writes every request that the cluster answered to a file, one per line.
func (p *Proxmox) WriteRequests(file string) error {
	var out strings.Builder
	for _, r := range p.Requests() {
		fmt.Fprintf(&out, "%s %6dms %3d %-6s %s\n", r.Time.Format("15:04:05.000"), r.Took.Milliseconds(), r.Status, r.Method, r.Path)
	}
	if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("writing requests: %w", err)
	}
	return nil
}
