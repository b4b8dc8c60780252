// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

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
	// InstallTime is how long a builder VM runs. Zero means 15 s; the controller considers less than 10 s a failure.
	InstallTime time.Duration
	// PodGraceLimit is the maximum time that a pod takes to terminate. Zero means no limit.
	PodGraceLimit time.Duration
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

// StartProxmox starts the simulated cluster.
func StartProxmox(ctx context.Context, o ProxmoxOptions) (*Proxmox, error) {
	p := &Proxmox{scenario: pvesim.DefaultScenario(o.Hosts), tokenID: pvesim.DefaultTokenID, tokenSecret: pvesim.DefaultTokenSecret}
	if o.Fresh {
		p.makeFresh()
	}
	if o.Version != "" {
		p.scenario.Version = o.Version
	}
	if o.Scenario != nil {
		o.Scenario(p.scenario)
	}
	options := pvesim.Options{Speed: cmp.Or(o.Speed, 1)}
	p.addGuests(o, &options)
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
			HeartbeatInterval: o.Heartbeat, RestartDelay: 2 * time.Second, BootTime: o.BootTime, NetworkTime: o.NetworkTime, InstallTime: o.InstallTime,
			PodGraceLimit: o.PodGraceLimit})
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

// CloudController is the Proxmox cloud controller manager in its own process.
type CloudController struct {
	process *process
}

// StartCloudController runs the cloud controller manager's binary as the administrator of a
// kubeconfig. Its files are in dir.
func StartCloudController(binary, dir, kubeconfig string, cluster Cluster) (*CloudController, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of the cloud controller manager: %w", err)
	}
	// It knows neither a fingerprint nor a CA: it trusts the system's CAs.
	content, err := yaml.Marshal(map[string]any{"clusters": []map[string]any{{
		"region": cluster.Region, "url": cluster.URLs[0], "insecure": cluster.CA == "",
		"token_id": cluster.TokenID, "token_secret": cluster.TokenSecret,
	}}})
	if err != nil {
		return nil, fmt.Errorf("writing cloud config of the cloud controller manager: %w", err)
	}
	config, ca := filepath.Join(dir, "cloud-config.yaml"), filepath.Join(dir, "ca.pem")
	for path, text := range map[string]string{config: string(content), ca: cluster.CA} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("writing cloud config of the cloud controller manager: %w", err)
		}
	}
	cmd := exec.Command(binary, "--kubeconfig", kubeconfig, "--cloud-config", config, "--controllers", "cloud-node,cloud-node-lifecycle",
		"--node-monitor-period", "1s", "--leader-elect=false", "--secure-port=0", "--v=4")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca)
	p, err := startProcess("cloud controller manager", filepath.Join(dir, "cloud-controller-manager.log"), cmd)
	if err != nil {
		return nil, err
	}
	return &CloudController{process: p}, nil
}

// Log returns the path of its log.
func (c *CloudController) Log() string { return c.process.log }

// Stop ends the process.
func (c *CloudController) Stop() { c.process.stop(10 * time.Second) }
